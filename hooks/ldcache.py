"""The loader cache's contents: read one, or put the driver's libraries into one.

Used by the hook in place of an `ldconfig` run, and by the agent to read the host's cache. Bytes
in, bytes out: nothing here opens a file, and nothing of the image's bytes is believed unchecked.
Refuses (ValueError) a malformed cache; what to do then is the caller's decision.
"""

from hooks.ldcache_table import (
    ENTRY,
    ENTRY_SIZE,
    HEADER,
    NAME_LIMIT,
    PATH_LIMIT,
    SIGNED,
    UNSIGNED,
    Entry,
    assemble,
    check_hwcaps,
    entries,
    extension,
    header,
    new_part,
    rewritten,
    shifted,
    sort_key,
    string_at,
)

FLAGS: dict[str, int] = {"x86_64": 0x0303, "i386": 0x0003, "aarch64": 0x0A03}
"""Machine to the flags word of its glibc (libc6) libraries."""

ARCHITECTURE = 0xFF00  # the part of the flags that says for which machine a library is

Library = tuple[bytes, int, bytes, bytes]  # sort key, flags, name, path
Edit = tuple[int, int, list[int]]  # rows from, up to; the rows that shall stand there


def parse(data: bytes) -> list[Entry]:
    """(name, path, flags, osversion, hwcap) of each entry, in file order; ValueError."""
    return entries(data)


def merge(old: bytes | None, driver: list[tuple[bytes, bytes, int]]) -> bytes:
    """A new-only cache in which the loader finds `driver`'s (name, path, flags) first.

    Entries of the same name and architecture go, hwcap variants too; all else answers as before.
    A name twice for one architecture: the first counts. Merging again changes nothing.
    ValueError if `old` is malformed or a driver's string cannot stand in a cache.
    """
    ranks = SIGNED
    if any(flags & ARCHITECTURE == FLAGS["aarch64"] & ARCHITECTURE for _, _, flags in driver):
        ranks = UNSIGNED
    wanted = _wanted(driver, ranks)
    if old is None:
        old = assemble(0, b"", b"", None)
    elif new_part(old) < 0:
        old = rewritten(old, ranks)
    merged = _spliced(old, wanted, ranks)
    if merged is None:
        merged = _spliced(rewritten(old, ranks), wanted, ranks)
    if merged is None:
        raise ValueError("loader cache: order: cannot be established")
    return merged


def _wanted(driver: list[tuple[bytes, bytes, int]], ranks: bytes) -> list[Library]:
    """The driver's libraries in the table's order, the highest first, each once."""
    chosen: dict[tuple[bytes, int], Library] = {}
    for name, path, flags in driver:
        for text, limit in ((name, NAME_LIMIT), (path, PATH_LIMIT)):
            if not text or b"\0" in text or len(text) > limit:
                raise ValueError(f"loader cache: driver library {name[:80]!r}: unusable string")
        key = sort_key(name, ranks)
        chosen.setdefault((key, flags & ARCHITECTURE), (key, flags, name, path))
    return sorted(chosen.values(), reverse=True)


class _Table:
    """A cache's rows by number, names read when first asked for.

    Rows past the last are the wanted libraries, so that one number names any row of the result.
    """

    __slots__ = ("cache", "count", "first", "keys", "ranks", "strings", "wanted")

    def __init__(self, cache: bytes, base: int, wanted: list[Library], ranks: bytes) -> None:
        self.cache = cache
        self.count = header(cache, base)[0]
        self.first = base + HEADER
        self.strings = base
        self.wanted = wanted
        self.ranks = ranks
        self.keys = {self.count + i: library[0] for i, library in enumerate(wanted)}

    def key(self, row: int) -> bytes:
        """The sort key of a row's name."""
        known = self.keys.get(row)
        if known is None:
            name_at = ENTRY.unpack_from(self.cache, self.first + ENTRY_SIZE * row)[1]
            name = string_at(self.cache, self.strings + name_at, NAME_LIMIT)
            known = self.keys[row] = sort_key(name, self.ranks)
        return known

    def holds(self, row: int, own: int) -> bool:
        """Whether a row of the cache is already what the wanted row `own` would be."""
        at = ENTRY.unpack_from(self.cache, self.first + ENTRY_SIZE * row)
        _, flags, name, path = self.wanted[own - self.count]
        return (
            (at[0], at[3], at[4]) == (flags, 0, 0)
            and self.cache.startswith(name + b"\0", self.strings + at[1])
            and self.cache.startswith(path + b"\0", self.strings + at[2])
        )

    def flags(self, row: int) -> int:
        """The flags word of a row."""
        if row >= self.count:
            return self.wanted[row - self.count][1]
        word: int = ENTRY.unpack_from(self.cache, self.first + ENTRY_SIZE * row)[0]
        return word

    def place(self, key: bytes, low: int) -> tuple[int, int]:
        """The rows from `low` on with this name; where they belong if there are none."""
        # The driver's names stand close together, so a search from the last one is short.
        reach = 1
        while low + reach <= self.count and self.key(low + reach - 1) > key:
            low += reach
            reach *= 2
        high = min(low + reach - 1, self.count)
        while low < high:
            middle = (low + high) // 2
            if self.key(middle) > key:
                low = middle + 1
            else:
                high = middle
        while high < self.count and self.key(high) == key:
            high += 1
        return low, high


