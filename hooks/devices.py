"""The container's device rules: let it open exactly the granted character devices.

cgroup v1: one line a device into `devices.allow`. cgroup v2: see `devicefilter`. `m` is never
granted.
"""

import errno
import posix

from hooks import syscalls

Rule = tuple[int, int]


class Cgroup:
    """The opened device cgroup of a container; `version` is 1 or 2."""

    def __init__(self, process_fd: int) -> None:
        relative = _paths(process_fd)
        # The kernel lists a v1 hierarchy mounted anywhere; a runtime goes by what it sees here.
        if b"devices" in relative and not _unified():
            self.version = 1
            self._fd = _open_below(
                (b"/sys/fs/cgroup/devices",), relative[b"devices"], syscalls.CGROUP_SUPER_MAGIC
            )
        elif b"" in relative:
            self.version = 2
            roots = (b"/sys/fs/cgroup", b"/sys/fs/cgroup/unified")
            self._fd = _open_below(roots, relative[b""], syscalls.CGROUP2_SUPER_MAGIC)
        else:
            raise OSError(errno.ENOENT, "process has no device cgroup")

    def allow(self, rules: list[Rule]) -> None:
        """Grant read and write on every (major, minor), all together."""
        if self.version == 1:
            self._allow_v1(rules)
            return
        # In a file of its own: what one kind of host never needs costs it nothing.
        from hooks.devicefilter import allow

        allow(self._fd, rules)

    def _allow_v1(self, rules: list[Rule]) -> None:
        flags = posix.O_WRONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC
        fd = posix.open(b"devices.allow", flags, dir_fd=self._fd)
        for major, minor in rules:
            # The file takes one rule a write.
            posix.write(fd, b"c %d:%d rw" % (major, minor))
        posix.close(fd)


def _paths(process_fd: int) -> dict[bytes, bytes]:
    fd = posix.open(b"cgroup", posix.O_RDONLY | posix.O_CLOEXEC, dir_fd=process_fd)
    try:
        text = posix.read(fd, 65536)
    finally:
        posix.close(fd)
    paths = {}
    for line in text.splitlines():
        _, controllers, path = line.split(b":", 2)
        for controller in controllers.split(b","):
            paths[controller] = path
    return paths


def _open_below(roots: tuple[bytes, ...], path: bytes, magic: int) -> int:
    # Seen from a cgroup namespace, what lies outside of it begins with `..`: not ours to touch.
    if b".." in path.split(b"/"):
        raise OSError(errno.EPERM, "device cgroup lies outside of this namespace", path)
    for candidates in (lambda: roots, lambda: _mounted(magic)):
        for root in candidates():
            fd = _open_directory(root + path)
            if fd is None:
                continue
            if syscalls.fs_magic(fd) == magic:
                return fd
            posix.close(fd)
    raise OSError(errno.ENOENT, "no mounted device cgroup", path)


def _unified() -> bool:
    """Whether the v2 tree is mounted alone in the usual place."""
    fd = _open_directory(b"/sys/fs/cgroup")
    if fd is None:
        return False
    magic = syscalls.fs_magic(fd)
    posix.close(fd)
    return magic == syscalls.CGROUP2_SUPER_MAGIC


def _open_directory(path: bytes) -> int | None:
    flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        return posix.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _mounted(magic: int) -> list[bytes]:
    """Where the hierarchy is mounted; read only when it is not in its usual place."""
    kind = b"cgroup2" if magic == syscalls.CGROUP2_SUPER_MAGIC else b"cgroup"
    found = []
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            left, _, right = line.partition(b" - ")
            kind_found, _, options = right.split(b" ", 2)
            named = kind == b"cgroup2" or b"devices" in options.strip().split(b",")
            if kind_found == kind and named:
                found.append(left.split(b" ")[4])
    return found
