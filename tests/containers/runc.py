"""Containers of the real runc or crun, in a state directory of their own.

A `Container` leaves nothing behind, however the test ends: no process, no cgroup, no state. Its
bundle has the path that containerd would give it, because the hook reads the namespace from it.
Output goes through files: a hook that writes more than a pipe holds must not hang the bench.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from tests.containers.spec import Json

TIMEOUT_S = 30
CGROUPS = Path("/sys/fs/cgroup")
TASKS = "io.containerd.runtime.v2.task"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended and what it wrote."""

    status: int
    stdout: str
    stderr: str


class RuncFailed(Exception):
    """A runc command that had to work did not."""

    def __init__(self, verb: str, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(f"runc {verb}: exit {outcome.status}: {outcome.stderr.strip()}")


class Container:
    """One container of `spec`; `create`, `start`, `exec`, `delete`, or all at once with `run`."""

    def __init__(
        self,
        work: Path,
        spec: Json,
        *,
        name: str | None = None,
        namespace: str = "test",
        runtime: Sequence[str] = ("runc",),
    ) -> None:
        self.name = name or f"c{uuid.uuid4().hex[:12]}"
        self.spec = spec
        self.bundle = work / TASKS / namespace / self.name
        self._program = (*runtime, "--root", str(work / "runc" / namespace))

    def __enter__(self) -> Container:
        self.bundle.mkdir(parents=True)
        (self.bundle / "config.json").write_text(json.dumps(self.spec))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._runc("delete", "--force", self.name)
        finally:
            for cgroup in self.cgroups():
                remove_cgroup(cgroup)
            shutil.rmtree(self.bundle)

    @property
    def pid(self) -> int:
        """The host's pid of the container's first process, after `create`."""
        return int((self.bundle / "init.pid").read_text())

    def cgroups(self) -> list[Path]:
        """The cgroup directories of this container that exist now, in every hierarchy."""
        name = self.spec["linux"]["cgroupsPath"].lstrip("/")
        return [d / name for d in (CGROUPS, *CGROUPS.glob("*/")) if (d / name).is_dir()]

    def create(self, *, check: bool = True) -> Outcome:
        """`runc create`, hooks included. Raises RuncFailed unless `check` is off."""
        pid_file = str(self.bundle / "init.pid")
        options = ("--bundle", str(self.bundle), "--pid-file", pid_file)
        return self._checked(check, "create", *options, self.name)

    def start(self) -> None:
        """Let the created process run; its output is added to that of `create`."""
        self._checked(True, "start", self.name)

    def exec(self, *args: str) -> Outcome:
        """Run `args` in the running container to its end."""
        return self._runc("exec", self.name, *args)

    def delete(self) -> None:
        """Kill and remove the container now."""
        self._checked(True, "delete", "--force", self.name)

    def run(self) -> Outcome:
        """Create, start, wait, delete: the exit status and output of the spec's process."""
        return self._runc("run", "--bundle", str(self.bundle), self.name)

    def _checked(self, check: bool, verb: str, *args: str) -> Outcome:
        outcome = self._runc(verb, *args)
        if check and outcome.status:
            raise RuncFailed(verb, outcome)
        return outcome

    def _runc(self, *args: str) -> Outcome:
        with self._file("stdout", args[0]) as out, self._file("stderr", args[0]) as err:
            # A session of its own: Ctrl-C at the terminal must not end it halfway.
            process = subprocess.Popen(
                [*self._program, *args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            status = _wait(process)
            out.seek(0)
            err.seek(0)
            return Outcome(status, _text(out), _text(err))

    def _file(self, stream: str, verb: str) -> IO[bytes]:
        return open(self.bundle / f"{verb}.{stream}", "w+b")


def remove_cgroup(cgroup: Path) -> None:
    """Kill what is left in `cgroup` and below, wait for its end, remove the directories."""
    for directory in _deepest_first(cgroup):
        for pid in (directory / "cgroup.procs").read_text().split():
            _kill(int(pid))
        directory.rmdir()


def _deepest_first(directory: Path) -> Iterator[Path]:
    for child in directory.iterdir():
        if child.is_dir():
            yield from _deepest_first(child)
    yield directory


def _wait(process: subprocess.Popen[bytes]) -> int:
    # Popen.wait with a timeout polls at 16, 32, 64 ms: useless where milliseconds are measured.
    ended = os.pidfd_open(process.pid)
    try:
        if not select.select([ended], [], [], TIMEOUT_S)[0]:
            process.kill()
    except BaseException:
        # A create that went on after an interrupt would make its container after the clean-up.
        select.select([ended], [], [], TIMEOUT_S)
        process.kill()
        process.wait()
        raise
    finally:
        os.close(ended)
    return process.wait()


def _kill(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        # A process has left its cgroup when its descriptor becomes readable.
        select.select([process], [], [], TIMEOUT_S)
    except ProcessLookupError:
        return
    finally:
        os.close(process)


def _text(stream: IO[bytes]) -> str:
    return stream.read().decode("utf-8", "replace")
