"""The loader cache as a file: where its parts lie, the order of its table, how one is written.

Three layouts exist. Offsets of strings count from the header named beside them.

    old only    "ld.so-1.7.0", entries of 12 bytes, strings (from the end of the entries)
    new only    "glibc-ld.so.cache1.1", entries of 24 bytes, strings (from the file's start),
                since glibc 2.33 an extension block: generator's name, names of hwcaps
    combined    old header and entries, then at a multiple of 8 a new-only cache

The bytes come from an image and are hostile. Everything here raises ValueError on what it will
not read, and refuses to touch files itself. Only little-endian machines are served.
"""

try:  # builtin in a distribution's python; `struct` is one more file to find and load
    from _struct import Struct
except ImportError:
    from struct import Struct

NAME_LIMIT = 255
PATH_LIMIT = 4095
FILE_LIMIT = 4 << 20  # a cache of 10,000 libraries is 1 MiB; `shifted` needs less than 2**31
HWCAPS_LIMIT = 1024  # names of subdirectories in a whole cache; real ones have four at most

OLD_MAGIC = b"ld.so-1.7.0"
NEW_MAGIC = b"glibc-ld.so.cache1.1"
OLD_HEADER = 16
HEADER = 48
ENTRY_SIZE = 24
NAMED_HWCAP = 1 << 62  # then the low 32 bits index the extension's list of names

Entry = tuple[bytes, bytes, int, int, int]  # name, path, flags, osversion, hwcap
Extension = tuple[bytes, list[int]]  # generator, offsets of the hwcaps' names

ENTRY = Struct("<iIIIQ")  # flags, name, path, osversion, hwcap
_OLD_ENTRY = Struct("<iII")
_COUNTS = Struct("<IIB3xI")  # entries, bytes of strings, byte order, extension; at offset 20
_SECTION = Struct("<4I")  # tag, flags, offset, size
_WORD = Struct("<I")
_PAIR = Struct("<II")

_EXTENSION_MAGIC = 0xEAA42174
_GENERATOR, _HWCAPS = 0, 1
_LITTLE = 2  # the low two bits of the byte-order field; 0 is a glibc before 2.33

_BYTES = bytes(range(256))
_ONLY_DIGITS = b" " * 48 + b"0123456789" + b" " * 198
SIGNED = bytes(range(128, 176)) + bytes(10) + bytes(range(176, 246)) + bytes(range(128))
UNSIGNED = bytes(range(48)) + bytes(10) + bytes(range(48, 246))
"""Rank of each byte that is no digit, where C's `char` is signed (x86) or not (arm)."""


def sort_key(name: bytes, ranks: bytes) -> bytes:
    """A name of at most 255 bytes as bytes that compare like glibc's `_dl_cache_libcmp`.

    A run of digits compares as a number and above any other byte, hence: 255, length, digits.
    (glibc lets runs of ten and more digits overflow; nothing sorts by that on purpose.)
    """
    # The end of a name has a rank of its own: above 0x80 where `char` is signed.
    ranked = (name + b"\0").translate(ranks)
    key = b""
    at = 0
    for run in name.translate(_ONLY_DIGITS).split():
        start = name.index(run, at)
        number = run.lstrip(b"0")
        size = len(number)
        key += ranked[at:start] + b"\xff" + _BYTES[size : size + 1] + number
        at = start + len(run)
    return key + ranked[at:]


def string_at(data: bytes, start: int, limit: int) -> bytes:
    """The string at `start`, without its NUL; ValueError unless within `limit` bytes."""
    end = data.find(b"\0", start, start + limit + 1)
    if end < 0:
        raise ValueError(f"loader cache: string at {start}: no end within {limit} bytes")
    return data[start:end]


