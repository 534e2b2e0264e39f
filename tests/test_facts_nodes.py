"""Device nodes, found in a fake /dev."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agent.facts.nodes import read_nodes
from agent.facts.values import NodeFact
from tests.host_trees import DIRECTORY, Link, plant


def test_only_character_devices(tmp_path: Path) -> None:
    """A file, a directory and a link to a real device that carry a node's name are no nodes."""
    plant(tmp_path, {"dev/nvidia0": b"", "dev/nvidia1": DIRECTORY})
    plant(tmp_path, {"dev/nvidiactl": Link("/dev/null")})
    assert read_nodes(str(tmp_path)) == ()


def test_no_dev(tmp_path: Path) -> None:
    """A root without /dev has no nodes."""
    assert read_nodes(str(tmp_path)) == ()


def test_other_nodes_are_left_out() -> None:
    """Of this machine's own /dev nothing but NVIDIA, DRM and RDMA nodes is taken."""
    places = ("/dev/nvidia", "/dev/dri/", "/dev/gdrdrv", "/dev/infiniband/")
    assert [n for n in read_nodes("/") if not n.target.startswith(places)] == []


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
def test_nodes_with_their_numbers(tmp_path: Path) -> None:
    """Numbers, mode and owner are the node's own; both paths differ by the dev root."""
    numbers = {
        "dri/renderD128": (226, 128),
        "infiniband/rdma_cm": (10, 122),
        "infiniband/uverbs0": (231, 192),
        "nvidia-caps/nvidia-cap33": (241, 33),
        "nvidia-caps-imex-channels/channel0": (242, 0),
        "nvidia0": (195, 0),
        "nvidiactl": (195, 255),
    }
    for name, (major, minor) in numbers.items():
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFCHR, os.makedev(major, minor))
        os.chmod(path, 0o660)
        os.chown(path, 0, 44)
    os.mknod(tmp_path / "dev/null", stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(tmp_path / "dev/nvidia-caps/other", stat.S_IFCHR, os.makedev(241, 9))
    expected = {
        NodeFact(f"/dev/{name}", f"{tmp_path}/dev/{name}", *number, 0o660, 0, 44)
        for name, number in numbers.items()
    }
    assert set(read_nodes(str(tmp_path))) == expected
