"""Device nodes that the agent makes: real `mknod` in a /dev of the test's own."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Literal

import anyio
import pytest

from agent.facts.nodes import read_nodes
from agent.host import Host, read_inventory
from agent.inventory import DriverState, Inventory
from agent.missingnodes import NodeToMake
from agent.nodemaker import link_nodes, make_nodes
from contrib import simhost
from tests.test_host import HOSTS, settings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")

Policy = Literal["leave", "make", "replace"]
UVM = NodeToMake("/dev/nvidia-uvm", 511, 0, 0o660, 0, 44)
CAP = NodeToMake("/dev/nvidia-caps/nvidia-cap3", 240, 3, 0o444, 0, 0)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """An empty /dev below `tmp_path`."""
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev"


def shape(path: Path) -> tuple[bool, int, int, int, int, int]:
    """Whether it is a character device, its number, mode and owner."""
    seen = path.lstat()
    number = os.major(seen.st_rdev), os.minor(seen.st_rdev)
    return stat.S_ISCHR(seen.st_mode), *number, seen.st_mode & 0o777, seen.st_uid, seen.st_gid


def test_missing_nodes_are_made(dev: Path, tmp_path: Path) -> None:
    """Number, mode, owner and directory are as asked, whatever the umask is (B111)."""
    before = os.umask(0o077)
    try:
        made, failed = make_nodes(str(tmp_path), [UVM, CAP], replace=False)
    finally:
        os.umask(before)
    assert failed == ()
    assert made[0] == "/dev/nvidia-uvm: made as 511:0, mode 0660, owner 0:44"
    assert shape(dev / "nvidia-uvm") == (True, 511, 0, 0o660, 0, 44)
    assert shape(dev / "nvidia-caps/nvidia-cap3") == (True, 240, 3, 0o444, 0, 0)
    assert stat.S_IMODE((dev / "nvidia-caps").stat().st_mode) == 0o755
    assert sorted(os.listdir(dev)) == ["nvidia-caps", "nvidia-uvm"]
    assert make_nodes(str(tmp_path), [UVM, CAP], replace=True) == ((), ())


def test_node_of_another_boot(dev: Path, tmp_path: Path) -> None:
    """A node with an old major is named, or replaced in one step where the policy says so."""
    os.mknod(dev / "nvidia-uvm", stat.S_IFCHR | 0o666, os.makedev(510, 0))
    _, failed = make_nodes(str(tmp_path), [UVM], replace=False)
    assert failed == ("/dev/nvidia-uvm: not made: a node with another number has its name",)
    assert shape(dev / "nvidia-uvm")[1:3] == (510, 0)
    made, _ = make_nodes(str(tmp_path), [UVM], replace=True)
    assert made[0].endswith("in place of 510:0")
    assert shape(dev / "nvidia-uvm") == (True, 511, 0, 0o660, 0, 44)


@pytest.mark.parametrize("kind", ["file", "link", "directory", "block"])
def test_foreign_files_stay(dev: Path, tmp_path: Path, kind: str) -> None:
    """What is no character device is somebody else's, whatever the policy is."""
    path = dev / "nvidia-uvm"
    if kind == "file":
        path.write_text("x")
    elif kind == "link":
        path.symlink_to("/dev/null")
    elif kind == "directory":
        path.mkdir()
    else:
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 200))
    before = path.lstat()
    made, failed = make_nodes(str(tmp_path), [UVM], replace=True)
    assert (made, len(failed)) == ((), 1)
    assert "something that is no device node has its name" in failed[0]
    assert path.lstat() == before
    assert os.listdir(dev) == ["nvidia-uvm"]


def test_directory_that_is_a_link(dev: Path, tmp_path: Path) -> None:
    """No node is made outside /dev; the others are made all the same."""
    (tmp_path / "elsewhere").mkdir()
    (dev / "nvidia-caps").symlink_to(tmp_path / "elsewhere")
    made, failed = make_nodes(str(tmp_path), [CAP, UVM], replace=True)
    assert (len(made), len(failed)) == (1, 1)
    assert failed[0].startswith(f"{CAP.path}: not made: ")
    assert os.listdir(tmp_path / "elsewhere") == []


