"""Programs, firmware and daemon sockets, found in fake driver roots."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agent.facts.files import read_firmware, read_ipc, read_programs
from agent.facts.root import DriverRoot
from agent.facts.values import IpcFact
from tests.elf_files import PROGRAM, elf
from tests.host_trees import DIRECTORY, VERSION, Content, Link, plant

BINARY = elf(kind=PROGRAM, dynamic=False)
SCRIPT = b"#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi\n"
GSP = f"nvidia/{VERSION}/gsp_ga10x.bin"


def programs(root: Path, *library_dirs: str) -> dict[str, str]:
    """Name to path, without the root, of what the reader finds."""
    found = read_programs(DriverRoot(str(root)), library_dirs)
    return {p.name: p.file.path.removeprefix(str(root)) for p in found}


def firmware(root: Path) -> list[tuple[str, str]]:
    """(container path, host path without the root) of what the reader finds."""
    facts = read_firmware(DriverRoot(str(root)), f"{root}/sys", VERSION)
    return [(f.target, f.file.path.removeprefix(str(root))) for f in facts]


def listen(path: Path) -> None:
    """Leave a socket file behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as s:
        # A path of a test's folder can be too long for a socket's address.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            s.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


def test_script_is_never_taken(tmp_path: Path) -> None:
    """A script called nvidia-smi first in PATH is passed over for the real program."""
    plant(tmp_path, {"usr/bin/nvidia-smi": SCRIPT, "usr/local/nvidia/bin/nvidia-smi": BINARY})
    assert programs(tmp_path) == {"nvidia-smi": "/usr/local/nvidia/bin/nvidia-smi"}


def test_script_alone_is_no_program(tmp_path: Path) -> None:
    """With only a script there is no nvidia-smi."""
    assert programs(plant(tmp_path, {"usr/bin/nvidia-smi": SCRIPT})) == {}


def test_programs_beside_the_libraries_win(tmp_path: Path) -> None:
    """Programs of the same installation as the libraries come before those in PATH."""
    plant(tmp_path, {"opt/nv/lib64": DIRECTORY, "opt/nv/bin/nvidia-smi": BINARY})
    plant(tmp_path, {"usr/bin/nvidia-smi": BINARY, "usr/bin/nvidia-debugdump": BINARY})
    assert programs(tmp_path, "/opt/nv/lib64") == {
        "nvidia-debugdump": "/usr/bin/nvidia-debugdump",
        "nvidia-smi": "/opt/nv/bin/nvidia-smi",
    }


def test_alternatives_are_followed_inside(tmp_path: Path) -> None:
    """A program behind /etc/alternatives is the file that the root's own links lead to."""
    plant(tmp_path, {"usr/bin/nvidia-smi": Link("/etc/alternatives/smi")})
    plant(tmp_path, {"etc/alternatives/smi": Link("/usr/lib/nvidia/current/nvidia-smi")})
    plant(tmp_path, {"usr/lib/nvidia/current/nvidia-smi": BINARY})
    assert programs(tmp_path) == {"nvidia-smi": "/usr/lib/nvidia/current/nvidia-smi"}


def test_other_programs_are_not_the_drivers(tmp_path: Path) -> None:
    """Only programs of the catalog are taken."""
    assert programs(plant(tmp_path, {"usr/bin/nvidia-installer": BINARY})) == {}


def test_firmware_keeps_the_searched_path(tmp_path: Path) -> None:
    """With `lib -> usr/lib` firmware is found once and injected below /lib (B056)."""
    plant(tmp_path, {"lib": Link("usr/lib"), f"usr/lib/firmware/{GSP}": b"x"})
    assert firmware(tmp_path) == [(f"/lib/firmware/{GSP}", f"/usr/lib/firmware/{GSP}")]


def test_all_gsp_files(tmp_path: Path) -> None:
    """Every gsp*.bin of the loaded version, no other file, no empty one (B086)."""
    folder = f"lib/firmware/nvidia/{VERSION}"
    wanted: dict[str, Content] = {f"{folder}/gsp_{n}.bin": b"x" for n in ("ga10x", "tu10x")}
    plant(tmp_path, {**wanted, f"{folder}/README": b"x", f"{folder}/gsp_empty.bin": b""})
    plant(tmp_path, {"lib/firmware/nvidia/535.1.2/gsp_old.bin": b"x"})
    assert [target for target, _ in firmware(tmp_path)] == [f"/{name}" for name in wanted]


@pytest.mark.parametrize("below_root", [False, True])
def test_firmware_class_path_first(tmp_path: Path, below_root: bool) -> None:
    """The kernel's own firmware path comes first, as a path of the host or of the root."""
    path = "/usr/local/nvidia/firmware"
    text = f"{tmp_path if below_root else ''}{path}\n"
    plant(tmp_path, {"sys/module/firmware_class/parameters/path": text})
    plant(tmp_path, {f"usr/local/nvidia/firmware/{GSP}": b"x", f"lib/firmware/{GSP}": b"x"})
    assert firmware(tmp_path) == [(f"{path}/{GSP}", f"{path}/{GSP}")]


def test_no_firmware(tmp_path: Path) -> None:
    """Without firmware, or without a version, there is none."""
    assert firmware(tmp_path) == []
    assert read_firmware(DriverRoot(str(tmp_path)), f"{tmp_path}/sys", None) == ()


def test_sockets(tmp_path: Path) -> None:
    """Sockets are found in /run first; the older /var/run is the second choice."""
    listen(tmp_path / "run/nvidia-persistenced/socket")
    plant(tmp_path, {"var/run/nvidia-persistenced": Link("../../run/nvidia-persistenced")})
    listen(tmp_path / "var/run/nvidia-fabricmanager/socket")
    plant(tmp_path, {"var/run": DIRECTORY})
    found = read_ipc(DriverRoot(str(tmp_path)))
    targets = ("/run/nvidia-persistenced/socket", "/var/run/nvidia-fabricmanager/socket")
    assert found == tuple(IpcFact(t, f"{tmp_path}{t}", "socket") for t in targets)


def test_no_socket_no_fact(tmp_path: Path) -> None:
    """A plain file or a directory in a socket's place is not a socket."""
    plant(tmp_path, {"run/nvidia-persistenced/socket": b"x"})
    plant(tmp_path, {"var/run/nvidia-persistenced/socket": DIRECTORY})
    assert read_ipc(DriverRoot(str(tmp_path))) == ()


def test_mps_directory(tmp_path: Path) -> None:
    """The directory of MPS is a fact of kind `dir`."""
    plant(tmp_path, {"tmp/nvidia-mps": DIRECTORY})
    expected = IpcFact("/tmp/nvidia-mps", f"{tmp_path}/tmp/nvidia-mps", "dir")
    assert read_ipc(DriverRoot(str(tmp_path))) == (expected,)


def test_link_in_tmp_is_not_followed(tmp_path: Path) -> None:
    """/tmp/nvidia-mps as a link would mount whatever a user chose, so it is refused."""
    plant(tmp_path, {"etc": DIRECTORY, "tmp/nvidia-mps": Link("/etc")})
    assert read_ipc(DriverRoot(str(tmp_path))) == ()
