"""CUDA forward compatibility: which compat directory comes first, and what is read of it."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from hooks import compat
from hooks.rootfs import Root

HOST = b"550.54.14"
NEWER = "libcuda.so.570.86.10"


def elf(note: bytes | None = None, *, vendor: bytes = b"NVIDIA Corporation\0") -> bytes:
    """A 64-bit ELF file with a section table and, if given, the compat note."""
    strings = b"\0.shstrtab\0.note.cuda.fwd_compatibility\0"
    body = b""
    if note is not None:
        padded = vendor + b"\0" * (-len(vendor) % 4)
        body = struct.pack("<III", len(vendor), len(note), 1) + padded + note
    sections = [bytes(64), _section(1, 64, len(strings))]
    if note is not None:
        sections.append(_section(11, 64 + len(strings), len(body)))
    table = 64 + len(strings) + len(body)
    head = b"\x7fELF\x02\x01\x01" + bytes(33) + struct.pack("<Q", table)
    head += bytes(10) + struct.pack("<HHH", 64, len(sections), 1)
    return head + strings + body + b"".join(sections)


def _section(name: int, offset: int, size: int) -> bytes:
    return struct.pack("<I20xQQ24x", name, offset, size)


def drivers(*majors: int) -> bytes:
    """The note's JSON for these driver majors."""
    return json.dumps({"Format": 1, "CUDA Version": "12.8", "Driver": list(majors)}).encode()


def image(tmp_path: Path, content: bytes, name: str = NEWER) -> Path:
    """A root with a compat directory as CUDA's packages lay it out, behind their links."""
    directory = tmp_path / "usr/local/cuda-12.8/compat"
    directory.mkdir(parents=True)
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (tmp_path / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-12.8")
    (directory / name).write_bytes(content)
    for soname in ("libcuda.so.1", "libnvidia-ptxjitcompiler.so.1"):
        (directory / soname).symlink_to(name)
    (directory / "libcuda.so").symlink_to("libcuda.so.1")
    (directory / "README").write_text("no library")
    return directory


def preferred(root: Path, host: bytes = HOST) -> dict[bytes, bytes]:
    """What `libraries` finds below `root`."""
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        return compat.libraries(Root(fd), host)
    finally:
        os.close(fd)


def test_fitting_directory_gives_its_sonames(tmp_path: Path) -> None:
    """Every SONAME of the directory is preferred, under the path that programs know."""
    image(tmp_path, elf(drivers(535, 550)))
    assert preferred(tmp_path) == {
        b"libcuda.so.1": b"/usr/local/cuda/compat/libcuda.so.1",
        b"libnvidia-ptxjitcompiler.so.1": b"/usr/local/cuda/compat/libnvidia-ptxjitcompiler.so.1",
    }


@pytest.mark.parametrize(
    ("host", "version", "named", "fitting"),
    [
        ((550, 54, 14), (570, 86, 10), [535, 550], True),
        ((560, 1), (570, 86, 10), [535, 550], False),
        ((570, 86, 10), (570, 86, 10), [570], False),
        ((570, 86, 10), (570, 124, 6), [570], True),
        ((580, 1), (570, 86, 10), [580], False),
        ((550, 54, 14), (570, 86, 10), None, True),
        ((570, 1), (570, 86, 10), None, False),
        ((580, 1), (570, 86, 10), None, False),
        ((550, 54, 14), (570, 86, 10), [], False),
    ],
)
def test_rule(
    host: tuple[int, ...], version: tuple[int, ...], named: list[object] | None, fitting: bool
) -> None:
    """With a note: the host's major is named and the version is newer; without: a newer major."""
    assert compat.fits(host, version, named) is fitting


def test_image_without_directory(tmp_path: Path) -> None:
    """The usual image costs one look."""
    assert preferred(tmp_path) == {}


def test_two_versions_mean_nothing(tmp_path: Path) -> None:
    """With more than one libcuda nobody knows which one the links mean."""
    directory = image(tmp_path, elf(drivers(550)))
    (directory / "libcuda.so.560.1").write_bytes(elf(drivers(550)))
    assert preferred(tmp_path) == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x7fELF",
        elf(b"not json"),
        elf(b"[" * 100_000),
        elf(drivers(550), vendor=b"Somebody else\0"),
        elf(json.dumps({"Driver": "550"}).encode()),
        elf(drivers(550))[:100],
        b"\x7fELF\x02\x01" + b"\xff" * 58,
    ],
)
def test_unreadable_note_counts_as_none(tmp_path: Path, content: bytes) -> None:
    """A damaged or foreign file falls back to the rule without a note, and raises nothing."""
    image(tmp_path, content)
    assert preferred(tmp_path) != {}
    assert preferred(tmp_path, b"570.1") == {}


def test_every_truncation_is_survived(tmp_path: Path) -> None:
    """A note cut anywhere is either read or not there."""
    whole = elf(drivers(560))
    directory = image(tmp_path, whole)
    for size in range(0, len(whole), 3):
        (directory / NEWER).write_bytes(whole[:size])
        assert isinstance(preferred(tmp_path), dict)


@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_libcuda_that_is_no_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    """A FIFO would block, a link could lead anywhere, a directory is no library."""
    directory = image(tmp_path, b"")
    (directory / NEWER).unlink()
    if kind == "fifo":
        os.mkfifo(directory / NEWER)
    elif kind == "link":
        (directory / NEWER).symlink_to("/etc/hostname")
    else:
        (directory / NEWER).mkdir()
    assert preferred(tmp_path) == {}


def test_directory_outside_of_the_root_is_not_reached(tmp_path: Path) -> None:
    """Links of the image mean places inside it, wherever they point."""
    outside = image(tmp_path / "host", elf(drivers(550)))
    root = tmp_path / "image"
    (root / "usr/local/cuda").mkdir(parents=True)
    (root / "usr/local/cuda/compat").symlink_to(outside)
    assert preferred(root) == {}


def test_monstrous_directory_is_left_alone(tmp_path: Path) -> None:
    """More names than any CUDA release has are not even sorted."""
    directory = image(tmp_path, elf(drivers(550)))
    for number in range(compat.MAX_NAMES):
        (directory / f"libfiller{number}.so.1").touch()
    assert preferred(tmp_path) == {}
