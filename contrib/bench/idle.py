"""What the agent costs at rest, and how quickly `agentctl status` answers.

A whole node whose agent has nothing to do, in windows of two kinds that alternate: no container
known, and some known. Its CPU time is the kernel's count for agentd and its ended children.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from contrib.bench.process import run_ms, usage
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
from contrib.localnode import LocalNode, has_driver
from tests.containerd.daemon import why_not
from tests.containers.image import missing_tools
from tests.containers.spec import make_spec
from tests.containers.staging import GPU_ENV

SECONDS = 30.0
WINDOWS = 3
SETTLE_S = 3.0
"""How long what went before (the start, the last container) may have its after-effects."""
KNOWN = 20
ROUNDS = 20
CPU_LIMIT, RSS_LIMIT_MIB, STATUS_LIMIT_MS = 0.5, 80.0, 400.0
HOST = "a100x8-minors"
NONE, SOME = "no container", "containers known"


def measure(seconds: float, known: int, rounds: int) -> Report:
    """All windows, then the rounds of status. Raises RuntimeError with agentctl's words."""
    cpu: dict[str, list[float]] = {NONE: [], SOME: []}
    memory: dict[str, list[float]] = {NONE: [], SOME: []}
    with LocalNode(None if has_driver() else HOST, image=Path("/")) as node:
        for _ in progress(range(WINDOWS), "at rest"):
            for name, ids in ((NONE, []), (SOME, [f"known{n}" for n in range(known)])):
                _create(node, ids)
                share, rss = window(node, seconds / WINDOWS)
                cpu[name].append(share)
                memory[name].append(rss)
                for id in ids:
                    node.containerd.remove(id)
        status = status_ms(node, rounds)
    return as_report(cpu, memory, status)


def _create(node: LocalNode, ids: Sequence[str]) -> None:
    for id in ids:
        node.containerd.create(id, make_spec(node.home, ["true"], env=GPU_ENV))
    # The agent hears of the last one soon; its answer also says that the others are handled.
    deadline = time.monotonic() + 10
    while node.answer("status")["containers"] != len(ids):
        if time.monotonic() > deadline:
            raise RuntimeError(f"agentd does not know {len(ids)} containers after 10 s")


def window(node: LocalNode, seconds: float) -> tuple[float, float]:
    """CPU in percent of one processor, and resident MiB at its end, over so many seconds."""
    pid = node.answer("status")["pid"]
    time.sleep(min(SETTLE_S, seconds))
    before, start = usage(pid), time.monotonic()
    time.sleep(seconds)
    after = usage(pid)
    return 100 * (after.cpu_s - before.cpu_s) / (time.monotonic() - start), after.rss_mib


def status_ms(node: LocalNode, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of `agentctl status` and of an interpreter that does nothing, in turn."""
    program = Path(sys.executable).with_name("agentctl")
    commands = {
        "python -c pass": (sys.executable, "-c", "pass"),
        "agentctl status": (str(program), "--run-dir", str(node.run_dir), "status"),
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        run_ms(*command)  # reads from disk
    for _ in progress(range(rounds), "agentctl status"):
        for name, command in commands.items():
            times[name].append(run_ms(*command))
    return times


def as_report(
    cpu: dict[str, list[float]], memory: dict[str, list[float]], status: dict[str, list[float]]
) -> Report:
    """The numbers with their budgets; CPU is judged by the mean of its windows."""
    shares = [share for values in cpu.values() for share in values]
    return Report(
        "What does the agent cost at rest?",
        (
            panel("CPU of one processor", "%", cpu),
            panel("resident memory", "MiB", memory),
            panel("agentctl status", "ms", status, base="python -c pass"),
        ),
        (
            Budget("CPU at rest", sum(shares) / len(shares), CPU_LIMIT, "%"),
            Budget("resident", max(v for s in memory.values() for v in s), RSS_LIMIT_MIB, "MiB"),
            Budget("status", spread(status["agentctl status"]).median, STATUS_LIMIT_MS, "ms"),
        ),
    )


@click.command()
@output_options
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=SECONDS,
    show_default=True,
    help="Of rest, with no container and again with some.",
)
@click.option("--known", type=click.IntRange(1), default=KNOWN, show_default=True)
@click.option("-n", "--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True)
def main(as_object: bool, svg: Path | None, seconds: float, known: int, rounds: int) -> None:
    """Watch an agent that has nothing to do, and time agentctl status."""
    expected = (RuntimeError, AssertionError, subprocess.CalledProcessError)
    with edge(why_not() or missing_tools(), *expected):
        report = measure(seconds, known, rounds)
    show(report, as_object, svg)


if __name__ == "__main__":
    main()
