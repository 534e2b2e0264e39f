"""Mount host files into another mount namespace: two ways with one shape.

`Detached` copies each source to a mount that nobody sees (open_tree), gives it its flags and
private propagation there, and attaches it finished. `classic.Classic` is for kernels that lack
one of those calls. Both check a source's identity on the very descriptor they mount. Neither
knows where sources come from or why; sources are always the plan's, never the image's (R6).
"""

import errno
import posix

from hooks import syscalls
from hooks.errors import Changed, shown
from hooks.rootfs import S_IFCHR, S_IFDIR, S_IFMT, S_IFREG, S_IFSOCK, Target
from hooks.syscalls import O_PATH

TYPE_CHECKING = False  # type checkers take it for True; `typing` costs 9 ms to import
if TYPE_CHECKING:
    from hooks.classic import Classic

KINDS = {b"socket": S_IFSOCK, b"dir": S_IFDIR}


class Source:
    """What to mount: `expected` is (dev, ino, size, mtime_ns) of a file, (major, minor) of a
    node, and empty where only the type counts. `fd` is set by a mounter's `open`."""

    __slots__ = ("expected", "fd", "kind", "options", "path")

    def __init__(self, path: bytes, kind: int, options: bytes, expected: tuple[int, ...]) -> None:
        self.path = path
        self.kind = kind
        self.options = syscalls.mount_bits(options)
        self.expected = expected
        self.fd = -1

    def check(self, fd: int) -> None:
        """Raise Changed unless `fd` is what the plan was made from."""
        seen = posix.fstat(fd)
        if seen.st_mode & S_IFMT != self.kind:
            raise Changed(f"{shown(self.path)} has another file type than when it was staged")
        if self.kind == S_IFREG:
            found = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)
        elif self.kind == S_IFCHR:
            found = (posix.major(seen.st_rdev), posix.minor(seen.st_rdev))  # type: ignore[assignment]
        else:
            return
        if found != self.expected:
            raise Changed(f"{shown(self.path)} has changed since it was staged")


class Detached:
    """Mounts made in the host's namespace and attached, finished, in the container's."""

    name = "detached"

    def __init__(self) -> None:
        self._attached: list[int] = []
        self._at_once = True
        self._descriptors = own_descriptors()

    def open(self, source: Source) -> None:
        """Make the detached mount; called before the container's namespace is joined."""
        try:
            source.fd = self._copy(source)
        except FileNotFoundError:
            raise Changed(f"{shown(source.path)} is gone since it was staged") from None
        source.check(source.fd)

    def _copy(self, source: Source) -> int:
        """The source as a mount with its flags; one call where the kernel has it."""
        where = (syscalls.AT_FDCWD, source.path, syscalls.AT_SYMLINK_NOFOLLOW)
        if self._at_once:
            try:
                return syscalls.open_tree_attr(*where, source.options)
            except OSError as error:
                # Before Linux 6.15, and where a seccomp filter does not know the call.
                if error.errno not in (errno.ENOSYS, errno.EPERM):
                    raise
                self._at_once = False
        fd = syscalls.open_tree(*where)
        syscalls.mount_setattr(fd, source.options)
        return fd

    def attach(self, source: Source, target: Target) -> None:
        """Put the mount on `target`; called inside the container's namespace."""
        syscalls.move_mount(source.fd, target.fd)
        self._attached.append(source.fd)

    def open_tmpfs(self, tmpfs: "Tmpfs") -> None:
        """Make and fill the tmpfs, attached nowhere yet."""
        tmpfs.fill(syscalls.detached_tmpfs({b"mode": b"0555", b"size": b"1m"}))

    def attach_tmpfs(self, tmpfs: "Tmpfs", target: Target) -> None:
        """Put a filled tmpfs on `target`, read-only."""
        syscalls.mount_setattr(tmpfs.fd, syscalls.mount_bits(b"ro,nosuid,nodev,noexec"))
        syscalls.move_mount(tmpfs.fd, target.fd)
        self._attached.append(tmpfs.fd)

    def undo(self) -> None:
        """Take the mounts away again, newest first."""
        # The descriptor of a detached mount is its root, also after it was attached.
        take_away([b"%d" % fd for fd in self._attached], self._descriptors)
        self._attached.clear()


class Tmpfs:
    """What a tmpfs shall hold: (path, content) files, and empty directories.

    `fill` makes it below the root of a fresh mount; then `fd` is that root and `dirs` has every
    directory as a place to mount on.
    """

    def __init__(self, files: list[tuple[bytes, bytes]], directories: list[bytes]) -> None:
        self.fd = -1
        self.dirs: dict[bytes, Target] = {}
        self._files = files
        self._directories = directories

    def fill(self, fd: int) -> None:
        """Write it below `fd`."""
        self.fd = fd
        for path, content in self._files:
            parent, _, name = path.rpartition(b"/")
            flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC
            file = posix.open(name, flags, 0o444, dir_fd=self._directory(parent))
            posix.write(file, content)
            posix.close(file)
        for path in self._directories:
            self._directory(path)

    def _directory(self, path: bytes) -> int:
        if not path:
            return self.fd
        if path not in self.dirs:
            parent, _, name = path.rpartition(b"/")
            above = self._directory(parent)
            posix.mkdir(name, 0o555, dir_fd=above)
            flags = O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
            self.dirs[path] = Target(posix.open(name, flags, dir_fd=above), above, name)
        return self.dirs[path].fd


def mounter() -> "Detached | Classic":
    """The best way this kernel offers; probed with a call that changes nothing."""
    try:
        syscalls.mount_setattr(-1, 0)
    except OSError as error:
        # EBADF: the call exists (Linux 5.12), and with it all that `Detached` needs.
        if error.errno == errno.EBADF:
            return Detached()
        # Only older kernels pay for the import.
        from hooks.classic import Classic

        return Classic()
    raise AssertionError("mount_setattr accepted descriptor -1")


def own_descriptors() -> int:
    """/proc/self/fd, opened and checked before another namespace is joined (R8).

    mount(2) and umount(2) take paths only. From inside this directory a path is a bare number,
    whatever the namespace that was joined has at /proc.
    """
    fd = posix.open(b"/proc/self/fd", O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    if syscalls.fs_magic(fd) != syscalls.PROC_SUPER_MAGIC:
        raise OSError(errno.EINVAL, "/proc is not procfs")
    return fd


def take_away(mounts: list[bytes], descriptors: int) -> None:
    """Unmount these names in `descriptors`, the last one first."""
    if mounts:
        posix.fchdir(descriptors)
    for path in reversed(mounts):
        try:
            syscalls.umount(path)
        except OSError:
            # The start is refused already; its message must not be lost for a leftover.
            continue
