"""What must hold whatever an image does: the oracles O1 to O6 of the immunity suite.

O1 host untouched, O2 provenance of mounts, O3 no foreign code, O4 no leaked descriptor, O5 exact
environment, O6 bounded. Each looks at the host or at a trace of the hook's system calls, never at
what the hook says of itself.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

from tests.containers.image import DEBIAN
from tests.containers.runc import Container
from tests.kernel.starts import Starter, refused
from tests.kernel.trees import contents, host_mounts, snapshot

T = TypeVar("T")

STRACE = "/usr/bin/strace"
SECRET = "correct-horse-battery-staple"
SYSTEM = ("/usr/lib/", "/lib/", "/usr/bin/", "/lib64/")


def some(count: int, values: Sequence[T]) -> list[T | ParameterSet]:
    """Parameters: the first `count` by default, the others in the slow tests."""
    slow = (pytest.param(value, marks=pytest.mark.slow) for value in values[count:])
    return [*values[:count], *slow]


def make_canary(path: Path) -> Path:
    """A tree with every name that a hook could be led to make or replace."""
    for name in ("etc/ld.so.conf.d", "lib", "dev", "nvidia-persistenced", DEBIAN.libraries):
        (path / name).mkdir(parents=True)
    for name in ("file", "ld.so.cache", "etc/ld.so.cache", "dev/null"):
        (path / name).write_text("untouched")
    return path


@contextmanager
def host_untouched(*trees: Path) -> Iterator[None]:
    """O1: nothing below `trees` changes, not even a time, and no mount of the host does."""
    before = [snapshot(tree) for tree in trees], _mounts(trees[0].parent)
    yield
    assert [snapshot(tree) for tree in trees] == before[0]
    assert _mounts(trees[0].parent) == before[1]


def _mounts(work: Path) -> list[str]:
    """The host's mount table without what other tests mount in directories of their own."""
    points = [(line, Path(line.split(" ")[4])) for line in host_mounts()]
    temporary = Path(tempfile.gettempdir())
    return [
        line
        for line, point in points
        if point.is_relative_to(work) or not point.is_relative_to(temporary)
    ]


def clean_refusal(starter: Starter, root: Path, container: Container) -> str:
    """Create a container that must be refused: one clean line without the spec's secrets, and the
    root, the host and the run directory are as before."""
    run_dir = starter.node.run_dir
    before = contents(root), sorted(os.listdir(run_dir))
    with host_untouched(starter.node.host.root):
        line = refused(container.create(check=False))
    assert SECRET not in line
    assert contents(root) == before[0]
    assert set(os.listdir(run_dir)) - set(before[1]) <= {"replays.log"}
    return line


@dataclass(frozen=True, slots=True)
class Call:
    """One system call as strace writes it."""

    name: str
    arguments: str

    @property
    def strings(self) -> list[str]:
        """The quoted arguments."""
        return re.findall(r'"((?:[^"\\]|\\.)*)"', self.arguments)


@dataclass(frozen=True, slots=True)
class Traced:
    """A starter whose hooks are traced into `file`."""

    starter: Starter
    file: Path

    def calls(self) -> list[Call]:
        """Every call of the hook and its children, in order; the launcher's own come first."""
        lines = self.file.read_text("utf-8", "replace").splitlines()
        matches = (re.match(r"(?:\d+ +)?(\w+)\((.*)$", line) for line in lines)
        return [Call(found[1], found[2]) for found in matches if found]

    def after_joining(self) -> list[Call]:
        """What was called in the container's mount namespace."""
        made = self.calls()
        joined = [i for i, call in enumerate(made) if call.name == "setns"]
        assert len(joined) == 1
        return made[joined[0] + 1 :]


def traced(starter: Starter) -> Traced:
    """The same node with strace between runtime and hook; it passes its environment on."""
    file = starter.work / "trace"
    strace = (STRACE, "-f", "-y", "-v", "-s", "4096", "-o", str(file))
    return Traced(replace(starter, launcher=(*strace, *starter.launcher)), file)


def assert_no_foreign_code(seen: Traced) -> None:
    """O3: what was executed or mapped executable is the host's; the interpreter runs alone."""
    executed = [call.strings[0] for call in seen.calls() if call.name.startswith("execve")]
    launchers = {argument for argument in seen.starter.launcher if argument.startswith("/")}
    assert {*executed} - launchers == {"/usr/bin/python3"}
    mapped = [
        match[1]
        for call in seen.calls()
        if call.name == "mmap" and "PROT_EXEC" in call.arguments
        if (match := re.search(r"\d+<([^>]*)>", call.arguments))
    ]
    assert mapped
    assert [path for path in mapped if not path.startswith(SYSTEM)] == []


def environment(seen: Traced) -> list[str]:
    """O5: the environment with which the kernel started the interpreter."""
    for call in seen.calls():
        if call.name == "execve" and call.strings[0] == "/usr/bin/python3":
            listed = call.arguments.rpartition(", [")[2].partition("]")[0]
            return re.findall(r'"((?:[^"\\]|\\.)*)"', listed)
    raise AssertionError("no interpreter in the trace")
