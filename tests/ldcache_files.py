"""Loader caches written, and looked up, by code that shares nothing with hooks/ldcache.py.

`write` makes any layout; `lookup` does what glibc's loader does with the bytes, step by step.
"""

import functools
import struct
from collections.abc import Sequence

Entry = tuple[bytes, bytes, int, int, int]

LAYOUTS = ("old", "new", "new-2.33", "combined", "combined-2.33")
NAMED = 1 << 62
LEGACY_HWCAP = 1 << 3
X86_64, I386, AARCH64 = 0x0303, 0x0003, 0x0A03
KERNEL = 0x060000  # as an osversion; a library that needs a later one is passed over
ACCEPTS = {X86_64: {X86_64}, I386: {I386, 1}, AARCH64: {AARCH64}}


def compare_names(left: bytes, right: bytes, signed: bool = True) -> int:
    """The C comparison of the loader, one character at a time."""
    a, b = left + b"\0", right + b"\0"
    i = j = 0
    while a[i]:
        if a[i : i + 1].isdigit() and b[j : j + 1].isdigit():
            first = second = 0
            while a[i : i + 1].isdigit():
                first, i = first * 10 + a[i] - 48, i + 1
            while b[j : j + 1].isdigit():
                second, j = second * 10 + b[j] - 48, j + 1
            if first != second:
                return first - second
        elif a[i : i + 1].isdigit():
            return 1
        elif b[j : j + 1].isdigit():
            return -1
        elif a[i] != b[j]:
            return _char(a[i], signed) - _char(b[j], signed)
        else:
            i, j = i + 1, j + 1
    return -_char(b[j], signed)


def in_order(entries: Sequence[Entry], signed: bool = True) -> list[Entry]:
    """The entries as ldconfig sorts them."""

    def compare(a: Entry, b: Entry) -> int:
        if by_name := compare_names(b[0], a[0], signed):
            return by_name
        ours, theirs = ((e[2], bool(e[4] & NAMED), e[4].bit_count(), e[4], e[3]) for e in (a, b))
        return (ours < theirs) - (ours > theirs)

    return sorted(entries, key=functools.cmp_to_key(compare))


def write(
    entries: Sequence[Entry],
    layout: str = "new-2.33",
    hwcaps: Sequence[bytes] = (),
    byte_order: int = 2,
) -> bytes:
    """A cache of these entries in this order; `hwcaps` needs a layout of 2.33."""
    strings = b""
    rows = []
    for name, path, *_ in entries:
        rows.append((len(strings), len(strings) + len(name) + 1))
        strings += name + b"\0" + path + b"\0"
    named = []
    for text in hwcaps:
        named.append(len(strings))
        strings += text + b"\0"
    old_part = b"ld.so-1.7.0\0" + struct.pack("<I", len(entries))
    if layout == "old":
        for (at_name, at_path), entry in zip(rows, entries, strict=True):
            old_part += struct.pack("<iII", entry[2], at_name, at_path)
        return old_part + strings
    start = 48 + 24 * len(entries)
    base = 0
    if layout.startswith("combined"):
        pad = -(16 + 12 * len(entries)) % 8
        for (at_name, at_path), entry in zip(rows, entries, strict=True):
            shift = pad + start
            old_part += struct.pack("<iII", entry[2], shift + at_name, shift + at_path)
        old_part += bytes(pad)
        base = len(old_part)
    table = b""
    for (at_name, at_path), (_, _, flags, osversion, hwcap) in zip(rows, entries, strict=True):
        table += struct.pack("<iIIIQ", flags, start + at_name, start + at_path, osversion, hwcap)
    end = base + start + len(strings)
    block = -end % 4 + end if layout.endswith("2.33") else 0
    marks = byte_order if block else 0
    head = b"glibc-ld.so.cache1.1" + struct.pack(
        "<IIB3xI12x", len(entries), len(strings), marks, block
    )
    data = (old_part if base else b"") + head + table + strings
    if block:
        data += bytes(block - end) + _extension(block, [start + at for at in named])
    return data


