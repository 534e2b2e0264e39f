"""Races against the hook: a program that exchanges names, and a cell to run the hook many times.

A `Cell` is what createRuntime finds, without a runtime: a process with a mount namespace and a
cgroup of its own, and a staged bundle. The hook is the real one; each run gets a new process, so
its mounts go with it.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.containers.cgroup2 import is_unified
from tests.containers.runc import CGROUPS, remove_cgroup
from tests.containers.spec import make_spec
from tests.containers.staging import GPU_ENV, PYTHON
from tests.kernel.starts import LINE_LIMIT, Starter

SOURCE = Path(__file__).parent / "flipper.c"
TIMEOUT_S = 20

Flipper = Callable[[Path, Path], AbstractContextManager[None]]


def build_flipper(target: Path) -> Path:
    """Compile the program."""
    subprocess.run(["gcc", "-O1", "-o", str(target), str(SOURCE)], check=True, timeout=60)
    return target


@contextmanager
def flipping(program: Path, one: Path, other: Path) -> Iterator[None]:
    """Exchange `one` and `other` while the body runs; it must still be at it in the end."""
    command = [str(program), str(one), str(other)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
            assert process.poll() is None
        finally:
            process.kill()


@dataclass(frozen=True, slots=True)
class Run:
    """How one run of the hook ended; `mounts` are the lines it added to the cell's table."""

    status: int
    line: str
    mounts: list[str]


@dataclass(frozen=True, slots=True)
class Cell:
    """A bundle for `root` that is staged; `run` starts its hook in a new process's namespaces."""

    starter: Starter
    bundle: Path
    root: Path

    def run(self) -> Run:
        """One run. O6: it ends in time, with at most one clean line."""
        with joined_process() as pid:
            table = Path(f"/proc/{pid}/mountinfo")
            before = table.read_text().splitlines()
            state = {"id": "c1", "pid": pid, "bundle": str(self.bundle)}
            done = subprocess.run(
                self._command(),
                check=False,
                input=json.dumps(state).encode(),
                capture_output=True,
                timeout=TIMEOUT_S,
            )
            added = [line for line in table.read_text().splitlines() if line not in before]
        assert done.stdout == b""
        assert len(done.stderr) <= LINE_LIMIT
        line = done.stderr.decode()
        assert line.rstrip("\n").isprintable()
        assert bool(line) == bool(done.returncode)
        return Run(done.returncode, line, added)

    def _command(self) -> list[str]:
        node = self.starter.node
        hook = [PYTHON, "-I", "-S", "-B", str(node.hook), str(node.run_dir)]
        return [*self.starter.launcher, *hook]


def cell(starter: Starter, root: Path) -> Cell:
    """A staged bundle for `root`."""
    bundle = starter.work / "task/test/c1"
    bundle.mkdir(parents=True)
    spec = json.dumps(make_spec(root, ["true"], env=GPU_ENV)).encode()
    (bundle / "config.json").write_bytes(spec)
    starter.node.stage_spec(spec)
    return Cell(starter, bundle, root)


@contextmanager
def joined_process() -> Iterator[int]:
    """The pid of a process with a mount namespace and a device cgroup of its own."""
    hierarchy = CGROUPS if is_unified() else CGROUPS / "devices"
    cgroup = hierarchy / f"gpu-agent-test-{uuid.uuid4().hex[:12]}"
    cgroup.mkdir()
    command = ["unshare", "--mount", "--propagation", "private"]
    with subprocess.Popen(
        [*command, "sh", "-c", "echo there; exec sleep 60"], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"there\n"
            (cgroup / "cgroup.procs").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()
            process.wait()
            remove_cgroup(cgroup)
