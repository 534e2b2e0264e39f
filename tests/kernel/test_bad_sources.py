"""The host moved on since the plan was staged: nothing stale is ever mounted."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.starts import NEEDS_CONTAINERS, Starter, asking, refused
from tests.kernel.trees import host_mounts, snapshot

pytestmark = NEEDS_CONTAINERS

LIBRARY = "usr/lib/x86_64-linux-gnu/libcuda.so.535.161.08"
VERSION = "proc/driver/nvidia/version"
NODE = "dev/nvidia2"


def grown(host: Path) -> None:
    """A library with another content."""
    with open(host / LIBRARY, "ab") as file:
        file.write(b"more")


def touched(host: Path) -> None:
    """A library of the same size, written again."""
    os.utime(host / LIBRARY, ns=(1, 1))


def copied(host: Path) -> None:
    """A library with the same content, size and time: another file all the same."""
    path = host / LIBRARY
    draft = Path(shutil.copy2(path, path.with_name("draft")))
    draft.rename(path)


def deleted(host: Path) -> None:
    """A library that is gone."""
    (host / LIBRARY).unlink()


def linked(host: Path) -> None:
    """A link to a file of the host in the library's place."""
    (host / LIBRARY).unlink()
    (host / LIBRARY).symlink_to("/etc/shadow")


def renumbered(host: Path) -> None:
    """A node that leads to another device."""
    remake(host / NODE, stat.S_IFCHR, os.makedev(1, 1))


def block_node(host: Path) -> None:
    """A block device with the node's number."""
    remake(host / NODE, stat.S_IFBLK, (host / NODE).stat().st_rdev)


def no_socket(host: Path) -> None:
    """A plain file where a daemon's socket was."""
    path = host / "run/nvidia-persistenced/socket"
    path.unlink()
    path.write_text("x")


def other_driver(host: Path) -> None:
    """Another driver is loaded."""
    path = host / VERSION
    path.write_text(path.read_text().replace("535.161.08", "550.54.14"))


def no_driver(host: Path) -> None:
    """No driver is loaded."""
    (host / VERSION).unlink()


def remake(path: Path, kind: int, number: int) -> None:
    """Another node of that name."""
    path.unlink()
    os.mknod(path, kind | 0o666, number)


CHANGES: list[tuple[Callable[[Path], None], str]] = [
    (grown, "has changed since it was staged"),
    (touched, "has changed since it was staged"),
    (copied, "has changed since it was staged"),
    (deleted, "is gone since it was staged"),
    (linked, "has another file type than when it was staged"),
    (renumbered, "has changed since it was staged"),
    (block_node, "has another file type than when it was staged"),
    (no_socket, "has another file type than when it was staged"),
    (other_driver, "driver 535.161.08 has been replaced"),
    (no_driver, "driver 535.161.08 is no longer loaded"),
]


@pytest.mark.parametrize(("change", "why"), CHANGES, ids=[c.__name__ for c, _ in CHANGES])
def test_changed_host(
    either: Starter, root: Path, change: Callable[[Path], None], why: str
) -> None:
    """With nobody who could plan anew the start is refused, and nothing has been made."""
    with either.prepared(root, env=asking("0")) as container:
        change(either.node.host.root)
        before = snapshot(root), host_mounts()
        line = refused(container.create(check=False))
        assert (snapshot(root), host_mounts()) == before
    assert why in line
    assert "no standalone planner" in line
    assert either.records()[-1][5] == "failed"


@pytest.mark.parametrize("change", [grown, copied, touched])
def test_changed_host_is_planned_anew(
    starter: Starter, root: Path, change: Callable[[Path], None]
) -> None:
    """With a standalone planner the container starts on what the host has now."""
    hooks = starter.hooks(standalone=True)
    with starter.prepared(root, env=asking("0"), hooks=hooks) as container:
        change(starter.node.host.root)
        container.create()
        container.start()
        said = container.exec("probe-dlopen", "libcuda.so.1=simhost_version").stdout
        assert said.endswith("libcuda.so.1 535.161.08\n")
    assert starter.records()[-1][4:6] == ["standalone", "ok"]


def test_daemon_that_was_restarted(starter: Starter, root: Path) -> None:
    """A socket that its daemon has made anew is no change of the host: the new one is given."""
    path = starter.node.host.root / "run/nvidia-persistenced/socket"
    with starter.prepared(root) as container, socket.socket(socket.AF_UNIX) as daemon:
        path.unlink()
        daemon.bind(str(path))
        container.create()
        container.start()
        told = container.exec("stat", "-c", "%i", "/run/nvidia-persistenced/socket").stdout
        assert told == f"{path.stat().st_ino}\n"
    assert starter.records()[-1][4:6] == ["staged", "ok"]


def test_driver_that_fits_no_library_is_refused(starter: Starter, root: Path) -> None:
    """A driver that was replaced while its old libraries are still there gives no mixed plan."""
    with starter.prepared(root, hooks=starter.hooks(standalone=True)) as container:
        other_driver(starter.node.host.root)
        before = snapshot(root)
        line = refused(container.create(check=False))
        assert snapshot(root) == before
    assert "driver-mismatch" in line or "550.54.14" in line
