"""Linux system calls that Python 3.11 has no function for, on file descriptors.

Each call is a few lines, raises OSError with errno and the thing it was about, and decides
nothing: which mounts, which flags and in which order is for its callers.
"""

import errno
import posix
import sys

from hooks.cfunction import buffer, function, get_errno

TYPE_CHECKING = False  # type checkers take it for True; `typing` costs 9 ms to import
if TYPE_CHECKING:
    from typing import Any

_syscall = function("syscall")

# These numbers are the same on every architecture (all newer calls are); bpf is older.
OPEN_TREE, MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT = 428, 429, 430, 431, 432
OPENAT2, MOUNT_SETATTR, OPEN_TREE_ATTR = 437, 442, 467
BPF = {"x86_64": 321, "aarch64": 280}
STATX = {"x86_64": 332, "aarch64": 291}
STATX_MNT_ID = 0x1000

O_PATH = 0o10000000
AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, AT_FDCWD = 0x1000, 0x100, -100
OPEN_TREE_CLONE = 1
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT = 2, 4, 8, 16
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x40
FSCONFIG_SET_STRING, FSCONFIG_CMD_CREATE = 1, 6
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_PRIVATE = 32, 4096, 1 << 18
MNT_DETACH = 2
PROC_SUPER_MAGIC, TMPFS_MAGIC = 0x9FA0, 0x01021994
CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC = 0x27E0EB, 0x63677270

# MOUNT_ATTR_RDONLY, _NOSUID, _NODEV and _NOEXEC happen to equal the old MS_ bits.
MOUNT_BITS = {b"ro": MS_RDONLY, b"nosuid": MS_NOSUID, b"nodev": MS_NODEV, b"noexec": MS_NOEXEC}


def mount_bits(options: bytes) -> int:
    """`ro,nosuid,...` as flag bits, for mount_setattr and for mount alike."""
    bits = 0
    for option in options.split(b","):
        bits |= MOUNT_BITS[option]
    return bits


def _check(result: int, call: str, what: bytes | str | None) -> int:
    if result < 0:
        code = get_errno()
        raise OSError(code, f"{call}: {posix.strerror(code)}", what)
    return result


def _words(*values: int) -> bytes:
    """A struct of 64-bit fields. Importing `_struct` for the two there are costs 40 us."""
    return b"".join([value.to_bytes(8, sys.byteorder) for value in values])


def openat2(dir_fd: int, path: bytes, flags: int, resolve: int) -> int:
    """A descriptor for `path` below `dir_fd`; a rename during the walk is tried again."""
    how = _words(flags | posix.O_CLOEXEC, 0, resolve)
    for _ in range(128):
        fd = _syscall(OPENAT2, dir_fd, path, how, len(how))
        if fd >= 0 or get_errno() != errno.EAGAIN:
            break
    return _check(fd, "openat2", path)


def open_tree(dir_fd: int, path: bytes, flags: int) -> int:
    """A detached copy of the mount at `path` (OPEN_TREE_CLONE), not following a last link."""
    flags |= posix.O_CLOEXEC | OPEN_TREE_CLONE
    return _check(_syscall(OPEN_TREE, dir_fd, path, flags), "open_tree", path)


def open_tree_attr(dir_fd: int, path: bytes, flags: int, bits: int) -> int:
    """open_tree and mount_setattr in one call (Linux 6.15)."""
    flags |= posix.O_CLOEXEC | OPEN_TREE_CLONE
    attr = _words(bits, 0, MS_PRIVATE, 0)
    result = _syscall(OPEN_TREE_ATTR, dir_fd, path, flags, attr, len(attr))
    return _check(result, "open_tree_attr", path)


def mount_setattr(fd: int, bits: int) -> None:
    """Set mount flags and private propagation on a mount that nobody sees yet."""
    attr = _words(bits, 0, MS_PRIVATE, 0)
    result = _syscall(MOUNT_SETATTR, fd, b"", AT_EMPTY_PATH, attr, len(attr))
    _check(result, "mount_setattr", None)


def move_mount(fd: int, target_fd: int) -> None:
    """Attach a detached mount on top of what `target_fd` refers to."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _check(_syscall(MOVE_MOUNT, fd, b"", target_fd, b"", flags), "move_mount", None)


def detached_tmpfs(options: dict[bytes, bytes]) -> int:
    """A new tmpfs, attached nowhere; it vanishes with its last descriptor."""
    context = _check(_syscall(FSOPEN, b"tmpfs", 1), "fsopen", b"tmpfs")
    try:
        for key, value in options.items():
            result = _syscall(FSCONFIG, context, FSCONFIG_SET_STRING, key, value, 0)
            _check(result, "fsconfig", key)
        _check(_syscall(FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0), "fsconfig", None)
        return _check(_syscall(FSMOUNT, context, 1, 0), "fsmount", b"tmpfs")
    finally:
        posix.close(context)


def mount(source: bytes, target: bytes, kind: bytes | None, flags: int, data: bytes | None) -> None:
    """mount(2), for kernels without detached mounts."""
    _check(function("mount")(source, target, kind, flags, data), "mount", target)


def umount(target: bytes) -> None:
    """umount2(2) with MNT_DETACH."""
    _check(function("umount2")(target, MNT_DETACH), "umount2", target)


def setns(fd: int) -> None:
    """Join the mount namespace `fd`; only a process with one thread can."""
    _check(_setns(fd, CLONE_NEWNS), "setns", None)


def set_fs_owner(uid: int, gid: int) -> None:
    """Own newly made files as (uid, gid): inodes of a user namespace must have mapped owners."""
    _setfsgid(gid)
    _setfsuid(uid)
    # The calls report no error; asking with an invalid id returns the one in force.
    if _setfsuid(-1) != uid:
        raise OSError(errno.EPERM, "setfsuid refused", str(uid))


def fs_magic(fd: int) -> int:
    """The type of the file system that `fd` lies on (statfs f_type)."""
    answer = buffer(120)
    _check(_fstatfs(fd, answer), "fstatfs", None)
    return int.from_bytes(answer.raw[:8], sys.byteorder)


def mount_id(fd: int) -> int:
    """The id of the mount that `fd` was reached through: a bind of one directory has its own."""
    if _syscall(_statx_call, fd, b"", AT_EMPTY_PATH, STATX_MNT_ID, _statx) == 0:
        raw = _statx.raw
        # Kernels before 5.8 answer without this part.
        if int.from_bytes(raw[:4], sys.byteorder) & STATX_MNT_ID:
            return int.from_bytes(raw[144:152], sys.byteorder)
    with open(b"/proc/self/fdinfo/%d" % fd, "rb") as file:
        found = [line for line in file if line.startswith(b"mnt_id:")]
    return int(found[0].split()[1])


def bpf(command: int, attributes: "Any") -> int:
    """bpf(2); `attributes` is a buffer(), which the kernel may write to."""
    number = BPF.get(posix.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "bpf: unknown architecture", posix.uname().machine)
    return _check(_syscall(number, command, attributes, len(attributes)), "bpf", str(command))


_statx = buffer(256)
_statx_call = STATX.get(posix.uname().machine, -1)
_setns = function("setns")
_setfsuid = function("setfsuid")
_setfsgid = function("setfsgid")
_fstatfs = function("fstatfs")
