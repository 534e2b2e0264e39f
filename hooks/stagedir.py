"""The agent's run directory, read side: entries, plans and the generation in force.

Whoever writes here is root on the node, so every file must be what only root could have made:
a plain file of root's, closed to everyone else, with one name. The hook writes two things: its
line in the replay log, and loader caches it has merged, for the next container of that image.
"""

import posix

from hooks import planfile
from hooks.errors import Untrusted, Unusable, shown
from hooks.rootfs import S_IFMT, S_IFREG, write_all
from hooks.state import digest
from hooks.syscalls import O_PATH

FILE_LIMIT = 4 << 20
LOG_LIMIT = 4 << 20
# Images decide how many there are and how large, so both are bounded: 32 MiB altogether.
KEPT_LIMIT = 128
KEPT_SIZE = 256 << 10
STICKY = 0o1000


class Stage:
    """The run directory, opened once. Raises Untrusted, or FileNotFoundError if it is absent."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        _check_ancestors(path)
        flags = O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
        self._fd = posix.open(path, flags)
        seen = posix.fstat(self._fd)
        if seen.st_uid != 0 or seen.st_mode & 0o077:
            raise Untrusted(f"{shown(path)}: not root's alone")

    def find(self, digest: str) -> "tuple[planfile.Entry, planfile.Plan | None]":
        """The entry staged for a spec, and its plan. Raises Unusable or Untrusted."""
        name = b"staged/" + digest.encode()
        try:
            entry = planfile.parse_entry(self._read(name))
        except ValueError as error:
            raise Unusable(f"staged entry: {error}") from None
        if entry.generation != self._read(b"generation").strip():
            raise Unusable("staged for an older generation")
        if entry.verdict != b"plan":
            return entry, None
        return entry, self._plan(entry)

    def _plan(self, entry: "planfile.Entry") -> "planfile.Plan":
        name = entry.detail
        if len(name) != 32 or not name.isalnum():
            raise Unusable("staged entry: names no plan")
        content = self._read(b"plans/" + name)
        if digest(content).encode() != name:
            raise Unusable("staged plan: content does not have its digest")
        try:
            plan = planfile.parse_plan(content)
        except ValueError as error:
            raise Unusable(f"staged plan: {error}") from None
        if plan.generation != entry.generation:
            raise Unusable("staged plan: of another generation than its entry")
        return plan

    def recall(self, name: str) -> bytes | None:
        """What a hook has kept under `name`. Raises Untrusted."""
        try:
            return self._read(b"kept/" + name.encode())
        except Unusable:
            return None

    def keep(self, name: str, content: bytes) -> None:
        """Keep a computed file for the next hook, if there is room; the agent clears up."""
        path = b"kept/" + name.encode()
        draft = b"%s.%d" % (path, posix.getpid())
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        try:
            count = len(posix.listdir(self.path + b"/kept"))
            if count >= KEPT_LIMIT or len(content) > KEPT_SIZE:
                return
            fd = posix.open(draft, flags, 0o600, dir_fd=self._fd)
            try:
                write_all(fd, content)
                posix.rename(draft, path, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            except OSError:
                posix.unlink(draft, dir_fd=self._fd)
            finally:
                posix.close(fd)
        except OSError:
            # Kept or not, this container has its file.
            return

    def record(self, line: bytes) -> None:
        """Add a line to the replay log; a log that is too long or cannot be written is left."""
        flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC
        try:
            fd = posix.open(b"replays.log", flags, 0o600, dir_fd=self._fd)
            if posix.fstat(fd).st_size < LOG_LIMIT:
                posix.write(fd, line)
            posix.close(fd)
        except OSError:
            # The container has started; a record that cannot be kept must not stop it.
            return

    def _read(self, name: bytes) -> bytes:
        flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
        try:
            fd = posix.open(name, flags, dir_fd=self._fd)
        except FileNotFoundError:
            raise Unusable(f"{shown(name)}: nothing staged") from None
        except OSError as error:
            raise Untrusted(f"{shown(name)}: {posix.strerror(error.errno or 0)}") from None
        try:
            seen = posix.fstat(fd)
            if seen.st_mode & S_IFMT != S_IFREG or seen.st_nlink != 1:
                raise Untrusted(f"{shown(name)}: not a plain file with one name")
            if seen.st_uid != 0 or seen.st_gid != 0 or seen.st_mode & 0o077:
                raise Untrusted(f"{shown(name)}: not root's alone")
            if seen.st_size > FILE_LIMIT:
                raise Untrusted(f"{shown(name)}: {seen.st_size} bytes are too many")
            # Not FILE_LIMIT: Python would map and unmap all of it for a few bytes.
            return posix.read(fd, seen.st_size)
        finally:
            posix.close(fd)


def _check_ancestors(path: bytes) -> None:
    """Nobody but root may be able to put another directory in the run directory's place."""
    parent = path.rstrip(b"/")
    while parent not in (b"", b"/"):
        parent = parent[: parent.rindex(b"/")]
        seen = posix.stat(parent or b"/")
        if seen.st_uid != 0 or (seen.st_mode & 0o022 and not seen.st_mode & STICKY):
            raise Untrusted(f"{shown(parent or b'/')}: others may change it")