def _extension(at: int, hwcaps: Sequence[int]) -> bytes:
    generator = b"ldconfig of the tests"
    lists = at + 8 + 32
    return (
        struct.pack("<II", 0xEAA42174, 2)
        + struct.pack("<4I", 0, 0, lists + 4 * len(hwcaps), len(generator))
        + struct.pack("<4I", 1, 0, lists, 4 * len(hwcaps))
        + b"".join(struct.pack("<I", offset) for offset in hwcaps)
        + generator
    )


def lookup(
    data: bytes, name: bytes, machine: int, hwcaps: Sequence[bytes] = (), signed: bool = True
) -> bytes | None:
    """The path the loader of `machine` takes from the cache for `name`.

    `hwcaps` are the subdirectories its CPU can use, the best first. glibc takes their names'
    offsets from the file's start even in combined caches, where ldconfig does not write them so;
    here they count as ldconfig wrote them.
    """
    base = 0
    if data.startswith(b"ld.so-1.7.0"):
        (count,) = struct.unpack_from("<I", data, 12)
        base = (16 + 12 * count + 7) // 8 * 8
        if not data.startswith(b"glibc-ld.so.cache1.1", base):
            strings = 16 + 12 * count
            rows = [(*struct.unpack_from("<iII", data, 16 + 12 * i), 0, 0) for i in range(count)]
            return _search(data[strings:], rows, name, machine, {}, signed)
    count, _, _, block = struct.unpack_from("<IIB3xI", data, base + 20)
    rows = [struct.unpack_from("<iIIIQ", data, base + 48 + 24 * i) for i in range(count)]
    usable = {}
    for index, offset in enumerate(_hwcap_offsets(data, block)):
        text = _string(data, base + offset)
        if text in hwcaps:
            usable[index] = hwcaps.index(text)
    return _search(data[base:], rows, name, machine, usable, signed)


def _search(
    strings: bytes,
    rows: Sequence[tuple[int, ...]],
    name: bytes,
    machine: int,
    usable: dict[int, int],
    signed: bool,
) -> bytes | None:
    left, right = 0, len(rows) - 1
    while left <= right:
        middle = (left + right) // 2
        found = compare_names(name, _string(strings, rows[middle][1]), signed)
        if found == 0:
            return _best(strings, rows, middle, name, machine, usable, signed)
        if found < 0:
            left = middle + 1
        else:
            right = middle - 1
    return None


def _best(
    strings: bytes,
    rows: Sequence[tuple[int, ...]],
    at: int,
    name: bytes,
    machine: int,
    usable: dict[int, int],
    signed: bool,
) -> bytes | None:
    def same(row: int) -> bool:
        return compare_names(name, _string(strings, rows[row][1]), signed) == 0

    while at > 0 and same(at - 1):
        at -= 1
    best: tuple[int, bytes] | None = None
    while at < len(rows) and same(at):
        flags, _, value, osversion, hwcap = rows[at]
        at += 1
        named = hwcap >> 32 == NAMED >> 32
        if flags not in ACCEPTS[machine] or osversion > KERNEL or (hwcap and not named):
            continue
        if not named:
            if best is not None:
                break
            best = (1 << 32, _string(strings, value))
            if flags == machine:
                break
            continue
        priority = usable.get(hwcap & 0xFFFFFFFF)
        if priority is not None and (best is None or priority < best[0]):
            best = (priority, _string(strings, value))
    return best[1] if best else None


def _hwcap_offsets(data: bytes, block: int) -> list[int]:
    if not block:
        return []
    _, count = struct.unpack_from("<II", data, block)
    for i in range(count):
        tag, _, offset, size = struct.unpack_from("<4I", data, block + 8 + 16 * i)
        if tag == 1:
            return list(struct.unpack_from(f"<{size // 4}I", data, offset))
    return []


def _string(data: bytes, at: int) -> bytes:
    return data[at : data.index(b"\0", at)]


def _char(value: int, signed: bool) -> int:
    return value - 256 if signed and value > 127 else value
