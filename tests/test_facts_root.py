"""Paths below a driver root, and the guarded reading of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.facts.root import DriverRoot, open_regular, read_bytes, read_text
from tests.host_trees import DIRECTORY, Link, plant


def test_absolute_link_stays_inside(tmp_path: Path) -> None:
    """An absolute link in a driver root means a path of that root, not of the host."""
    plant(tmp_path, {"lib": Link("/usr/lib"), "usr/lib/a.so": Link("/opt/a"), "opt/a": b"x"})
    root = DriverRoot(str(tmp_path))
    assert root.resolve("/lib/a.so") == "/opt/a"
    assert root.host("/opt/a") == f"{tmp_path}/opt/a"


def test_dots_stop_at_the_root(tmp_path: Path) -> None:
    """No number of `..`, in a path or in a link, leads out of the root."""
    plant(tmp_path, {"etc/passwd": b"x", "up": Link("../../../../../../etc/passwd")})
    root = DriverRoot(str(tmp_path))
    assert root.resolve("/up") == "/etc/passwd"
    assert root.resolve("/../../etc/passwd") == "/etc/passwd"


@pytest.mark.parametrize("path", ["/loop", "/none", "/none/x", "/nul\0"])
def test_no_end_is_none(tmp_path: Path, path: str) -> None:
    """A link that leads round, a path that is not there and a NUL in a name give None."""
    plant(tmp_path, {"loop": Link("loop2"), "loop2": Link("/loop")})
    assert DriverRoot(str(tmp_path)).resolve(path) is None


def test_root_itself_resolves(tmp_path: Path) -> None:
    """The root's own path is /, however it is written."""
    assert DriverRoot(str(tmp_path)).resolve("//./..") == "/"
    assert DriverRoot("/").host("/etc") == "/etc"


def test_host_path_becomes_inside(tmp_path: Path) -> None:
    """A host path below the root loses the root, by its real and by its given name."""
    plant(tmp_path, {"real": DIRECTORY, "given": Link("real")})
    root = DriverRoot(f"{tmp_path}/given")
    assert root.inside(f"{tmp_path}/given/lib/firmware") == "/lib/firmware"
    assert root.inside(f"{tmp_path}/real/lib/firmware") == "/lib/firmware"
    assert root.inside("/lib/firmware") == "/lib/firmware"


def test_pipe_is_refused_unopened(tmp_path: Path) -> None:
    """A pipe where a file should be is refused at once; opening it would wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"), open_regular(f"{tmp_path}/pipe"):
        pass


@pytest.mark.parametrize("path", ["/dev/null", "/proc", "/nowhere"])
def test_no_file_is_no_text(path: str) -> None:
    """A device, a directory and nothing at all give no text and no error."""
    assert read_text(path) is None


def test_read_stops_at_the_limit(tmp_path: Path) -> None:
    """A file of exactly the limit is read, one byte more is refused."""
    (tmp_path / "f").write_bytes(b"12345")
    assert read_bytes(f"{tmp_path}/f", 5) == b"12345"
    with pytest.raises(OSError, match="File too large"):
        read_bytes(f"{tmp_path}/f", 4)


def test_procfs_text_is_read() -> None:
    """A file of procfs says it has 0 bytes and is read all the same."""
    assert "Character devices:" in (read_text("/proc/devices") or "")
