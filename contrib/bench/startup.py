"""What a hook adds to `runc create`: ours, against a hook that is an empty Python program.

In each round the same container is created once in every variant, in random order, each time on
a fresh overlay of one image; the difference to the plain container of the same round counts.
Only ratios within one run mean anything: never compare milliseconds of two machines or runs.
It measures the create alone, not containerd, not the agent.
"""

from __future__ import annotations

import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from contrib.localnode import has_driver
from tests.containers.image import build_image, missing_tools
from tests.containers.runc import Container, RuncFailed
from tests.containers.spec import Json, create_hook, make_spec
from tests.containers.staging import GPU_ENV, Node, real_node, simulated_node
from tests.containers.workdir import overlay_root, work_dir

NAMESPACE = "bench"
LAYERS = "layers"
PYTHON = "/usr/bin/python3"
ROUNDS = 40
LIBRARIES = 900
"""Libraries in the image's loader cache, as in a usual CUDA image."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to create the container, which has `name` as its id in every round."""

    name: str
    hooks: Json | None = None
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of the differences to plain, in milliseconds, and ratios over the floor."""

    added_ms: Mapping[str, float | None]
    ratio: Mapping[str, float | None]
    plain_ms: float
    n: int


def variants(node: Node) -> tuple[Variant, ...]:
    """What one round creates; `plain` is what the others are compared with.

    `ours` asks for one GPU, compute and utility, and finds its plan staged; `nothing` has the
    same hook and asks for no GPU.
    """
    return (
        Variant("plain"),
        Variant("true", create_hook("/bin/true")),
        Variant("floor", create_hook(PYTHON, "-I", "-S", "-c", "pass")),
        Variant("ours", node.hooks(), GPU_ENV),
        Variant("nothing", node.hooks()),
    )


def create_once(variant: Variant, node: Node, image: Path, work: Path) -> float:
    """Milliseconds of one `runc create`. Raises RuncFailed."""
    with overlay_root(image, work / LAYERS / "root") as root:
        spec = make_spec(root, ["/bin/true"], hooks=variant.hooks, env=variant.env)
        with Container(work, spec, name=variant.name, namespace=NAMESPACE) as container:
            # The agent does this as soon as containerd announces the container.
            node.stage_spec((container.bundle / "config.json").read_bytes())
            start = time.perf_counter()
            container.create()
            return (time.perf_counter() - start) * 1000


def measure(rounds: int, libraries: int, disk: bool, talk: Console) -> Result:
    """All rounds, in a work directory that is gone afterwards. Raises RuncFailed.

    The writable layers lie on a tmpfs unless `disk`: the same containers made and removed again
    and again measure the disk's file system (ext4 without a journal searches for minutes past
    every inode that was just freed) and not the hook.
    """
    with work_dir() as work, _node(work) as node:
        image = build_image(work / "image", fillers=libraries)
        if not disk:
            _mount_tmpfs(work / LAYERS)
        chosen = variants(node)
        times: dict[str, list[float]] = {v.name: [] for v in chosen}
        for variant in chosen:
            create_once(variant, node, image, work)  # the first one reads programs from disk
        order = random.Random(0)
        for _ in track(range(rounds), "runc create", console=talk, transient=True):
            for variant in order.sample(chosen, len(chosen)):
                times[variant.name].append(create_once(variant, node, image, work))
    return summarise(times)


def _node(work: Path) -> AbstractContextManager[Node]:
    return real_node(work) if has_driver() else simulated_node(work)


def _mount_tmpfs(directory: Path) -> None:
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "mode=0711", "tmpfs", str(directory)]
    subprocess.run(command, check=True, timeout=30)


def summarise(times: Mapping[str, Sequence[float]]) -> Result:
    """Medians of the pairwise differences to `plain`, and their ratios over `floor`."""
    plain = times["plain"]
    added: dict[str, float | None] = dict.fromkeys(("true", "floor", "ours", "nothing"))
    for name, values in times.items():
        if name != "plain":
            added[name] = statistics.median(v - p for v, p in zip(values, plain, strict=True))
    floor = added["floor"]
    ratio: dict[str, float | None] = {}
    for name in ("ours", "nothing"):
        value = added[name]
        ratio[name] = None if value is None or not floor else value / floor
    return Result(added, ratio, statistics.median(plain), len(plain))


def first_line(*command: str) -> str:
    """The first line a program says about its version."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.partition("\n")[0].strip()


def as_json(result: Result) -> str:
    """The one object that other programs read; a variant that was not measured is null."""
    return json.dumps(
        {
            "added_ms": _rounded(result.added_ms),
            "ratio": _rounded(result.ratio),
            "plain_ms": round(result.plain_ms, 3),
            "n": result.n,
            "kernel": platform.release(),
            "runc": first_line("runc", "--version").removeprefix("runc version "),
            "python": first_line(PYTHON, "--version").removeprefix("Python "),
        }
    )


def as_table(result: Result) -> Table:
    """The same for people."""
    title = f"added to runc create (plain: {result.plain_ms:.1f} ms, {result.n} rounds)"
    table = Table("hook", "added ms", "over floor", title=title)
    floor = result.added_ms["floor"]
    for name, value in result.added_ms.items():
        if value is None:
            table.add_row(name, "not measured", "")
        else:
            table.add_row(name, f"{value:.2f}", f"{value / floor:.2f}" if floor else "")
    return table


@click.command()
@click.option("--json", "machine", is_flag=True, help="Print one JSON object.")
@click.option("-n", "--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True)
@click.option(
    "--libraries",
    type=click.IntRange(0, 9999),
    default=LIBRARIES,
    show_default=True,
    help="Libraries in the image's loader cache.",
)
@click.option("--disk", is_flag=True, help="Writable layers on the disk instead of a tmpfs.")
def main(machine: bool, rounds: int, libraries: int, disk: bool) -> None:
    """Measure what a createRuntime hook adds to `runc create`.

    plain: no hook; true: /bin/true; floor: python3 -I -S -c pass; ours: the hook with a staged
    plan; nothing: our hook for a container that asks for no GPU. Medians of the differences to
    the plain container of the same round.
    """
    if os.getuid() != 0 or missing_tools():
        raise click.ClickException(missing_tools() or "containers need root")
    signal.signal(signal.SIGTERM, _terminate)
    try:
        result = measure(rounds, libraries, disk, Console(stderr=True))
    except RuncFailed as e:
        raise click.ClickException(str(e)) from e
    if machine:
        click.echo(as_json(result))
    else:
        Console().print(as_table(result))


def _terminate(number: int, frame: FrameType | None) -> None:
    # As with Ctrl-C: the stack unwinds, so containers and mounts go.
    del frame
    sys.exit(128 + number)


def _rounded(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if v is None else round(v, 3) for name, v in values.items()}


if __name__ == "__main__":
    main()
