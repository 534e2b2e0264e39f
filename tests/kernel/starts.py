"""Starts of GPU containers: a simulated node, real runc, the compiled hook, all in one hand.

A `Starter` says under which kernel the hook believes to run: the real one, or one without
detached mounts and openat2. It stages as the agent would and decides nothing else.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agent.plan import Step, digest, encode
from tests.containers.image import missing_tools
from tests.containers.runc import Container, Outcome
from tests.containers.runtimes import Runtime
from tests.containers.spec import Json, make_spec
from tests.containers.staging import GPU_ENV, SimulatedNode

SOURCE = Path(__file__).parent / "old_kernel.c"
NEEDS_CONTAINERS = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="containers need root"),
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "all there"),
]
SLEEP = ("sleep", "60")
LINE_LIMIT = 1024
RUNC = Runtime("runc")


def asking(devices: str, capabilities: str = "compute,utility") -> tuple[str, ...]:
    """The environment of a container that asks for `devices` with `capabilities`."""
    return (
        f"NVIDIA_VISIBLE_DEVICES={devices}",
        f"NVIDIA_DRIVER_CAPABILITIES={capabilities}",
    )


@dataclass(frozen=True, slots=True)
class Starter:
    """Starts containers of `node` with `runtime`; `launcher` runs the hook as its arguments."""

    work: Path
    node: SimulatedNode
    launcher: tuple[str, ...] = ()
    runtime: Runtime = RUNC

    def hooks(self, *, standalone: bool = False) -> Json:
        """The `hooks` of a spec, by way of the launcher."""
        hooks = self.node.hooks(standalone=standalone)
        entry = hooks["createRuntime"][0]
        if self.launcher:
            entry["args"] = [*self.launcher, *entry["args"]]
            entry["path"] = self.launcher[0]
        return hooks

    @contextmanager
    def prepared(
        self,
        root: Path,
        *,
        args: Sequence[str] = SLEEP,
        env: Iterable[str] = GPU_ENV,
        hooks: Json | None = None,
        stage: bool = True,
        changes: Json | None = None,
        **options: Any,
    ) -> Iterator[Container]:
        """A bundle, staged unless `stage` is off; `changes` are put over the spec's own keys."""
        spec = make_spec(root, args, env=env, hooks=hooks or self.hooks(), **options)
        spec |= changes or {}
        with Container(self.work, spec, runtime=self.runtime.command) as container:
            if stage:
                self.node.stage_spec(config(container))
            yield container

    @contextmanager
    def started(self, root: Path, **options: Any) -> Iterator[Container]:
        """A running container, for `exec`."""
        with self.prepared(root, **options) as container:
            container.create()
            container.start()
            yield container

    def refusal(self, root: Path, **options: Any) -> str:
        """The one line with which the hook refuses this container."""
        with self.prepared(root, **options) as container:
            return refused(container.create(check=False))

    def stage_more(self, spec: bytes, *steps: Step) -> None:
        """Stage the plan for `spec` with more steps, past the checks of the agent."""
        made = self.node.stage_spec(spec)
        assert made is not None
        content = encode(replace(made, steps=(*made.steps, *steps)))
        name, run_dir = digest(content), self.node.run_dir
        old = digest(encode(made))
        (run_dir / "plans" / name).write_bytes(content)
        (run_dir / "plans" / name).chmod(0o600)
        entry = run_dir / "staged" / digest(spec)
        entry.write_bytes(entry.read_bytes().replace(old.encode(), name.encode()))

    def records(self) -> list[list[str]]:
        """The replay log, field by field; `way` is field 4, what went wrong field 7."""
        lines = (self.node.run_dir / "replays.log").read_text().splitlines()
        return [line.split("\t") for line in lines]


def config(container: Container) -> bytes:
    """The container's spec as its hook reads it."""
    return (container.bundle / "config.json").read_bytes()


def refused(outcome: Outcome) -> str:
    """The hook's line out of runc's report, if it is one clean line."""
    assert outcome.status != 0
    found = re.search(r"stderr: gpu-agent: (.*?)\\n\"?$", outcome.stderr, re.MULTILINE)
    assert found, outcome.stderr
    line = found[1].replace('\\"', '"').replace("\\\\", "\\")
    assert len(line.encode()) <= LINE_LIMIT
    # runc's log writes control characters as \n, \x1b and the like.
    assert line.isprintable()
    assert "\\n" not in line
    assert "\\x" not in line
    return line


def build_old_kernel(target: Path, *options: str) -> Path:
    """The launcher under which the newer mount calls do not exist; `-DABSENT=N`: only call N."""
    command = ["gcc", "-O1", *options, "-o", str(target), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return target