def test_left_over_draft(dev: Path, tmp_path: Path) -> None:
    """An agent that was killed halfway leaves nothing that the next one stumbles over."""
    (dev / ".gpu-agent-nvidia-uvm").write_text("")
    assert make_nodes(str(tmp_path), [UVM], replace=False).failed == ()
    assert os.listdir(dev) == ["nvidia-uvm"]


def test_char_links(dev: Path, tmp_path: Path) -> None:
    """Each node has its /dev/char link; a wrong or old one is put right, another file stays."""
    make_nodes(str(tmp_path), [UVM, CAP], replace=False)
    (dev / "char").mkdir()
    (dev / "char/511:0").symlink_to("../null")
    (dev / "char/510:0").symlink_to("../nvidia-uvm")
    (dev / "char/1:3").symlink_to("../null")
    made, failed = link_nodes(str(tmp_path), read_nodes(str(tmp_path)))
    assert failed == ()
    assert len(made) == 3
    links = {p.name: os.readlink(p) for p in (dev / "char").iterdir()}
    assert links == {
        "1:3": "../null",
        "240:3": "../nvidia-caps/nvidia-cap3",
        "511:0": "../nvidia-uvm",
    }
    assert link_nodes(str(tmp_path), read_nodes(str(tmp_path))) == ((), ())


def test_char_link_that_is_a_file(dev: Path, tmp_path: Path) -> None:
    """A plain file in a link's place is named and stays."""
    make_nodes(str(tmp_path), [UVM], replace=False)
    (dev / "char").mkdir()
    (dev / "char/511:0").write_text("mine")
    made, failed = link_nodes(str(tmp_path), read_nodes(str(tmp_path)))
    assert (made, len(failed)) == ((), 1)
    assert (dev / "char/511:0").read_text() == "mine"


class TestHost:
    """A simulated host that has lost its nodes."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """The host; its /dev keeps only what is no node."""
        host = simhost.build(HOSTS / "a100-mig", tmp_path / "root", real_numbers=True)
        for node in host.nodes:
            os.unlink(node.source)
        return host.root

    def read(self, root: Path, policy: Policy = "replace", *, makes: bool = True) -> Inventory:
        """One reading as the daemon does it, or as a command does."""
        chosen = replace(settings(root, nvml=False), device_nodes=policy)
        return anyio.run(Host(chosen, makes_nodes=makes).read)

    def test_daemon_makes_them(self, root: Path) -> None:
        """The first reading already gives a usable host, and says what was made (B111)."""
        before = anyio.run(read_inventory, settings(root, nvml=False))
        assert before.state is DriverState.STARTING
        inventory = self.read(root)
        assert inventory.state is DriverState.READY
        assert any(n.startswith("nodes: /dev/nvidia-uvm: made as") for n in inventory.notes)
        assert all(m.gi_node and m.ci_node for g in inventory.gpus for m in g.migs)
        assert os.readlink(root / "dev/char/195:255") == "../nvidiactl"

    def test_readers_make_nothing(self, root: Path) -> None:
        """A command that reads the host, and the setting `leave`, change nothing."""
        before = sorted(root.rglob("dev/**/*"))
        self.read(root, makes=False)
        self.read(root, "leave")
        assert sorted(root.rglob("dev/**/*")) == before

    def test_somebody_elses_nodes(self, root: Path) -> None:
        """With ModifyDeviceFiles 0 no node is made; the state names what is missing."""
        params = root / "proc/driver/nvidia/params"
        text = params.read_text()
        params.write_text(text.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"))
        inventory = self.read(root)
        assert inventory.state is DriverState.STARTING
        assert "/dev/nvidiactl: missing" in (inventory.reason or "")
        assert read_nodes(str(root)) == ()

    def test_old_major(self, root: Path) -> None:
        """Majors that moved with a reload: replaced or, with `make`, named and left."""
        old = root / "dev/nvidia-uvm"
        os.mknod(old, stat.S_IFCHR | 0o666, os.makedev(400, 0))
        inventory = self.read(root, "make")
        assert inventory.state is DriverState.STARTING
        assert any("not made: a node with another number" in n for n in inventory.notes)
        assert os.major(old.lstat().st_rdev) == 400
        assert self.read(root).state is DriverState.READY
        assert os.major(old.lstat().st_rdev) != 400