def _spliced(cache: bytes, wanted: list[Library], ranks: bytes) -> bytes | None:
    """The cache with the wanted libraries; None if its order would hide them from the loader."""
    base = new_part(cache)
    count, low, high, extension_at = header(cache, base)
    generator, hwcaps = extension(cache, extension_at)
    check_hwcaps(hwcaps, low, high)
    table = _Table(cache, base, wanted, ranks)
    edits = _edits(table)
    if not _reachable(table, edits):
        return None
    growth = sum(len(rows) - (end - start) for start, end, rows in edits)
    shift = ENTRY_SIZE * growth
    # Names were read above through offsets that only here are found good or not; a bad one
    # cannot read outside `cache`, and what it found is thrown away with it.
    moved = shifted(cache[base + HEADER : base + low], low, high, shift)
    if base == 0 and all(rows == list(range(start, end)) for start, end, rows in edits):
        return cache
    body, added = _applied(table, moved, edits, high + shift)
    strings = cache[base + low : base + high] + added
    block = (generator, [offset + shift for offset in hwcaps]) if extension_at else None
    return assemble(count + growth, body, strings, block)


def _edits(table: _Table) -> list[Edit]:
    """For each wanted name, in the table's order, its rows and the rows to have instead."""
    edits: list[Edit] = []
    end = at = 0
    while at < len(table.wanted):
        key = table.wanted[at][0]
        start, end = table.place(key, end)
        mine: dict[int, int] = {}  # architecture to row
        while at < len(table.wanted) and table.wanted[at][0] == key:
            mine[table.wanted[at][1] & ARCHITECTURE] = table.count + at
            at += 1
        rows = []
        for row in range(start, end):
            architecture = table.flags(row) & ARCHITECTURE
            own = mine.get(architecture)
            if own is None:
                rows.append(row)
            elif own >= table.count and table.holds(row, own):
                # Already there: taking it again would add its strings at every merge.
                rows.append(row)
                mine[architecture] = row
        rows += [row for row in mine.values() if row >= table.count]
        if len(rows) > 1:
            rows.sort(key=lambda row: -table.flags(row))  # stable: hwcap variants keep order
        edits.append((start, end, rows))
    return edits


def _reachable(table: _Table, edits: list[Edit]) -> bool:
    """Whether the loader's search in the edited table ends at each edited group.

    In a sorted table it does. An image's table need not be sorted, and comparing all its names
    costs more than the rest of a merge: so only the steps of these searches are taken.
    """
    order: list[int] = []
    spans = []
    at = 0
    for start, end, rows in edits:
        order += range(at, start)
        spans.append((len(order), len(order) + len(rows)))
        order += rows
        at = end
    order += range(at, table.count)
    for first, stop in spans:
        key = table.key(order[first])
        left, right = 0, len(order) - 1
        while not first <= (middle := (left + right) // 2) < stop:
            other = table.keys.get(order[middle]) or table.key(order[middle])
            if (other > key) != (middle < first) or other == key:
                return False
            if middle < first:
                left = middle + 1
            else:
                right = middle - 1
    return True


def _applied(table: _Table, moved: bytes, edits: list[Edit], at: int) -> tuple[bytes, bytes]:
    """The edited rows, and the new strings, of which the first will stand at offset `at`."""
    pieces: list[bytes] = []
    strings: list[bytes] = []
    done = 0
    for start, end, rows in edits:
        pieces.append(moved[ENTRY_SIZE * done : ENTRY_SIZE * start])
        for row in rows:
            if row < table.count:
                pieces.append(moved[ENTRY_SIZE * row : ENTRY_SIZE * (row + 1)])
                continue
            _, flags, name, path = table.wanted[row - table.count]
            # As ldconfig does it: a name that ends its path needs no bytes of its own.
            text = path + b"\0" if path.endswith(name) else path + b"\0" + name + b"\0"
            name_at = at + len(text) - len(name) - 1
            pieces.append(ENTRY.pack(flags, name_at, at, 0, 0))
            strings.append(text)
            at += len(text)
        done = end
    pieces.append(moved[ENTRY_SIZE * done :])
    return b"".join(pieces), b"".join(strings)
