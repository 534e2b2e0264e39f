"""Mounts for kernels without detached ones (RHEL 8's 4.18, Ubuntu 20.04's 5.4).

Bind, then remount with flags, by descriptor as procfs has it; the shape of `mounts.Detached`. In a
file of its own, because a start on a newer kernel never needs it.
"""

import posix

from hooks import syscalls
from hooks.errors import Changed, shown
from hooks.mounts import Source, Tmpfs, own_descriptors, take_away
from hooks.rootfs import Target
from hooks.syscalls import O_PATH


class Classic:
    """bind + remount, inside the container's namespace, through a checked /proc/self/fd."""

    name = "classic"

    def __init__(self) -> None:
        self._attached: list[bytes] = []
        self._descriptors = own_descriptors()

    def open(self, source: Source) -> None:
        """Check the source early; the mount itself needs it opened in the other namespace."""
        source.check(self._reach(source))

    def attach(self, source: Source, target: Target) -> None:
        """Bind the source on `target` and remount it with its flags.

        The container's mount namespace is still a copy of the host's here, so the source's
        path leads to the same file there; its identity is checked again on the descriptor.
        """
        fd = self._reach(source)
        source.check(fd)
        place = self._place(target.fd)
        syscalls.mount(self._place(fd), place, None, syscalls.MS_BIND, None)
        posix.close(fd)
        self._finish(target, source.options)

    def open_tmpfs(self, tmpfs: Tmpfs) -> None:
        """Nothing: here a tmpfs can only be made where it is mounted."""

    def attach_tmpfs(self, tmpfs: Tmpfs, target: Target) -> None:
        """Mount a tmpfs on `target`, fill it, and make it read-only."""
        bits = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        data = b"mode=0555,size=1m"
        syscalls.mount(b"tmpfs", self._place(target.fd), b"tmpfs", bits, data)
        tmpfs.fill(target.top())
        self._finish(target, bits | syscalls.MS_RDONLY)

    def undo(self) -> None:
        """Take the mounts away again, newest first."""
        take_away(self._attached, self._descriptors)
        self._attached.clear()

    def _reach(self, source: Source) -> int:
        flags = O_PATH | posix.O_NOFOLLOW | posix.O_CLOEXEC
        try:
            return posix.open(source.path, flags)
        except FileNotFoundError:
            raise Changed(f"{shown(source.path)} is gone since it was staged") from None

    def _place(self, fd: int) -> bytes:
        posix.fchdir(self._descriptors)
        return b"%d" % fd

    def _finish(self, target: Target, bits: int) -> None:
        # `target.fd` is what lies below the new mount; the flags belong to what is on top.
        place = self._place(target.top())
        self._attached.append(place)
        syscalls.mount(b"none", place, None, syscalls.MS_PRIVATE, None)
        flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | bits
        syscalls.mount(b"none", place, None, flags, None)
