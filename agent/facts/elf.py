"""A tiny ELF reader: machine, kind, SONAME, needs, ABI note, and whether the file is whole.

It reads the header, the program headers, the dynamic section, its strings and the notes, by
offset, never the file. Every number in the file is taken as hostile: checked against the file's
size and a limit before it is used. It reads no sections or symbols, and no big-endian file.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

HEADERS_LIMIT = 128
"""Program headers of one file; a driver library has about ten."""

DYNAMIC_LIMIT = 16 * 1024
"""Bytes of a dynamic section that are looked at."""

NEEDED_LIMIT = 64
"""Libraries that one file needs; a driver library needs about ten."""

NOTES_LIMIT = 4 * 1024
"""Bytes of one notes segment that are looked at."""

NAME_LIMIT = 255

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 0, 1, 5, 10, 14
_ET_EXEC, _ET_DYN = 2, 3

# (EI_CLASS, e_machine) -> the machine as `uname -m` writes it.
_MACHINES = {
    (1, 3): "i386",
    (1, 40): "armv7l",
    (2, 21): "ppc64le",
    (2, 62): "x86_64",
    (2, 183): "aarch64",
    (2, 243): "riscv64",
}


class NotElf(ValueError):
    """The file is no whole ELF file that this reader knows; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Elf:
    """One program or shared object; only a `dynamic` one can be a library.

    `needed` are the names of DT_NEEDED; `abi` is the oldest Linux that the ABI note allows.
    """

    machine: str
    dynamic: bool
    soname: str | None
    needed: tuple[str, ...] = ()
    abi: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class _Layout:
    """What differs between the two classes: struct formats and the header's size."""

    header: struct.Struct
    program: struct.Struct
    dynamic: struct.Struct


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


_LAYOUTS = {
    1: _Layout(struct.Struct("<HHIIIIIHHH"), struct.Struct("<IIIIIIII"), struct.Struct("<II")),
    2: _Layout(struct.Struct("<HHIQQQIHHH"), struct.Struct("<IIQQQQQQ"), struct.Struct("<QQ")),
}
_IDENT = 16
_NOTE = struct.Struct("<III")
_ABI = struct.Struct("<IIII")
_ABI_LINUX = 0


def read_elf(fd: int, size: int) -> Elf:
    """What the ELF file behind `fd`, `size` bytes long, is; `NotElf` if it is none."""
    ident = _read(fd, 0, _IDENT, size)
    if ident[:4] != b"\x7fELF":
        raise NotElf("no ELF magic")
    layout = _LAYOUTS.get(ident[4])
    if layout is None or ident[5] != 1:
        raise NotElf("unknown class or byte order")
    fields = layout.header.unpack(_read(fd, _IDENT, layout.header.size, size))
    kind, number, _, _, start, _, _, _, entry_size, count = fields
    machine = _MACHINES.get((ident[4], number))
    if machine is None or kind not in (_ET_EXEC, _ET_DYN):
        raise NotElf(f"machine {number}, type {kind}")
    segments = _segments(fd, size, layout, start, entry_size, count)
    dynamic = next((s for s in segments if s.kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return Elf(machine, False, None)
    names, sonames = _dynamic_names(fd, size, layout, segments, dynamic)
    return Elf(machine, True, sonames[0] if sonames else None, names, _abi(fd, size, segments))


def _read(fd: int, offset: int, count: int, size: int) -> bytes:
    if offset + count > size:
        raise NotElf("truncated")
    data = os.pread(fd, count, offset)
    if len(data) != count:
        raise NotElf("changed while it was read")
    return data


def _segments(
    fd: int, size: int, layout: _Layout, start: int, entry_size: int, count: int
) -> list[_Segment]:
    """The program headers; a file that lacks bytes of a loaded segment is cut off."""
    if entry_size != layout.program.size or not 0 < count <= HEADERS_LIMIT:
        raise NotElf("no usable program headers")
    table = _read(fd, start, entry_size * count, size)
    segments = []
    for kind, *rest in layout.program.iter_unpack(table):
        # 64-bit headers have the flags before the offset, 32-bit ones near the end.
        offset, address, _, length = rest[1:5] if layout is _LAYOUTS[2] else rest[0:4]
        if kind in (_PT_LOAD, _PT_DYNAMIC, _PT_NOTE):
            if offset + length > size:
                raise NotElf("truncated")
            segments.append(_Segment(kind, offset, address, length))
    return segments


def _dynamic_names(
    fd: int, size: int, layout: _Layout, segments: list[_Segment], dynamic: _Segment
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of DT_NEEDED and of DT_SONAME, those that can be a file's name."""
    step = layout.dynamic.size
    length = min(dynamic.size, DYNAMIC_LIMIT) // step * step
    tags: dict[int, list[int]] = {}
    for tag, value in layout.dynamic.iter_unpack(_read(fd, dynamic.offset, length, size)):
        if tag == _DT_NULL:
            break
        tags.setdefault(tag, []).append(value)
    if _DT_STRTAB not in tags:
        return (), ()
    start, end = tags[_DT_STRTAB][0], tags.get(_DT_STRSZ, [0])[0]
    needed, sonames = tags.get(_DT_NEEDED, [])[:NEEDED_LIMIT], tags.get(_DT_SONAME, [])[:1]
    if any(at >= end for at in (*needed, *sonames)):
        raise NotElf("name outside of the string table")
    offsets = [[_file_offset(start + at, segments) for at in part] for part in (needed, sonames)]
    texts = [tuple(t for o in part if (t := _name(fd, size, o))) for part in offsets]
    return texts[0], texts[1]


def _name(fd: int, size: int, offset: int | None) -> str | None:
    """The string at an offset, or None if it cannot be a file name."""
    if offset is None:
        raise NotElf("name outside of the file")
    text, end, _ = _read(fd, offset, min(NAME_LIMIT + 1, size - offset), size).partition(b"\0")
    name = text.decode("ascii", "replace")
    usable = end and name and name.isascii() and name.isprintable() and "/" not in name
    return name if usable else None


def _abi(fd: int, size: int, segments: list[_Segment]) -> tuple[int, int, int] | None:
    """The kernel version of the GNU ABI note, if there is one and it is about Linux."""
    for segment in segments:
        if segment.kind != _PT_NOTE:
            continue
        data = _read(fd, segment.offset, min(segment.size, NOTES_LIMIT), size)
        at = 0
        while at + _NOTE.size <= len(data):
            name_size, text_size, kind = _NOTE.unpack_from(data, at)
            text = at + _NOTE.size + (name_size + 3) // 4 * 4
            if data[at + _NOTE.size :].startswith(b"GNU\0") and (kind, name_size) == (1, 4):
                found = data[text : text + _ABI.size]
                if len(found) == _ABI.size and (words := _ABI.unpack(found))[0] == _ABI_LINUX:
                    return words[1], words[2], words[3]
            at = text + (text_size + 3) // 4 * 4
    return None


def _file_offset(address: int, segments: list[_Segment]) -> int | None:
    """Where in the file the byte at a virtual address is."""
    for s in segments:
        if s.kind == _PT_LOAD and s.address <= address < s.address + s.size:
            return s.offset + address - s.address
    return None
