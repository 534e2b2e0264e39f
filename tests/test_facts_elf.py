"""The ELF reader: what it tells, and that no file can hurt it."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from agent.facts.elf import Elf, NotElf, read_elf
from tests.elf_files import AARCH64, I386, PROGRAM, X86_64, elf


def read(tmp_path: Path, data: bytes, size: int | None = None) -> Elf:
    """What the reader tells of these bytes."""
    path = tmp_path / "file"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_elf(fd, len(data) if size is None else size)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("machine", "name"), [(X86_64, "x86_64"), (I386, "i386"), (AARCH64, "aarch64")]
)
def test_tells_machine_and_soname(tmp_path: Path, machine: tuple[int, int], name: str) -> None:
    """Both classes give their machine and SONAME."""
    assert read(tmp_path, elf("libcuda.so.1", machine=machine)) == Elf(name, True, "libcuda.so.1")


@pytest.mark.parametrize("machine", [X86_64, I386])
def test_tells_needs_and_the_abi_note(tmp_path: Path, machine: tuple[int, int]) -> None:
    """DT_NEEDED and the oldest kernel of the ABI note are read in both classes."""
    needed = ("libnvidia-glcore.so.390.48", "libc.so.6")
    data = elf("libGL.so.1", machine=machine, needed=needed, abi=(2, 3, 99))
    found = read(tmp_path, data)
    assert (found.soname, found.needed, found.abi) == ("libGL.so.1", needed, (2, 3, 99))


def test_a_note_of_another_system(tmp_path: Path) -> None:
    """An ABI note that is not about Linux says nothing."""
    data = elf("libtls.so", abi=(2, 3, 99)).replace(b"GNU\0" + bytes(4), b"GNU\0\1\0\0\0")
    assert read(tmp_path, data).abi is None


def test_library_without_soname(tmp_path: Path) -> None:
    """A library need not have a SONAME."""
    assert read(tmp_path, elf()) == Elf("x86_64", True, None)


def test_static_program(tmp_path: Path) -> None:
    """A static program is an ELF file without a dynamic section."""
    assert read(tmp_path, elf(kind=PROGRAM, dynamic=False)) == Elf("x86_64", False, None)


def test_real_interpreter() -> None:
    """The program that runs this test is a whole ELF file of this machine."""
    fd = os.open(os.path.realpath(sys.executable), os.O_RDONLY)
    try:
        found = read_elf(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)
    assert found.machine == os.uname().machine


@pytest.mark.parametrize("machine", [X86_64, I386])
def test_every_cut_is_noticed(tmp_path: Path, machine: tuple[int, int]) -> None:
    """A file that ends early, as half a copy does, is no ELF file wherever the cut is."""
    whole = elf("libcuda.so.1", machine=machine)
    for length in range(len(whole)):
        with pytest.raises(NotElf):
            read(tmp_path, whole[:length])


@pytest.mark.parametrize("machine", [X86_64, I386])
@pytest.mark.parametrize("value", [0x00, 0x7F, 0xFF])
def test_any_wrong_byte_is_survived(tmp_path: Path, machine: tuple[int, int], value: int) -> None:
    """With any byte replaced the answer is a value or `NotElf`, never another error."""
    whole = elf("libcuda.so.1", machine=machine, needed=("libc.so.6",), abi=(2, 3, 99))
    answers = 0
    for at in range(len(whole)):
        try:
            answers += isinstance(
                read(tmp_path, whole[:at] + bytes([value]) + whole[at + 1 :]), Elf
            )
        except NotElf:
            answers += 1
    assert answers == len(whole)


@pytest.mark.parametrize("soname", ["../x", "a/b", "a\nb", "x" * 300])
def test_soname_that_is_no_file_name(tmp_path: Path, soname: str) -> None:
    """A SONAME that could not be the name of a link counts as none."""
    assert read(tmp_path, elf(soname)).soname is None


def test_many_headers_are_refused(tmp_path: Path) -> None:
    """A count of 65535 program headers is refused before any is read."""
    data = bytearray(elf("libcuda.so.1"))
    struct.pack_into("<H", data, 56, 0xFFFF)
    with pytest.raises(NotElf, match="program headers"):
        read(tmp_path, bytes(data))


def test_file_that_shrinks(tmp_path: Path) -> None:
    """A file cut off between stat and read is no ELF file."""
    whole = elf("libcuda.so.1")
    with pytest.raises(NotElf, match="changed"):
        read(tmp_path, whole[:70], size=len(whole))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\nexec nvidia-smi\n" * 9])
def test_what_is_no_elf(tmp_path: Path, data: bytes) -> None:
    """An empty file, a bare magic and a script are refused."""
    with pytest.raises(NotElf):
        read(tmp_path, data)
