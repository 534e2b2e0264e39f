"""How the agent grows: containers known at its start, events in a burst, GPUs and MIG devices.

Each case starts a real agentd on a simulated host beside a stand-in for containerd, which holds
as many containers as nobody would run here. Time is by the clock, CPU and memory the kernel's
count for agentd. The stand-in is a Python program on the same processors: times are upper bounds,
CPU and memory are agentd's own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import click

from agent.cli.client import Client
from agent.containerd import methods
from agent.errors import AgentError
from contrib.bench.hosts import Shape, write_host
from contrib.bench.process import Usage, usage
from contrib.bench.report import Panel, Report, edge, output_options, panel, progress, show
from contrib.simhost import tree
from contrib.simhost.tree import SimHost
from tests.containers.image import missing_tools
from tests.containers.spec import make_spec
from tests.containers.workdir import work_dir
from tests.fake_containerd import FakeContainerd

KNOWN = (10, 100, 1000)
EVENTS = (1000, 10_000)
SHAPES = (Shape(8), Shape(16), Shape(8, migs=7))
ROUNDS = 3
LIMIT_S = 120.0
STEP_S = 0.02
"""How often the run directory is looked at: the error of every time."""


@dataclass(frozen=True, slots=True)
class Case:
    """One start of agentd: on what host, with how many containers, and how many events then."""

    shape: Shape
    known: int = 0
    events: int = 0

    @property
    def containers(self) -> int:
        """Containers that the events announce; each is created and started."""
        return self.events // 2


@dataclass(frozen=True, slots=True)
class Cost:
    """What one case took, from the start of agentd or of the burst to the last plan staged."""

    ms: float
    cpu_ms: float
    rss_mib: float
    lists: int
    """How often agentd asked for the list of containers; once, unless events were dropped."""


def spec(number: int, gpus: int) -> bytes:
    """The spec of a container that asks for one GPU; no two are the same."""
    env = [f"NVIDIA_VISIBLE_DEVICES={number % gpus}", "NVIDIA_DRIVER_CAPABILITIES=all"]
    return json.dumps(make_spec(Path("/roots") / str(number), ["true"], env=env)).encode()


@contextmanager
def agentd(home: Path, host: SimHost, socket_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An agentd on `host`, with its run directory in `home`; killed at the end."""
    config = home / "agent.toml"
    tables = f'[agent]\nrun_dir = "{home / "run"}"\n[[containerd]]\naddress = "{socket_path}"\n'
    config.write_text(f"{host.config()}{tables}")
    command = [sys.executable, "-m", "agent.daemon", "--config", str(config)]
    environment = {**os.environ, "NOTIFY_SOCKET": str(home / "ready.sock")}
    with open(home / "log", "ab") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def run_case(work: Path, host: SimHost, case: Case) -> Cost:
    """One start of agentd. Raises TimeoutError with what its log says last."""
    fake = FakeContainerd(work / "c.sock")
    for number in range(case.known):
        fake.add(f"known{number}", spec=spec(number, case.shape.gpus))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind(str(work / "ready.sock"))
        async with fake:
            start = time.perf_counter()
            with agentd(work, host, fake.path) as process:
                try:
                    with anyio.fail_after(LIMIT_S):
                        await anyio.wait_readable(ready)
                        await _until_staged(work / "run", case.known)
                        took = time.perf_counter() - start
                        before = usage(process.pid)
                        if not case.events:
                            return Cost(took * 1000, before.cpu_s * 1000, before.rss_mib, 1)
                        return await _burst(work, fake, case, process.pid, before)
                except TimeoutError as e:
                    last = (work / "log").read_text(errors="replace").splitlines()[-1:]
                    raise TimeoutError(f"agentd: {case}: not done in {LIMIT_S:g} s: {last}") from e


