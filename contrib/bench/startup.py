"""What a hook adds to `runc create`: ours, an empty Python program, and the usual tools.

In each round the same container is created once in every variant, in random order, each time on
a fresh overlay of one image; the difference to the plain container of the same round counts.
Only ratios within one run mean anything: never compare milliseconds of two machines or runs.
It measures the create alone, not containerd, not the agent.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from contrib.bench import report
from contrib.bench.peers import Variant, apply_edits, peers, published
from contrib.bench.report import PYTHON, Budget, Line, Panel, Report, Spread, output_options
from contrib.localnode import has_driver
from tests.containers.image import build_image, missing_tools
from tests.containers.runc import Container, RuncFailed
from tests.containers.spec import create_hook, make_spec
from tests.containers.staging import GPU_ENV, Node, real_node, simulated_node
from tests.containers.workdir import overlay_root, work_dir

NAMESPACE = "bench"
LAYERS = "layers"
ROOT = "root"
ROUNDS = 40
LIBRARIES = 900
"""Libraries in the image's loader cache, as in a usual CUDA image."""
OURS, NOTHING, FLOOR = "ours", "nothing", "floor"
LIMITS = {OURS: 1.5, NOTHING: 1.15}
"""What our hook may take, over the floor."""
PEER_LIMIT = 1 / 5
"""What our hook may take, over what the usual tools take."""


@dataclass(frozen=True, slots=True)
class Result:
    """Differences to plain in milliseconds, as medians and spreads, and ratios over the floor.

    `left_out` says what was not measured and why.
    """

    added_ms: Mapping[str, float | None]
    ratio: Mapping[str, float | None]
    spread: Mapping[str, Spread]
    plain_ms: float
    n: int
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and how."""

    rounds: int
    libraries: int
    disk: bool
    published: bool


def variants(node: Node) -> tuple[Variant, ...]:
    """What one round creates; `plain` is what the others are compared with.

    `ours` asks for one GPU, compute and utility, and finds its plan staged; `nothing` has the
    same hook and asks for no GPU.
    """
    return (
        Variant("plain"),
        Variant("true", create_hook("/bin/true")),
        Variant(FLOOR, create_hook(PYTHON, "-I", "-S", "-c", "pass")),
        Variant(OURS, node.hooks(), GPU_ENV),
        Variant(NOTHING, node.hooks()),
    )


def create_once(variant: Variant, node: Node, image: Path, work: Path) -> float:
    """Milliseconds of one `runc create`. Raises RuncFailed."""
    with overlay_root(image, work / LAYERS / ROOT) as root:
        spec = make_spec(root, ["/bin/true"], hooks=variant.hooks, env=variant.env)
        for edits in variant.edits:
            apply_edits(spec, edits)
        runtime = (variant.runtime,)
        with Container(
            work, spec, name=variant.name, namespace=NAMESPACE, runtime=runtime
        ) as container:
            # The agent does this as soon as containerd announces the container.
            node.stage_spec((container.bundle / "config.json").read_bytes())
            start = time.perf_counter()
            container.create()
            return (time.perf_counter() - start) * 1000


def measure(plan: Plan) -> Result:
    """All rounds, in a work directory that is gone afterwards. Raises RuncFailed.

    The writable layers lie on a tmpfs unless `disk`: the same containers made and removed again
    and again measure the disk's file system (ext4 without a journal searches for minutes past
    every inode that was just freed) and not the hook.
    """
    with work_dir() as work, _node(work) as node:
        image = build_image(work / "image", fillers=plan.libraries)
        if not plan.disk:
            mount_tmpfs(work / LAYERS)
        found, left_out = peers(work, has_driver())
        if plan.published:
            # The overlay's mount point, the same in every round.
            found.append(published(work, work / LAYERS / ROOT / "merged"))
        chosen = []
        for variant in (*variants(node), *found):
            try:
                create_once(variant, node, image, work)  # the first one reads from disk
                chosen.append(variant)
            except RuncFailed as e:
                if variant not in found:
                    raise
                left_out.append(f"{variant.name}: not measured: {_last_line(e)}")
        times: dict[str, list[float]] = {v.name: [] for v in chosen}
        order = random.Random(0)
        for _ in report.progress(range(plan.rounds), "runc create"):
            for variant in order.sample(chosen, len(chosen)):
                times[variant.name].append(create_once(variant, node, image, work))
    return summarise(times, left_out)


def _last_line(error: RuncFailed) -> str:
    lines = error.outcome.stderr.strip().splitlines()
    return lines[-1][:300] if lines else str(error)


def _node(work: Path) -> AbstractContextManager[Node]:
    return real_node(work) if has_driver() else simulated_node(work)


def mount_tmpfs(directory: Path) -> None:
    """Make the new directory a tmpfs; whoever removes the work directory unmounts it."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "mode=0711", "tmpfs", str(directory)]
    subprocess.run(command, check=True, timeout=30)


