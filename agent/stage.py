"""The run directory, write side: staged entries, plans, and the generation in force.

    <run_dir>/             root:root 0700, on tmpfs
        generation         the generation in force; a plan of another one is never replayed
        staged/<digest>    one entry a spec: a verdict, and which plan (digest of the spec)
        plans/<digest>     plans, shared by every container with the same request
        kept/<digest>      loader caches that hooks have merged; only cleared up here
        replays.log        the hooks' records; only read and rotated here
        lock, *.sock       one agent at a time, and where it listens

The agent is the only writer of entries and plans. Files appear whole (temporary name, then rename
in the same directory) and closed to everyone else. Nothing is synced to disk: the directory does
not outlive the machine, and a file that is lost only makes its hook ask. The writes are a few
microseconds of tmpfs, so they are made on the event loop.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from agent.errors import StageError
from agent.plan import Entry, Plan, digest, encode, encode_entry
from hooks.planfile import conflict
from hooks.stagedir import KEPT_LIMIT

GENERATION, STAGED, PLANS, KEPT, LOCK = "generation", "staged", "plans", "kept", "lock"


class Stage:
    """The run directory of one agent. Opening it makes what is missing and takes its lock.

    Raises StageError when it, or a directory above it, could have been made by someone else,
    when it cannot be written, and when another agent holds it.
    """

    def __init__(self, run_dir: str) -> None:
        self.path = Path(run_dir)
        with ExitStack() as undo:
            try:
                _check_ancestors(self.path)
                _own_directory(self.path)
                undo.callback(os.close, self._take_lock())
                self._dirs = {}
                for name in ("", STAGED, PLANS, KEPT):
                    fd = os.open(_own_directory(self.path / name), os.O_RDONLY | os.O_DIRECTORY)
                    undo.callback(os.close, fd)
                    self._dirs[name] = fd
            except OSError as e:
                raise StageError(str(e.filename or self.path), e.strerror or "unusable") from e
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Let another agent have the directory; what is staged stays."""
        self._undo.close()

    def generation(self) -> str | None:
        """The generation in force, None before the first."""
        try:
            return (self.path / GENERATION).read_text("ascii").strip()
        except (OSError, ValueError):
            return None

    def clear_generation(self) -> None:
        """Put no generation in force: every hook asks. Needs no room, unlike setting one."""
        self._remove("", GENERATION)

    def set_generation(self, generation: str) -> None:
        """Put `generation` in force: from now on hooks refuse plans of any other."""
        self._put("", GENERATION, f"{generation}\n".encode())

    def put_plan(self, plan: Plan) -> str:
        """Publish a plan; gives its digest, which is its name. Raises StageError, also for a plan
        in which one step's place is another's or lies below it."""
        if twice := conflict(plan.targets()):
            raise StageError(str(self.path), f"plan has two steps for {os.fsdecode(twice)}")
        content = encode(plan)
        name = digest(content)
        if self._size(PLANS, name) != len(content):
            self._put(PLANS, name, content)
        return name

    def has_plan(self, name: str) -> bool:
        """Whether the plan of that digest is published."""
        return self._size(PLANS, name) is not None

    def put_entry(self, spec_digest: str, entry: Entry) -> None:
        """Publish what is staged for the spec with this digest."""
        self._put(STAGED, spec_digest, encode_entry(entry))

    def withdraw(self, spec_digest: str) -> None:
        """Take an entry back; one that is gone already is fine."""
        self._remove(STAGED, spec_digest)

    def withdraw_plan(self, name: str) -> None:
        """Take a plan back, by its digest; one that is gone already is fine."""
        self._remove(PLANS, name)

    def entries(self) -> frozenset[str]:
        """The spec digests that have an entry."""
        return frozenset(os.listdir(self._dirs[STAGED]))

    def plans(self) -> frozenset[str]:
        """The digests of the published plans."""
        return frozenset(os.listdir(self._dirs[PLANS]))

    def sweep(self, entries: Iterable[str], plans: Iterable[str]) -> None:
        """Remove every entry and plan, and every left-over draft, that is not named.

        A directory in there is not ours and stays: no hook takes it for a file.
        """
        for directory, keep in ((STAGED, frozenset(entries)), (PLANS, frozenset(plans))):
            with os.scandir(self._dirs[directory]) as found:
                names = [f.name for f in found if not f.is_dir(follow_symlinks=False)]
            for name in names:
                if name not in keep:
                    self._remove(directory, name)

    def trim(self) -> None:
        """Make room for hooks' merged caches: of too many the older half goes."""
        names = os.listdir(self._dirs[KEPT])
        if len(names) <= KEPT_LIMIT // 2:
            return
        aged = []
        for name in names:
            with suppress(FileNotFoundError):  # a hook's draft that has its real name by now
                age = os.stat(name, dir_fd=self._dirs[KEPT], follow_symlinks=False).st_mtime_ns
                aged.append((age, name))
        for _, name in sorted(aged)[: len(aged) // 2]:
            self._remove(KEPT, name)

    def _put(self, directory: str, name: str, content: bytes) -> None:
        where = self._dirs[directory]
        draft = f".{name}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        try:
            fd = os.open(draft, flags, 0o600, dir_fd=where)
            try:
                with open(fd, "wb") as file:
                    file.write(content)
                os.rename(draft, name, src_dir_fd=where, dst_dir_fd=where)
            except BaseException:
                self._remove(directory, draft)
                raise
        except OSError as e:
            path = self.path / directory / name
            raise StageError(str(path), e.strerror or "cannot be written") from e

    def _remove(self, directory: str, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._dirs[directory])
        except FileNotFoundError:
            return
        except OSError as e:
            path = self.path / directory / name
            raise StageError(str(path), e.strerror or "cannot be removed") from e

    def _size(self, directory: str, name: str) -> int | None:
        """Bytes of a plain file, None if there is none."""
        try:
            found = os.stat(name, dir_fd=self._dirs[directory], follow_symlinks=False)
        except FileNotFoundError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def _take_lock(self) -> int:
        path = self.path / LOCK
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            holder = os.read(fd, 20).decode("ascii", "replace").strip()
            os.close(fd)
            raise StageError(str(self.path), f"another agent holds it (pid {holder})") from e
        # The pid is for people; a directory without room does not keep an agent from starting.
        with suppress(OSError):
            os.truncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        return fd


def _own_directory(path: Path) -> Path:
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise StageError(str(path), "not a directory")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StageError(str(path), "others than the agent's user can reach it")
    return path


def _check_ancestors(path: Path) -> None:
    """Whoever could rename a directory above could replace every plan."""
    for parent in path.parents:
        found, led = os.lstat(parent), os.stat(parent)
        loose = led.st_mode & 0o022 and not led.st_mode & stat.S_ISVTX
        if {found.st_uid, led.st_uid} - {0, os.geteuid()} or loose:
            raise StageError(str(parent), "others than root may change it")
        if stat.S_ISLNK(found.st_mode):
            _check_ancestors(parent.parent / os.readlink(parent) / path.name)
