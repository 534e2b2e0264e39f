"""A container's root, reached by descriptor: find places in it, make mount points and links.

The tree was written by whoever made the image and may be changed while we look, so no path of it
is ever used as a string twice: every path is resolved inside the root to a descriptor, and from
then on the descriptor is used (rules R1-R5). Nothing in here mounts; nothing of the image is
read but the loader cache. Whatever is made is remembered and can be taken back.
"""

import errno
import posix

from hooks import syscalls
from hooks.syscalls import O_PATH

TYPE_CHECKING = False  # type checkers take it for True; `typing` costs 9 ms to import
if TYPE_CHECKING:
    from collections.abc import Sequence

S_IFMT, S_IFREG, S_IFDIR, S_IFLNK, S_IFCHR, S_IFSOCK = (
    0xF000,
    0x8000,
    0x4000,
    0xA000,
    0x2000,
    0xC000,
)
IN_ROOT = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
DIR_FLAGS = O_PATH | posix.O_DIRECTORY

# Debian's directories; every other distribution uses lib64 (or has a link of that name).
MULTIARCH = {
    "x86_64": (b"usr/lib/x86_64-linux-gnu", b"usr/lib/i386-linux-gnu"),
    "aarch64": (b"usr/lib/aarch64-linux-gnu", b"usr/lib/arm-linux-gnueabihf"),
}


class Target:
    """A place to mount on: `fd` is what gets covered, `name` in `directory` leads to it."""

    __slots__ = ("directory", "fd", "name")

    def __init__(self, fd: int, directory: int, name: bytes) -> None:
        self.fd = fd
        self.directory = directory
        self.name = name

    def top(self) -> int:
        """A descriptor for what lies on top here now: after a mount, the mount's root."""
        flags = O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC
        return posix.open(self.name, flags, dir_fd=self.directory)