def new_part(data: bytes) -> int:
    """Where the new header starts, -1 in an old-only cache; ValueError if it is no cache."""
    if len(data) > FILE_LIMIT:
        raise ValueError(f"loader cache: {len(data)} bytes: more than {FILE_LIMIT}")
    if data.startswith(NEW_MAGIC):
        return 0
    if not data.startswith(OLD_MAGIC) or len(data) < OLD_HEADER:
        raise ValueError("loader cache: not a cache: no magic word at its start")
    base = (_old_end(data) + 7) & ~7
    return base if data.startswith(NEW_MAGIC, base) else -1


def header(data: bytes, base: int) -> tuple[int, int, int, int]:
    """Number of entries, start and end of the strings (from `base`), extension (from 0, or 0)."""
    if len(data) < base + HEADER:
        raise ValueError("loader cache: header: the file ends within it")
    count, length, order, extension = _COUNTS.unpack_from(data, base + len(NEW_MAGIC))
    if order & 3 not in (0, _LITTLE):
        raise ValueError("loader cache: byte order: written for another kind of machine")
    low = HEADER + ENTRY_SIZE * count
    high = low + length
    if base + high > len(data):
        raise ValueError(f"loader cache: {count} entries, {length} bytes of strings: not in file")
    if length and data[base + high - 1]:
        raise ValueError("loader cache: strings: the last one does not end")
    return count, low, high, extension


def extension(data: bytes, at: int) -> Extension:
    """The extension block at `at` (0: there is none); unknown sections are left out."""
    generator, hwcaps = b"", b""
    if at == 0:
        return generator, []
    if at % 4 or at + _PAIR.size > len(data):
        raise ValueError(f"loader cache: extension at {at}: misplaced")
    magic, count = _PAIR.unpack_from(data, at)
    end = at + _PAIR.size + count * _SECTION.size
    if magic != _EXTENSION_MAGIC or end > len(data):
        raise ValueError(f"loader cache: extension at {at}: not one, or cut off")
    sections = memoryview(data)[at + _PAIR.size : end]
    for tag, _, start, size in _SECTION.iter_unpack(sections):
        if start + size > len(data):
            raise ValueError(f"loader cache: extension section {tag}: outside the file")
        if tag == _GENERATOR:
            generator = data[start : start + size]
        elif tag == _HWCAPS:
            if start % 4 or size % 4 or size > 4 * HWCAPS_LIMIT:
                raise ValueError("loader cache: hwcaps: misplaced or too many")
            hwcaps = data[start : start + size]
    return generator, [offset for (offset,) in _WORD.iter_unpack(hwcaps)]


def extension_block(at: int, content: Extension) -> bytes:
    """The bytes of an extension block that will stand at `at`, a multiple of 4."""
    generator, hwcaps = content
    start = at + _PAIR.size + 2 * _SECTION.size
    return b"".join(
        (
            _PAIR.pack(_EXTENSION_MAGIC, 2),
            _SECTION.pack(_GENERATOR, 0, start + 4 * len(hwcaps), len(generator)),
            _SECTION.pack(_HWCAPS, 0, start, 4 * len(hwcaps)),
            *map(_WORD.pack, hwcaps),
            generator,
        )
    )


def assemble(count: int, table: bytes, strings: bytes, block: Extension | None) -> bytes:
    """A new-only cache from parts whose offsets are final."""
    end = HEADER + len(table) + len(strings)
    tail = b""
    at = 0
    if block is not None:
        at = (end + 3) & ~3
        tail = bytes(at - end) + extension_block(at, block)
    counts = _COUNTS.pack(count, len(strings), _LITTLE, at)
    return b"".join((NEW_MAGIC, counts, bytes(12), table, strings, tail))


