"""Where the host's parts are, and how a path below the driver root is followed.

A driver root need not be `/`: a driver container has its own tree, whose absolute links mean
paths of that tree. Every link is therefore followed here, inside the root. Files are opened only
when they are regular, without blocking, and never read whole beyond a limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from agent.facts.values import FileId

LINK_LIMIT = 40
"""Links followed for one path, as in the kernel."""

TEXT_LIMIT = 64 * 1024
"""Bytes read of a text file of procfs or sysfs."""


@dataclass(frozen=True, slots=True)
class HostRoots:
    """The host's directories. `dev` lies below `dev_root`; procfs and sysfs are named whole.

    `library_dirs` are searched for the driver's libraries first; they are paths below
    `driver_root`.
    """

    driver_root: str = "/"
    dev_root: str = "/"
    proc_root: str = "/proc"
    sys_root: str = "/sys"
    library_dirs: tuple[str, ...] = ()


class DriverRoot:
    """One root directory; its paths are absolute and mean places below it.

    It remembers the links it saw, so one object serves one reading of the host.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        self._spelled = os.path.abspath(path)
        self._links: dict[str, str | None] = {}

    def host(self, inside: str) -> str:
        """The host path of a path inside this root."""
        return inside if self.path == "/" else self.path + inside

    def inside(self, host_path: str) -> str:
        """A host path as a path of this root; one from elsewhere is taken as inside already."""
        for root in (self.path, self._spelled):
            if root != "/" and host_path.startswith(root + "/"):
                return host_path.removeprefix(root)
        return host_path

    def resolve(self, inside: str) -> str | None:
        """`inside` with every link followed inside this root, or None if nothing is there."""
        todo = inside.split("/")[::-1]
        done = ""
        budget = LINK_LIMIT
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            target = self._link(f"{done}/{part}")
            if target is None or budget < 0:
                return None
            if not target:
                done = f"{done}/{part}"
                continue
            budget -= 1
            if target.startswith("/"):
                done = ""
            todo += target.split("/")[::-1]
        return done or "/"

    def is_link(self, inside: str) -> bool:
        """Whether the last part of `inside` is a symbolic link."""
        return bool(self._link(inside))

    def _link(self, inside: str) -> str | None:
        """A link's text, "" for what is no link, None for what is not there."""
        if inside not in self._links:
            try:
                self._links[inside] = os.readlink(self.host(inside))
            except OSError as e:
                self._links[inside] = "" if e.errno == errno.EINVAL else None
            except ValueError:  # a NUL in a name that came out of a hostile loader cache
                self._links[inside] = None
        return self._links[inside]


def list_names(directory: str) -> list[str]:
    """The sorted names in a host directory; empty if it cannot be read."""
    try:
        return sorted(os.listdir(directory))
    except (OSError, ValueError):
        return []


def read_bytes(path: str, limit: int) -> bytes:
    """A host file's content, at most `limit` bytes; OSError if absent, not regular or larger."""
    with open_regular(path) as (fd, _):
        data = bytearray()
        # Files of procfs say size 0, so the end is where a read gives nothing.
        while chunk := os.read(fd, min(limit + 1 - len(data), 1 << 20)):
            data += chunk
            if len(data) > limit:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return bytes(data)


def read_text(path: str, limit: int = TEXT_LIMIT) -> str | None:
    """A host file's text, or None if it cannot be read; odd bytes become U+FFFD."""
    try:
        return read_bytes(path, limit).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def open_regular(path: str) -> Iterator[tuple[int, FileId]]:
    """A descriptor of a regular host file and its identity; OSError for anything else.

    `path` must have its links resolved. The type is asked for before the file is opened, since
    opening a device or a pipe can act or wait.
    """
    _require_regular(os.lstat(path), path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        _require_regular(found, path)
        yield fd, identity(path, found)
    finally:
        os.close(fd)


def identity(path: str, found: os.stat_result) -> FileId:
    """The identity of a file from what stat said of it."""
    return FileId(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _require_regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
