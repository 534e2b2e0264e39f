"""From containerd's announcement of a container to its published plan.

A real containerd, and the agent's own stream, reconciler and stage in this process; the
containers are created by `ctr` processes, one or several at a time in alternating blocks, so the
agent has to share the processors with them. Nothing runs: creating is what is announced.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import click

from agent import config
from agent.containerd.stream import watch
from agent.containerd.values import ContainerCreated, Event, Synced
from agent.host import Host, proc_paths
from agent.policy import policy_of
from agent.reconcile import Reconciler
from agent.stage import Stage
from contrib.bench.report import (
    Budget,
    Report,
    edge,
    output_options,
    panel,
    progress,
    show,
    spread,
)
from contrib.simhost import tree
from tests.containerd.daemon import Daemon, search_path, why_not
from tests.containers.image import missing_tools
from tests.containers.spec import make_spec
from tests.containers.staging import HOSTS

COUNT, PARALLEL = 200, 10
BLOCKS = 4
MEDIAN_MS, P99_MS = 5.0, 25.0
GPUS = 8
COMMAND_S = 60.0


@dataclass
class Heard:
    """What the stream brought: microseconds by way of creating, and who waits for how many."""

    reconciler: Reconciler
    staged_ms: dict[int, list[float]]
    lag_ms: dict[int, list[float]]
    parallel: int = 0
    missing: int = 0
    synced: anyio.Event = field(default_factory=anyio.Event)
    complete: anyio.Event = field(default_factory=anyio.Event)

    def expect(self, parallel: int, count: int) -> None:
        """The next `count` containers are created `parallel` at a time."""
        self.parallel, self.missing, self.complete = parallel, count, anyio.Event()

    async def handle(self, event: Event) -> None:
        """Let the reconciler handle it, and note what it took."""
        await self.reconciler.handle(event)
        if isinstance(event, Synced):
            self.synced.set()
        if isinstance(event, ContainerCreated) and self.parallel:
            staged_us = self.reconciler.containers[event.record.key].staged_us
            if staged_us is not None:
                self.staged_ms[self.parallel].append(staged_us / 1000)
                # Monotonic time to the wall-clock time of containerd's stamp.
                since = time.time_ns() - time.monotonic_ns()
                lag_ns = event.received_ns + since - event.timestamp_ns
                self.lag_ms[self.parallel].append(lag_ns / 1e6)
            self.missing -= 1
            if self.missing == 0:
                self.complete.set()


async def measure(count: int, parallel: int) -> Report:
    """All blocks. Raises RuntimeError with the words of ctr."""
    with Daemon() as containerd:
        host = tree.build(HOSTS / "a100x8-minors", containerd.home / "host")
        try:
            settings = config.parse(host.config().encode(), "bench")
            stage = Stage(str(containerd.home / "run"))
            try:
                address = str(containerd.socket)
                reader, policy = Host(settings.host), policy_of(settings.policy)
                paths = proc_paths(settings.host)
                agent = Reconciler(stage, reader, policy, paths, [address])
                return await _measure_with(containerd, agent, count, parallel)
            finally:
                stage.close()
        finally:
            tree.remove(host.root)


async def _measure_with(containerd: Daemon, agent: Reconciler, count: int, parallel: int) -> Report:
    ways = sorted({1, parallel})
    heard = Heard(agent, {way: [] for way in ways}, {way: [] for way in ways})
    await agent.start()
    async with anyio.create_task_group() as group:
        group.start_soon(watch, str(containerd.socket), heard.handle)
        await heard.synced.wait()
        for turn in progress(range(min(BLOCKS, count)), "containers created"):
            share = len(range(turn, count, BLOCKS))
            for way in ways if turn % 2 else ways[::-1]:
                await _block(containerd, heard, way, [f"w{way}t{turn}n{n}" for n in range(share)])
        group.cancel_scope.cancel()
    return as_report(heard, parallel)


async def _block(containerd: Daemon, heard: Heard, parallel: int, ids: list[str]) -> None:
    for number, id in enumerate(ids):
        env = [f"NVIDIA_VISIBLE_DEVICES={number % GPUS}"]
        spec = make_spec(containerd.home, ["true"], env=env)
        (containerd.home / f"{id}.json").write_text(json.dumps(spec))
    heard.expect(parallel, len(ids))
    specs = f"--config={containerd.home}/{{}}.json"
    await _ctr(containerd, ids, parallel, "create", specs, "{}")
    with anyio.fail_after(COMMAND_S):
        await heard.complete.wait()
    heard.parallel = 0
    await _ctr(containerd, ids, parallel, "delete", "{}")


async def _ctr(containerd: Daemon, ids: list[str], parallel: int, *verb: str) -> None:
    # Not from threads of this process: they would hold up the agent's event loop.
    ctr = ["ctr", "--address", str(containerd.socket), "container", *verb]
    command = ["xargs", "-P", str(parallel), "-I", "{}", *ctr]
    env = {"PATH": search_path(), "LC_ALL": "C"}
    # A session of its own: Ctrl-C must not end it halfway, the containers are removed anyway.
    done = await anyio.run_process(
        command, input="\n".join(ids).encode(), env=env, start_new_session=True, check=False
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"ctr container {verb[0]}: {said}")


def as_report(heard: Heard, parallel: int) -> Report:
    """The numbers with their budgets."""
    staged = {f"{way} at a time": values for way, values in heard.staged_ms.items()}
    lag = {f"{way} at a time": values for way, values in heard.lag_ms.items()}
    many = spread(heard.staged_ms[parallel]) if heard.staged_ms[parallel] else None
    base = "1 at a time"
    return Report(
        "How long until an announced container's plan is staged?",
        (
            panel("announcement received to entry published", "ms", staged, base),
            panel("containerd's time stamp to announcement received", "ms", lag, base),
        ),
        (
            Budget("median", many.median if many else None, MEDIAN_MS, "ms"),
            Budget("p99", many.p99 if many else None, P99_MS, "ms"),
        ),
    )


@click.command()
@output_options
@click.option("-n", "--count", type=click.IntRange(1), default=COUNT, show_default=True)
@click.option("--parallel", type=click.IntRange(1, 64), default=PARALLEL, show_default=True)
def main(as_object: bool, svg: Path | None, count: int, parallel: int) -> None:
    """Create COUNT containers one at a time and as many several at a time."""
    with edge(why_not() or missing_tools(), AssertionError, RuntimeError):
        report = anyio.run(measure, count, parallel)
    show(report, as_object, svg)


if __name__ == "__main__":
    main()