def summarise(times: Mapping[str, Sequence[float]], left_out: Sequence[str] = ()) -> Result:
    """The pairwise differences to `plain`: medians, spreads, and medians over `floor`."""
    plain = times["plain"]
    differences = {
        name: [v - p for v, p in zip(values, plain, strict=True)]
        for name, values in times.items()
        if name != "plain"
    }
    added: dict[str, float | None] = dict.fromkeys(("true", FLOOR, OURS, NOTHING))
    added |= {name: statistics.median(values) for name, values in differences.items()}
    floor = added[FLOOR]
    ratios = {
        name: None if value is None or not floor else value / floor
        for name, value in added.items()
        if name not in ("true", FLOOR)
    }
    spreads = {name: report.spread(values) for name, values in differences.items()}
    return Result(added, ratios, spreads, statistics.median(plain), len(plain), tuple(left_out))


def as_report(result: Result) -> Report:
    """The result with its budgets."""
    lines = []
    for name, value in result.added_ms.items():
        ratio = 1.0 if name == FLOOR and value is not None else result.ratio.get(name)
        lines.append(Line(name, result.spread.get(name), ratio))
    title = f"added to runc create (plain: {result.plain_ms:.1f} ms, {result.n} rounds)"
    budgets = [Budget(f"{n} / floor", result.ratio[n], limit, "x") for n, limit in LIMITS.items()]
    ours = result.added_ms[OURS]
    for name in ("cdi", "published"):
        peer = result.added_ms.get(name)
        if peer and ours is not None:
            budgets.append(Budget(f"ours / {name}", ours / peer, PEER_LIMIT, "x"))
    question = "What does a hook add to the start of a container?"
    panel = Panel(title, "ms", tuple(lines), FLOOR)
    return Report(question, (panel,), tuple(budgets), result.left_out)


def as_json(result: Result) -> str:
    """The one object that other programs read; a variant that was not measured is null.

    Beside the report: `added_ms` and `ratio` by variant, `plain_ms`, `n`, and the versions.
    """
    made = as_report(result)
    short: dict[str, Any] = {
        "added_ms": _rounded(result.added_ms),
        "ratio": _rounded(result.ratio),
        "plain_ms": round(result.plain_ms, 3),
        "n": result.n,
    }
    versions = {name: made.machine[name] for name in ("kernel", "runc", "python")}
    return json.dumps({**short, **versions, **report.fields(made)})


@click.command()
@output_options
@click.option("-n", "--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True)
@click.option(
    "--libraries",
    type=click.IntRange(0, 9999),
    default=LIBRARIES,
    show_default=True,
    help="Libraries in the image's loader cache.",
)
@click.option("--disk", is_flag=True, help="Writable layers on the disk instead of a tmpfs.")
@click.option(
    "--published",
    is_flag=True,
    help="Add the published case: stub NVML (init 0.55 s, shutdown 0.22 s) and ldconfig.",
)
def main(
    as_object: bool,
    svg: Path | None,
    rounds: int,
    libraries: int,
    disk: bool,
    published: bool,
) -> None:
    """Measure what a createRuntime hook adds to `runc create`.

    plain: no hook; true: /bin/true; floor: python3 -I -S -c pass; ours: the hook with a staged
    plan; nothing: our hook for a container that asks for no GPU. If they are on the machine:
    legacy (nvidia-container-runtime-hook), cdi (edits of nvidia-ctk in the spec) and jit-cdi
    (nvidia-container-runtime). Medians of the differences to the plain container of the same
    round.
    """
    missing = missing_tools() or ("" if os.getuid() == 0 else "containers need root")
    with report.edge(missing, RuncFailed):
        result = measure(Plan(rounds, libraries, disk, published))
    if as_object:
        if svg is not None:
            svg.write_text(report.picture(as_report(result)))
        click.echo(as_json(result))
    else:
        report.show(as_report(result), False, svg)


def _rounded(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if v is None else round(v, 3) for name, v in values.items()}


if __name__ == "__main__":
    main()