async def _burst(work: Path, fake: FakeContainerd, case: Case, pid: int, before: Usage) -> Cost:
    start = time.perf_counter()
    for number in range(case.known, case.known + case.containers):
        fake.add(f"new{number}", spec=spec(number, case.shape.gpus))
        fake.run(f"new{number}", pid=100_000 + number)
    await _until_staged(work / "run", case.known + case.containers)
    took = time.perf_counter() - start
    after = usage(pid)
    status = await anyio.to_thread.run_sync(Client(str(work / "run")).status)
    if status.containers != case.known + case.containers:
        raise TimeoutError(f"agentd: knows {status.containers} containers after the burst")
    lists = fake.asked.count(methods.LIST_CONTAINERS.name)
    return Cost(took * 1000, (after.cpu_s - before.cpu_s) * 1000, after.rss_mib, lists)


async def _until_staged(run_dir: Path, count: int) -> None:
    """Wait until so many entries are published; drafts begin with a dot."""
    # Another process publishes: there is no event to wait for.
    while _staged(run_dir) < count:  # noqa: ASYNC110
        await anyio.sleep(STEP_S)


def _staged(run_dir: Path) -> int:
    return sum(not name.startswith(".") for name in os.listdir(run_dir / "staged"))


async def measure(cases: Sequence[tuple[str, str, Case]], rounds: int) -> Report:
    """All cases, in each round one after the other; a case is (panel, name, what)."""
    costs: dict[str, dict[str, list[Cost]]] = {}
    with work_dir() as work:
        hosts = _build_hosts(work, {case.shape for _, _, case in cases})
        try:
            for number, (where, name, case) in enumerate(progress(list(cases) * rounds, "agentd")):
                home = work / f"run{number}"
                home.mkdir(mode=0o755)
                cost = await run_case(home, hosts[case.shape], case)
                costs.setdefault(where, {}).setdefault(name, []).append(cost)
        finally:
            for host in hosts.values():
                tree.remove(host.root)
    panels = tuple(p for where, found in costs.items() for p in _panels(where, found))
    remarks = tuple(_listed(costs))
    return Report("How does the agent grow?", panels, remarks=remarks)


def _listed(costs: dict[str, dict[str, list[Cost]]]) -> Iterator[str]:
    for found in costs.values():
        for name, made in found.items():
            if (most := max(cost.lists for cost in made)) > 1:
                yield f"{name}: events were dropped, and the containers listed {most} times"


def _build_hosts(work: Path, shapes: set[Shape]) -> dict[Shape, SimHost]:
    built: dict[Shape, SimHost] = {}
    for number, shape in enumerate(sorted(shapes, key=lambda s: s.name)):
        folder = write_host(work / f"recorded{number}", shape)
        built[shape] = tree.build(folder, work / f"host{number}")
    return built


def _panels(where: str, costs: dict[str, list[Cost]]) -> Iterator[Panel]:
    """Time, CPU and memory; the ratios are the growth over the first case."""
    base = next(iter(costs))
    kinds = (("time", "ms", "ms"), ("CPU", "ms", "cpu_ms"), ("resident", "MiB", "rss_mib"))
    for what, unit, name in kinds:
        values = {case: [getattr(cost, name) for cost in found] for case, found in costs.items()}
        yield panel(f"{where}: {what}", unit, values, base)


def cases(
    known: Sequence[int], events: Sequence[int], shapes: Sequence[Shape]
) -> list[tuple[str, str, Case]]:
    """What is started: the smallest first in each group, as the others are compared with it."""
    eight = Shape(8)
    return [
        *(("start, containers known", f"{n} containers", Case(eight, n)) for n in known),
        *(("burst of events", f"{n} events", Case(eight, known[-1], n)) for n in events),
        *(("start, host of", shape.name, Case(shape)) for shape in shapes),
    ]


@click.command()
@output_options
@click.option("-n", "--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True)
@click.option("--known", type=click.IntRange(1), multiple=True, default=KNOWN, show_default=True)
@click.option("--events", type=click.IntRange(2), multiple=True, default=EVENTS, show_default=True)
def main(
    as_object: bool, svg: Path | None, rounds: int, known: tuple[int, ...], events: tuple[int, ...]
) -> None:
    """Start agentd with many containers, let events rain, and give it more GPUs."""
    missing = missing_tools() or ("" if os.getuid() == 0 else "device nodes need root")
    with edge(missing, TimeoutError, AgentError):
        report = anyio.run(measure, cases(sorted(known), sorted(events), SHAPES), rounds)
    show(report, as_object, svg)


if __name__ == "__main__":
    main()
