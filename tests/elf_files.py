"""ELF files small enough to read, written field by field; shares nothing with agent/facts/elf.py.

One loaded segment covers the whole file, so that a cut at any byte is visible.
"""

from __future__ import annotations

import struct

X86_64, I386, AARCH64 = (2, 62), (1, 3), (2, 183)
PROGRAM, LIBRARY = 2, 3


def elf(
    soname: str | None = None,
    *,
    machine: tuple[int, int] = X86_64,
    kind: int = LIBRARY,
    dynamic: bool = True,
    salt: bytes = b"",
    needed: tuple[str, ...] = (),
    abi: tuple[int, int, int] | None = None,
) -> bytes:
    """A file of this (class, machine); `salt` makes two otherwise equal files differ."""
    wide = machine[0] == 2
    head, row, pair = (64, 56, 16) if wide else (52, 32, 8)
    note = b"" if abi is None else struct.pack("<III4sIIII", 4, 16, 1, b"GNU\0", 0, *abi)
    headers = 1 + dynamic + bool(note)
    at_dynamic = head + row * headers
    strings, base = b"\0", 0x10000
    names = []
    for tag, name in (*((1, n) for n in needed), *([(14, soname)] if soname else [])):
        names.append((tag, len(strings)))
        strings += name.encode() + b"\0"
    at_strings = at_dynamic + pair * (len(names) + 3)
    tags = [(5, base + at_strings), (10, len(strings)), *names, (0, 0)]
    form = "<QQ" if wide else "<II"
    section = b"".join(struct.pack(form, *tag) for tag in tags)
    body = (section + strings if dynamic else b"") + note + salt
    size = at_dynamic + len(body)
    rows = [(1, 0, size)] + ([(2, at_dynamic, len(section))] if dynamic else [])
    rows += [(4, size - len(salt) - len(note), len(note))] if note else []
    table = b"".join(_program_header(wide, k, at, base + at, n) for k, at, n in rows)
    return _header(wide, machine[1], kind, head, row, headers) + table + body


def _header(wide: bool, machine: int, kind: int, head: int, row: int, headers: int) -> bytes:
    ident = b"\x7fELF" + bytes((2 if wide else 1, 1, 1)) + bytes(9)
    form = "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH"
    return ident + struct.pack(form, kind, machine, 1, 0, head, 0, 0, head, row, headers, 0, 0, 0)


def _program_header(wide: bool, kind: int, offset: int, address: int, size: int) -> bytes:
    if wide:
        return struct.pack("<IIQQQQQQ", kind, 5, offset, address, address, size, size, 8)
    return struct.pack("<IIIIIIII", kind, offset, address, address, size, size, 5, 4)