class Root:
    """An opened container root. `fd` is the root itself, `volumes` are host paths bound into it.

    What replaces a file of the image waits under another name until `commit`, so that `undo`
    can take back everything that was made before.
    """

    def __init__(self, fd: int, volumes: "Sequence[bytes]" = ()) -> None:
        self.fd = fd
        self._mount = -1
        self._dirs: dict[bytes, int] = {}
        self._made: list[tuple[str, int, bytes, bytes]] = []
        self._waiting: list[tuple[int, bytes, bytes]] = []
        self._writable: set[int] = set()
        self._volumes = volumes
        self._shared: set[int] | None = None

    def find(self, path: bytes, flags: int = O_PATH) -> int | None:
        """A descriptor for `path` with links followed inside the root, or None if absent."""
        try:
            return self._open(path.lstrip(b"/") or b".", flags)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise

    def directory(self, path: bytes) -> int:
        """A descriptor for the directory `path`, made with its parents where missing."""
        path = path.strip(b"/")
        known = self._dirs.get(path)
        if known is not None:
            return known
        fd = self.find(path, DIR_FLAGS)
        if fd is None:
            parent, _, name = path.rpartition(b"/")
            fd = self._make_directory(self.directory(parent) if parent else self.fd, name)
        self._dirs[path] = fd
        return fd

    def mount_point(self, path: bytes, kind: int) -> Target:
        """A place that a bind of type `kind` can cover, made if absent.

        Files, sockets and device nodes are covered at a file; directories at a directory.
        """
        parent, _, name = path.rpartition(b"/")
        directory = self.directory(parent)
        if kind == S_IFDIR:
            return Target(self._directory_at(directory, name), directory, name)
        flags = posix.O_RDONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        try:
            fd = self._create(directory, name, flags)
        except FileExistsError:
            fd = self._existing(directory, name)
        return Target(fd, directory, name)

    def link(self, path: bytes, points_to: bytes) -> None:
        """Make `path` a symbolic link to `points_to`, replacing a file or link in its way."""
        parent, _, name = path.rpartition(b"/")
        directory = self.directory(parent)
        try:
            self._may_create(directory, path)
        except OSError:
            # The host's own /dev, bound as it is, has the very link.
            if _leads(directory, name) == points_to:
                return
            raise
        try:
            posix.symlink(points_to, name, dir_fd=directory)
            self._made.append(("file", directory, name, b""))
            return
        except FileExistsError:
            old = self._link_text(directory, name)
        if old == points_to:
            return
        draft = _draft(name)
        if old is None:
            _refuse_directory(directory, name)
        posix.symlink(points_to, draft, dir_fd=directory)
        if old is None:
            self._waiting.append((directory, draft, name))
        else:
            self._replace_link(directory, draft, name, old)

    def write(self, path: bytes, content: bytes) -> None:
        """Replace the file `path` as a whole: a temporary name, and a rename at `commit`."""
        parent, _, name = path.rpartition(b"/")
        directory = self.directory(parent)
        self._may_create(directory, path)
        draft = _draft(name)
        _refuse_directory(directory, name)
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        fd = posix.open(draft, flags, 0o644, dir_fd=directory)
        self._waiting.append((directory, draft, name))
        try:
            write_all(fd, content)
        finally:
            posix.close(fd)

    def commit(self) -> None:
        """Replace the image's own files; there is no undo of this, so it comes last."""
        while self._waiting:
            directory, draft, name = self._waiting[-1]
            posix.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
            self._waiting.pop()

    def undo(self) -> None:
        """Take back everything made, newest first; what cannot be taken back stays."""
        for directory, draft, _ in self._waiting:
            self._made.append(("file", directory, draft, b""))
        self._waiting.clear()
        for kind, directory, name, old in reversed(self._made):
            try:
                if kind == "directory":
                    posix.rmdir(name, dir_fd=directory)
                elif kind == "link":
                    draft = _draft(name)
                    posix.symlink(old, draft, dir_fd=directory)
                    posix.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
                else:
                    posix.unlink(name, dir_fd=directory)
            except OSError:
                # The start is refused already; its message must not be lost for a leftover.
                continue
        self._made.clear()

    def _open(self, path: bytes, flags: int) -> int:
        try:
            return syscalls.openat2(self.fd, path, flags, IN_ROOT)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
        # Only kernels and sandboxes without openat2 pay for the import.
        from hooks.walk import walk

        return walk(self.fd, path, flags)

    def _directory_at(self, parent: int, name: bytes) -> int:
        try:
            flags = DIR_FLAGS | posix.O_NOFOLLOW | posix.O_CLOEXEC
            return posix.open(name, flags, dir_fd=parent)
        except FileNotFoundError:
            return self._make_directory(parent, name)

    def _make_directory(self, parent: int, name: bytes) -> int:
        self._may_create(parent, name)
        try:
            posix.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            # A link that leads nowhere: following it could make directories anywhere.
            raise OSError(errno.ENOTDIR, "no directory in the image", name) from None
        self._made.append(("directory", parent, name, b""))
        return posix.open(name, DIR_FLAGS | posix.O_NOFOLLOW | posix.O_CLOEXEC, dir_fd=parent)

    def _create(self, directory: int, name: bytes, flags: int) -> int:
        try:
            self._may_create(directory, name)
        except OSError:
            # A volume's own file can be covered; nothing is made or replaced there.
            covered = self._file_at(directory, name)
            if covered is None:
                raise
            return covered
        fd = posix.open(name, flags, 0o644, dir_fd=directory)
        self._made.append(("file", directory, name, b""))
        return fd

    def _file_at(self, directory: int, name: bytes) -> int | None:
        """A descriptor for a file, node or socket; None for a link and for nothing at all."""
        try:
            fd = posix.open(name, O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            return None
        kind = posix.fstat(fd).st_mode & S_IFMT
        if kind in (S_IFREG, S_IFCHR, S_IFSOCK):
            return fd
        posix.close(fd)
        if kind != S_IFLNK:
            raise OSError(errno.EISDIR, "not a file in the image", name)
        return None

    def _existing(self, directory: int, name: bytes) -> int:
        there = self._file_at(directory, name)
        if there is not None:
            return there
        # A link of the image where our file belongs: an empty file takes its place.
        old = posix.readlink(name, dir_fd=directory)
        draft = _draft(name)
        flags = posix.O_RDONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        fd = posix.open(draft, flags, 0o644, dir_fd=directory)
        self._replace_link(directory, draft, name, old)
        return fd

    def _replace_link(self, directory: int, draft: bytes, name: bytes, old: bytes) -> None:
        """Put `draft` in the place of the link `name`, whose text is `old`."""
        self._made.append(("file", directory, draft, b""))
        posix.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
        self._made[-1] = ("link", directory, name, old)

    def _link_text(self, directory: int, name: bytes) -> bytes | None:
        try:
            return posix.readlink(name, dir_fd=directory)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise

    def owns(self, fd: int) -> bool:
        """Whether `fd` lies on the root's own mount, and on no volume, procfs or sysfs (R4)."""
        if self._mount < 0:
            self._mount = syscalls.mount_id(self.fd)
        return syscalls.mount_id(fd) == self._mount

    def _may_create(self, directory: int, what: bytes) -> None:
        """A volume of the user's belongs to the user: nothing is made on it (R4)."""
        if directory in self._writable:
            return
        if not self.owns(directory) and not self._is_own_tmpfs(directory):
            raise OSError(errno.EXDEV, "place lies on a volume, not in the image", what)
        self._writable.add(directory)

    def _is_own_tmpfs(self, directory: int) -> bool:
        """Whether it lies on a tmpfs that the runtime made for this container alone.

        A tmpfs of the host that is bound here, an emptyDir in memory, is the user's.
        """
        if syscalls.fs_magic(directory) != syscalls.TMPFS_MAGIC:
            return False
        if self._shared is None:
            self._shared = {device for path in self._volumes for device in _device(path)}
        return posix.fstat(directory).st_dev not in self._shared


def layout(root: Root, machine: str) -> dict[bytes, bytes]:
    """The image's directories for `libs` and `libs32`, absolute container paths."""
    libs, libs32 = MULTIARCH.get(machine, (b"usr/lib64", b"usr/lib"))
    if root.find(b"etc/debian_version") is None and (
        root.find(libs) is None or root.find(b"usr/lib64") is not None
    ):
        # musl's loader searches /usr/lib by itself.
        musl = root.find(b"lib/ld-musl-%s.so.1" % machine.encode()) is not None
        libs = b"usr/lib" if musl else b"usr/lib64"
        libs32 = b"usr/lib32" if root.find(b"usr/lib32") is not None else b"usr/lib"
    return {b"libs": b"/" + libs, b"libs32": b"/" + libs32, b"abs": b""}


def _leads(directory: int, name: bytes) -> bytes | None:
    """Where a link leads; None for anything else."""
    try:
        return posix.readlink(name, dir_fd=directory)
    except OSError:
        return None


def _device(path: bytes) -> "tuple[int, ...]":
    """The file system of a host path, if the path still leads anywhere."""
    try:
        return (posix.stat(path).st_dev,)
    except OSError:
        return ()


def _refuse_directory(directory: int, name: bytes) -> None:
    """Found early: a rename onto a directory would fail when there is no undo any more."""
    try:
        kind = posix.lstat(name, dir_fd=directory).st_mode & S_IFMT
    except FileNotFoundError:
        return
    if kind == S_IFDIR:
        raise OSError(errno.EISDIR, "a directory of the image is in the way", name)


def _draft(name: bytes) -> bytes:
    return b".%s.gpu-agent-%d" % (name[:200], posix.getpid())


def write_all(fd: int, content: bytes) -> None:
    """All of `content` to `fd`, however little a write takes."""
    view = memoryview(content)
    while view:
        view = view[posix.write(fd, view) :]
