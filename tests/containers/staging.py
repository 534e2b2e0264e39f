"""A simulated GPU node without the daemon: a host, the compiled hook, and plans on demand.

What agentd does with events, this does when it is told to: the same facts, inventory, planner
and stage, so that a test of the hook needs neither containerd nor time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.config import HostSettings, parse
from agent.facts.read import read_host
from agent.facts.values import NvmlFact
from agent.host import host_roots, proc_paths
from agent.inventory import Inventory, build
from agent.plan import Entry, Plan, digest
from agent.planner import ProcPaths, plan
from agent.policy import Policy
from agent.request import read_spec
from agent.stage import Stage
from contrib.simhost import tree
from contrib.simhost.tree import SimHost
from hooks import build as hook_build
from tests.containers.spec import Json

HOSTS = Path(__file__).parents[1] / "hosts"
PYTHON = "/usr/bin/python3"
GPU_ENV = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")


@dataclass(frozen=True, slots=True)
class Node:
    """A node with a driver. `hook` is the compiled hook, `run_dir` the agent's."""

    settings: HostSettings
    hook: Path
    stage: Stage
    inventory: Inventory
    config: Path

    @property
    def run_dir(self) -> Path:
        """The agent's run directory."""
        return self.stage.path

    @property
    def proc(self) -> ProcPaths:
        """Where the plans' procfs steps point."""
        return proc_paths(self.settings)

    def hooks(self, *, standalone: bool = False) -> Json:
        """The `hooks` of a spec with our entry, as the installed one."""
        program = [PYTHON, "-I", "-S", "-B", str(self.hook), str(self.run_dir)]
        if standalone:
            program += [sys.executable, f"--config={self.config}"]
        entry = {"path": PYTHON, "args": program, "env": ["GPU_AGENT_HOOK=1"], "timeout": 20}
        return {"createRuntime": [entry]}

    def stage_spec(self, spec: bytes, label: str = "test/test") -> Plan | None:
        """Stage one container as the agent would; gives its plan."""
        reading = read_spec(spec, Policy())
        generation = self.inventory.generation
        made, verdict, detail = None, "none", ""
        if reading.request is not None:
            made = plan(self.inventory, reading.request, self.proc)
            verdict, detail = "plan", self.stage.put_plan(made)
        where = reading.root, reading.owner
        entry = Entry(verdict, detail, generation, *where, label, reading.volumes)
        self.stage.put_entry(digest(spec), entry)
        return made


@dataclass(frozen=True, slots=True)
class SimulatedNode(Node):
    """A node whose driver is that of a recorded host."""

    host: SimHost


@contextmanager
def simulated_node(work: Path, host: str = "a100x8-minors") -> Iterator[SimulatedNode]:
    """A node of the recorded `host` below `work`, gone afterwards."""
    made = tree.build(HOSTS / host, work / "host")
    try:
        with real_node(work, made.config()) as node:
            parts = (node.settings, node.hook, node.stage, node.inventory, node.config)
            yield SimulatedNode(*parts, made)
    finally:
        tree.remove(made.root)


@contextmanager
def real_node(work: Path, host_table: str = "") -> Iterator[Node]:
    """A node of the machine's own driver, or of the one that a `[host]` table leads to."""
    config = work / "config.toml"
    config.write_text(f'{host_table}\n[agent]\nrun_dir = "{work / "run"}"\n')
    settings = parse(config.read_bytes(), str(config)).host
    # By the interpreter that will run it: byte code belongs to one version.
    builder = [PYTHON, "-I", hook_build.__file__, str(work / "lib")]
    subprocess.run(builder, check=True, timeout=60)
    stage = Stage(str(work / "run"))
    try:
        facts = read_host(host_roots(settings), NvmlFact(reason="not asked"))
        inventory = build(facts)
        stage.set_generation(inventory.generation)
        hook = work / "lib" / hook_build.HOOK_FILE
        yield Node(settings, hook, stage, inventory, config)
    finally:
        stage.close()
