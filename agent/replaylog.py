"""The hooks' records: follow `<run_dir>/replays.log` and keep the last ones.

Each hook adds one line and knows nothing of us; a node without an agent goes on writing until
the file is full (the hook stops at 4 MiB). Lines are read once, in order. A line that cannot be
understood is counted, never believed.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from agent.replays import ReplayPath, ReplayRecord

LOG = "replays.log"
KEPT = 10_000
"""Records kept in memory, about 0.5 KiB each."""
ROTATE_AT = 1 << 20
"""Bytes after which the file is started anew; the hook's own limit is far above."""
READ_LIMIT = 1 << 22
"""Bytes taken in at once; what is more waits for the next reading."""
LINE_LIMIT = 1 << 16
"""Bytes after which a line that does not end is given up; a hook's has 3000 at most."""
VERSION = "1"


class ReplayLog:
    """The records of one run directory; `by_spec` finds a container's last one."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LOG
        self._offset = 0
        self._inode = 0
        self.records: deque[ReplayRecord] = deque(maxlen=KEPT)
        self.by_spec: dict[str, ReplayRecord] = {}
        self.unreadable = 0

    def read(self) -> int:
        """Take in what was written since the last call; gives the number of new records.

        Synchronous: a few lines of a file on tmpfs. What is no plain file is not read.
        """
        content = self._new_content()
        whole, newline, rest = content.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        count = self._take(whole) if newline else 0
        if len(rest) > LINE_LIMIT:
            self._offset += len(rest)
            self.unreadable += 1
        if self._offset > ROTATE_AT:
            self._rotate()
        return count

    def _new_content(self) -> bytes:
        try:
            with open(self._path, "rb", opener=_open) as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._offset:
                    self._inode, self._offset = found.st_ino, 0
                file.seek(self._offset)
                return file.read(READ_LIMIT)
        except OSError:
            # Mostly: no hook has run yet.
            return b""

    def forget(self, spec_digest: str) -> None:
        """The container is gone; its record stays in the statistics only."""
        self.by_spec.pop(spec_digest, None)

    def _take(self, lines: bytes) -> int:
        count = 0
        for line in lines.split(b"\n"):
            parsed = parse(line)
            if parsed is None:
                self.unreadable += 1
                continue
            spec, record = parsed
            self.records.append(record)
            self.by_spec[spec] = record
            # Dead containers' records must not pile up on a node that forgets nobody.
            if len(self.by_spec) > KEPT:
                del self.by_spec[next(iter(self.by_spec))]
            count += 1
        return count

    def _rotate(self) -> None:
        # A hook that has the file open adds its line to the old file and it is lost; all it
        # loses is one measurement.
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            # A read-only run directory; the file then grows to the hooks' own limit.
            return
        self._offset = 0


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def parse(line: bytes) -> tuple[str, ReplayRecord] | None:
    """(digest of the spec, record) of one line; None if it is not such a line."""
    fields = line.decode("utf-8", "replace").split("\t")
    if len(fields) != 8 or fields[0] != VERSION:
        return None
    _, at_ns, label, spec, way, outcome, phases, error = fields
    try:
        pairs = [part.split("=") for part in phases.split(",")]
        times = tuple((name, int(us) / 1000) for name, us in pairs)
        record = ReplayRecord(
            label=label,
            ok=outcome == "ok",
            path=ReplayPath(way),
            total_ms=sum(ms for _, ms in times),
            phases=times,
            error=error or None,
            at=int(at_ns) / 1e9,
        )
    except (ValueError, OverflowError):
        return None
    return spec, record
