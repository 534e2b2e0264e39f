"""A burst of containers on a whole node, some at a time: containerd, agentd, hook and all.

Three kinds of container, each `ctr run` on a fresh overlay: `plain` without our wrapper, `pass`
with an empty Python program in place of the hook, `ours`. Blocks of one kind follow one another
in random order, so each kind has the machine to itself while it runs. Both hooks are run by the
same small program that takes their time by the clock: how far the slow ones lie above the median
under `pass` is what the machine does to any hook.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from agent.cli.runtime import hook_entry, read_node
from agent.replaylog import LOG, parse
from agent.replays import ReplayPath, ReplayRecord
from contrib.bench.peers import compile_program
from contrib.bench.report import (
    PYTHON,
    Budget,
    Panel,
    Report,
    edge,
    output_options,
    panel,
    progress,
    show,
)
from contrib.bench.startup import mount_tmpfs
from contrib.localnode import LocalNode, has_driver
from hooks import build as hook_build
from tests.containerd.daemon import why_not
from tests.containers.image import build_image, missing_tools
from tests.containers.spec import PATH
from tests.containers.staging import GPU_ENV
from tests.containers.workdir import overlay_root, work_dir

HERE = Path(__file__).parent
COUNT, PARALLEL, LIBRARIES = 200, 10, 900
MOST = 2000
"""The agent starts the hooks' log anew at 1 MiB; what is read here must still be in it."""
BLOCKS = 4
"""So many times each kind has its turn."""
PLAIN, PASS, OURS = "plain", "pass", "ours"
STAGED_LEAST = 99.0
TAIL_LIMIT = 3.0
LIFETIME_S = "600"
HOST = "a100x8-minors"
BUILD_S = 60


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of container: its runtime binary, "" for containerd's own, and its hooks' log."""

    name: str
    runtime: str
    log: Path


@dataclass(frozen=True, slots=True)
class Job:
    """One container to be started."""

    kind: Kind
    id: str


def kinds(node: LocalNode, home: Path) -> tuple[Kind, ...]:
    """The kinds; builds their wrappers below the new directory `home`."""
    home.mkdir()
    timed = compile_program(HERE / "timed.c", home / "timed")
    ours = hook_entry(read_node(str(node.config), str(node.config)))
    nothing = {**ours, "path": PYTHON, "args": ["python3", "-I", "-S", "-c", "pass"]}
    made = [Kind(PLAIN, "", home / "unused.log")]
    for name, entry in ((PASS, nothing), (OURS, ours)):
        log = home / f"{name}.log"
        log.touch()
        made.append(Kind(name, str(_wrapper(node, home / name, _timed(timed, log, entry))), log))
    return tuple(made)


def _timed(timed: Path, log: Path, entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "path": str(timed), "args": ["timed", str(log), entry["path"], *entry["args"]]}


def _wrapper(node: LocalNode, home: Path, entry: dict[str, Any]) -> Path:
    builder = [PYTHON, "-I", hook_build.__file__, str(home)]
    subprocess.run(builder, check=True, timeout=BUILD_S)
    runtime = (node.wrapper.parent / "wrapper.conf").read_text().splitlines()[0]
    (home / "wrapper.conf").write_text(f"{runtime}\n{json.dumps(entry)}\n")
    return home / hook_build.WRAPPER_FILE


def start_ms(node: LocalNode, image: Path, job: Job) -> float:
    """Milliseconds of one `ctr run --detach`; the container is gone afterwards."""
    env = () if job.kind.name == PLAIN else GPU_ENV
    settings = [part for variable in (PATH, *env) for part in ("--env", variable)]
    runtime = ["--runc-binary", job.kind.runtime] if job.kind.runtime else []
    options = ["--detach", "--null-io", *runtime, "--rootfs", *settings]
    with overlay_root(image, node.home / "layers" / job.id) as root:
        try:
            start = time.perf_counter()
            node.containerd.ctr("run", *options, str(root), job.id, "sleep", LIFETIME_S)
            return (time.perf_counter() - start) * 1000
        finally:
            node.containerd.remove(job.id)


def blocks(made: Sequence[Kind], count: int, order: random.Random) -> list[list[Job]]:
    """The jobs, `count` of each kind, in blocks of one kind; each kind once before any again."""
    turns = range(min(BLOCKS, count))
    return [
        [Job(kind, f"{kind.name}-{turn}-{n}") for n in range(turn, count, BLOCKS)]
        for turn in turns
        for kind in order.sample(made, len(made))
    ]


def run_blocks(
    node: LocalNode, image: Path, work: list[list[Job]], parallel: int
) -> dict[str, list[float]]:
    """Start every container, `parallel` at a time; their milliseconds by kind."""
    walls: dict[str, list[float]] = {PLAIN: [], PASS: [], OURS: []}
    with ThreadPoolExecutor(parallel) as pool:
        try:
            for block in progress(work, "containers"):
                times = pool.map(lambda job: start_ms(node, image, job), block)
                walls[block[0].kind.name] += times
        except BaseException:
            # Those that run end in order; those that wait never begin.
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return walls


def measure(count: int, parallel: int, libraries: int) -> Report:
    """All of it on a node that is gone afterwards. Raises what says why it failed: AssertionError
    with the words of ctr, RuntimeError with those of agentd."""
    host = None if has_driver() else HOST
    with work_dir() as work:
        image = build_image(work / "image", fillers=libraries)
        with LocalNode(host, image=image) as node:
            mount_tmpfs(node.home / "layers")
            made = kinds(node, node.home / "bench")
            for kind in made:
                start_ms(node, image, Job(kind, f"first-{kind.name}"))  # reads from disk
                kind.log.write_bytes(b"")
            before = replays(node)
            walls = run_blocks(node, image, blocks(made, count, random.Random(0)), parallel)
            hooks = {kind.name: _hook_ms(kind.log) for kind in made if kind.runtime}
            records = replays(node)[len(before) :]
    return as_report(walls, hooks, records, parallel)


def replays(node: LocalNode) -> list[ReplayRecord]:
    """What the hooks recorded, in order."""
    log = node.run_dir / LOG
    lines = log.read_bytes().splitlines() if log.exists() else []
    return [found[1] for line in lines if (found := parse(line)) is not None]


def _hook_ms(log: Path) -> list[float]:
    return [int(line) / 1e6 for line in log.read_text().split()]


def as_report(
    walls: dict[str, list[float]],
    hooks: dict[str, list[float]],
    records: list[ReplayRecord],
    parallel: int,
) -> Report:
    """The numbers, with the share of staged plans and the two kinds' tails."""
    staged = sum(r.ok and r.path is ReplayPath.STAGED for r in records)
    share = 100 * staged / len(records) if records else None
    by_clock = panel(f"hook by the clock, {parallel} at a time", "ms", hooks, base=PASS)
    tails = {line.name: s.p99 / s.median for line in by_clock.lines if (s := line.spread)}
    remark = (
        "a tail above the budget is the machine's, not the hook's, where pass has one as long: "
        f"p99 / median of pass {tails.get(PASS, 0):.2f}, of ours {tails.get(OURS, 0):.2f}"
    )
    others = [f"{r.label}: {r.path}: {r.error or ''}" for r in records if r.path != "staged"]
    return Report(
        f"How do containers start in a burst, {parallel} at a time?",
        (
            panel("ctr run, whole", "ms", walls, base=PLAIN),
            by_clock,
            _phases(records),
        ),
        (
            Budget("hooks that found their plan staged", share, STAGED_LEAST, "%", least=True),
            Budget("hook, p99 / median", tails.get(OURS), TAIL_LIMIT, "x"),
        ),
        (remark, *others[:10]),
    )


def _phases(records: Sequence[ReplayRecord]) -> Panel:
    """The hook's own account of where its time went."""
    times: dict[str, list[float]] = {}
    for record in records:
        for name, ms in record.phases:
            times.setdefault(name, []).append(ms)
    return panel("the phases of our hook, as it recorded them", "ms", times)


@click.command()
@output_options
@click.option("-n", "--count", type=click.IntRange(1, MOST), default=COUNT, show_default=True)
@click.option("--parallel", type=click.IntRange(1, 64), default=PARALLEL, show_default=True)
@click.option("--libraries", type=click.IntRange(0, 9999), default=LIBRARIES, show_default=True)
def main(as_object: bool, svg: Path | None, count: int, parallel: int, libraries: int) -> None:
    """Start COUNT containers of each kind in a burst and see what their hooks took."""
    with edge(why_not() or missing_tools(), AssertionError, RuntimeError):
        report = measure(count, parallel, libraries)
    show(report, as_object, svg)


if __name__ == "__main__":
    main()