def shifted(table: bytes, low: int, high: int, shift: int) -> bytes:
    """The entries with `shift` added to every string offset; ValueError unless low <= it < high.

    A loop over the entries would take most of a merge's time. As one integer the table is
    checked and moved by a handful of additions: no field overflows, because after the first
    check each is below 2**31, and bit 31 of a field then tells on which side of a bound it lies.
    """
    count = len(table) // ENTRY_SIZE
    ones = int.from_bytes((bytes(4) + b"\1\0\0\0\1" + bytes(15)) * count, "little")
    top = ones << 31
    whole = int.from_bytes(table, "little")
    fields = whole & (ones * 0xFFFFFFFF)
    half = 1 << 31
    if fields & top or (fields + (half - high) * ones) & top:
        raise ValueError("loader cache: an entry's string lies beyond the strings")
    if (fields + (half - low) * ones) & top != top:
        raise ValueError("loader cache: an entry's string lies before the strings")
    return table if shift == 0 else (whole + shift * ones).to_bytes(len(table), "little")


def entries(data: bytes) -> list[Entry]:
    """Every entry of any layout, in file order; ValueError on anything malformed."""
    base = new_part(data)
    if base < 0:
        base = _old_end(data)
        low, high = 0, len(data) - base
        rows = [(*row, 0, 0) for row in _OLD_ENTRY.iter_unpack(data[OLD_HEADER:base])]
        if rows and (not high or data[-1]):
            raise ValueError("loader cache: strings: the last one does not end")
    else:
        _, low, high, at = header(data, base)
        rows = list(ENTRY.iter_unpack(data[base + HEADER : base + low]))
        check_hwcaps(extension(data, at)[1], low, high)
    # Strings may share bytes (a name is the end of its path), but a hostile table could make
    # copies of one long string for each entry: the sum is bounded, not only each of them.
    room = 4 * len(data)
    found = []
    for index, (flags, name_at, path_at, osversion, hwcap) in enumerate(rows):
        if not (low <= name_at < high and low <= path_at < high):
            raise ValueError(f"loader cache: entry {index}: its string lies outside the strings")
        name = string_at(data, base + name_at, NAME_LIMIT)
        path = string_at(data, base + path_at, PATH_LIMIT)
        room -= len(name) + len(path)
        if room < 0:
            raise ValueError(f"loader cache: entry {index}: strings overlap beyond measure")
        found.append((name, path, flags, osversion, hwcap))
    return found


def check_hwcaps(offsets: list[int], low: int, high: int) -> None:
    """ValueError unless every hwcap's name lies in the strings."""
    if not all(low <= offset < high for offset in offsets):
        raise ValueError("loader cache: hwcaps: a name lies outside the strings")


def rewritten(data: bytes, ranks: bytes) -> bytes:
    """Any cache as a sorted new-only one: the slow way, for old-only and unsorted caches."""
    base = new_part(data)
    at = 0 if base < 0 else header(data, base)[3]
    generator, hwcaps = extension(data, at)
    rows = sorted(entries(data), key=lambda entry: _rank(entry, ranks), reverse=True)
    strings = bytearray()
    places: dict[bytes, int] = {}
    start = HEADER + ENTRY_SIZE * len(rows)

    def place(text: bytes) -> int:
        if text not in places:
            places[text] = start + len(strings)
            strings.extend(text + b"\0")
        return places[text]

    table = b"".join(
        ENTRY.pack(flags, place(name), place(path), osversion, hwcap)
        for name, path, flags, osversion, hwcap in rows
    )
    names = [place(string_at(data, base + offset, NAME_LIMIT)) for offset in hwcaps]
    return assemble(len(rows), table, bytes(strings), (generator, names) if at else None)


def _rank(entry: Entry, ranks: bytes) -> tuple[bytes, int, bool, int, int, int]:
    """glibc's order, the highest first: name, flags, named hwcaps, most hwcap bits."""
    name, _, flags, osversion, hwcap = entry
    named = bool(hwcap & NAMED_HWCAP)
    return sort_key(name, ranks), flags, named, hwcap.bit_count(), hwcap, osversion


def _old_end(data: bytes) -> int:
    """Where an old header's entries end; its strings start there."""
    (count,) = _WORD.unpack_from(data, 12)
    end: int = OLD_HEADER + _OLD_ENTRY.size * count
    if end > len(data):
        raise ValueError(f"loader cache: {count} old entries: not in file")
    return end
