"""Resolve a path inside a root for kernels and sandboxes without openat2.

One component at a time, each opened without following links; links are read and expanded here.
It never falls back to handing a whole path to the kernel.
"""

import errno
import posix

from hooks import syscalls
from hooks.syscalls import O_PATH

S_IFMT, S_IFDIR, S_IFLNK = 0xF000, 0x4000, 0xA000
LINK_LIMIT = 40


def walk(root_fd: int, path: bytes, flags: int) -> int:
    """As openat2 with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS: `..` never leaves the root."""
    step = O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC
    todo = [part for part in path.split(b"/") if part not in (b"", b".")][::-1]
    stack = [posix.open(b".", step | posix.O_DIRECTORY, dir_fd=root_fd)]
    links = 0
    try:
        while todo:
            name = todo.pop()
            if name == b"..":
                if len(stack) > 1:
                    posix.close(stack.pop())
                continue
            fd = posix.open(name, step, dir_fd=stack[-1])
            if posix.fstat(fd).st_mode & S_IFMT != S_IFLNK:
                stack.append(fd)
                continue
            links += 1
            try:
                text = _ordinary_link(fd, links, name)
            finally:
                posix.close(fd)
            if text.startswith(b"/"):
                while len(stack) > 1:
                    posix.close(stack.pop())
            todo += [part for part in text.split(b"/") if part not in (b"", b".")][::-1]
        return _reopen(stack[-1], flags)
    finally:
        for fd in stack:
            posix.close(fd)


def _ordinary_link(fd: int, links: int, name: bytes) -> bytes:
    # procfs links are magic: their text says one thing and following them does another.
    if links > LINK_LIMIT or syscalls.fs_magic(fd) == syscalls.PROC_SUPER_MAGIC:
        raise OSError(errno.ELOOP, "link not followed", name)
    return posix.readlink(b"", dir_fd=fd)


def _reopen(fd: int, flags: int) -> int:
    if flags & O_PATH:
        copy = posix.dup(fd)
        if flags & posix.O_DIRECTORY and posix.fstat(fd).st_mode & S_IFMT != S_IFDIR:
            posix.close(copy)
            raise OSError(errno.ENOTDIR, "not a directory")
        return copy
    return posix.open(b"/proc/self/fd/%d" % fd, flags | posix.O_CLOEXEC)
