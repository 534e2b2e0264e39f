"""The loader cache: our merge of the driver's libraries against `ldconfig` on the same root.

Roots of several sizes, in which the libraries of one request (compute, utility) lie already. In
each round, in random order: `ldconfig -r ROOT` as it finds the root (its own notes of the last
run may help it), `ldconfig -i -r ROOT` (without notes, as in a container that just came to be),
the merge in a running interpreter, and the merge in a fresh one with all that a hook does for it:
import, read, merge, write, rename. The fresh interpreter's own start is not in it, because a
hook in Python has paid that already.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from agent.plan import BindFile, CacheEntry, Place, Plan
from contrib.bench.process import run_ms
from contrib.bench.report import (
    PYTHON,
    Budget,
    Report,
    edge,
    output_options,
    panel,
    progress,
    show,
)
from hooks.ldcache import merge, parse
from tests.containers.image import DEBIAN, build_image, missing_tools
from tests.containers.spec import make_spec
from tests.containers.staging import GPU_ENV, simulated_node
from tests.containers.workdir import work_dir

SIZES = (100, 520, 2000, 10_000)
ROUNDS = 20
LIMIT = 1 / 20
REPOSITORY = Path(__file__).parents[2]

MERGE = "ours, in process"

Ways = dict[str, Callable[[], float]]
Driver = list[tuple[bytes, bytes, int]]

FRESH = """
import posix
import time

def main(arguments):
    start = time.monotonic_ns()
    from hooks.ldcache import merge
    cache, names, out = arguments
    with open(names, "rb") as file:
        rows = [line.split(b"\\t") for line in file.read().splitlines()]
    with open(cache, "rb") as file:
        old = file.read()
    new = merge(old, [(name, path, int(flags)) for name, path, flags in rows])
    with open(out + ".new", "xb") as file:
        file.write(new)
    posix.rename(out + ".new", out)
    posix.write(1, b"%d" % (time.monotonic_ns() - start))
    return 0
"""
BUILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hooks.build import bundle
home = Path(sys.argv[2])
(home / "fresh.pyc").write_bytes(bundle(home, ("ldcache_table", "ldcache", "fresh")))
"""


@dataclass(frozen=True, slots=True)
class Root:
    """A root: its cache without the driver, and the driver's libraries, which lie in it."""

    path: Path
    cache: bytes
    driver: Driver

    def files(self) -> tuple[Path, Path, Path]:
        """Where the fresh interpreter reads the cache and the libraries, and where it writes."""
        home = self.path.parent
        return home / "before.cache", home / "driver.names", home / "after.cache"


def make_root(home: Path, plan: Plan, size: int) -> Root:
    """A root whose cache has `size` entries before the driver comes."""
    # The C library's own entries come on top of the fillers.
    own = len(parse(_cache_of(build_image(home / "bare"))))
    path = build_image(home / "root", fillers=max(size - own, 0))
    place = path / DEBIAN.libraries
    root = Root(path, _cache_of(path), _driver(plan))
    for step in plan.steps:
        if isinstance(step, BindFile) and step.place is Place.LIBS:
            shutil.copy(step.file.path, place / step.target)
    before, names, _ = root.files()
    before.write_bytes(root.cache)
    names.write_bytes(b"".join(b"%s\t%s\t%d\n" % row for row in root.driver))
    return root


def _driver(plan: Plan) -> Driver:
    entries = [s for s in plan.steps if isinstance(s, CacheEntry) and s.place is Place.LIBS]
    directory = os.fsencode(f"/{DEBIAN.libraries}/")
    return [(os.fsencode(e.soname), directory + os.fsencode(e.target), e.flags) for e in entries]


def _cache_of(root: Path) -> bytes:
    return (root / "etc/ld.so.cache").read_bytes()


def build_fresh(home: Path) -> Path:
    """The program of the fresh interpreter, bundled and byte-compiled as the hook is."""
    (home / "fresh.py").write_text(FRESH)
    for name in ("ldcache_table.py", "ldcache.py"):
        shutil.copy(REPOSITORY / "hooks" / name, home / name)
    # By the interpreter that will run it: byte code belongs to one version.
    builder = [PYTHON, "-I", "-B", "-c", BUILD, str(REPOSITORY), str(home)]
    subprocess.run(builder, check=True, timeout=60)
    return home / "fresh.pyc"


def ways(root: Root, fresh: Path) -> Ways:
    """What is compared; each gives its milliseconds."""
    return {
        "ldconfig": lambda: run_ms("ldconfig", "-r", str(root.path)),
        "ldconfig -i": lambda: run_ms("ldconfig", "-i", "-r", str(root.path)),
        MERGE: lambda: _merge_ms(root),
        "ours, fresh": lambda: _fresh_ms(root, fresh),
    }


def _merge_ms(root: Root) -> float:
    start = time.perf_counter()
    merge(root.cache, root.driver)
    return (time.perf_counter() - start) * 1000


def _fresh_ms(root: Root, program: Path) -> float:
    files = [str(path) for path in root.files()]
    command = [PYTHON, "-I", "-S", "-B", str(program), *files]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout) / 1e6


def measure(sizes: tuple[int, ...], rounds: int) -> Report:
    """One panel a size. Raises CalledProcessError where ldconfig fails."""
    order = random.Random(0)
    panels, budgets = [], []
    with work_dir() as work, simulated_node(work) as node:
        plan = node.stage_spec(json.dumps(make_spec(work, ["true"], env=GPU_ENV)).encode())
        assert plan is not None, "the simulated host has GPU 0"
        fresh = build_fresh(work)
        for size in sizes:
            home = work / str(size)
            home.mkdir()
            compared = ways(make_root(home, plan, size), fresh)
            times = _rounds(compared, rounds, order, f"{size} entries")
            # Against the quicker ldconfig: the harder promise.
            shown = panel(f"cache of {size} entries", "ms", times, base="ldconfig")
            panels.append(shown)
            merged = next(line.ratio for line in shown.lines if line.name == MERGE)
            budgets.append(Budget(f"merge / ldconfig, {size} entries", merged, LIMIT, "x"))
            shutil.rmtree(home)
    return Report("What does the loader cache cost?", tuple(panels), tuple(budgets))


def _rounds(compared: Ways, rounds: int, order: random.Random, what: str) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in compared}
    for way in compared.values():
        way()  # the first one reads from disk
    for _ in progress(range(rounds), what):
        for name in order.sample(list(compared), len(compared)):
            times[name].append(compared[name]())
    return times


@click.command()
@output_options
@click.option("-n", "--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True)
@click.option(
    "--size",
    "sizes",
    type=click.IntRange(10, 10_000),
    multiple=True,
    default=SIZES,
    show_default=True,
    help="Entries in the cache; may be given again.",
)
def main(as_object: bool, svg: Path | None, rounds: int, sizes: tuple[int, ...]) -> None:
    """Measure our merge of the loader cache against ldconfig on the same root."""
    missing = missing_tools() or ("" if os.getuid() == 0 else "ldconfig -r needs root")
    with edge(missing, subprocess.CalledProcessError):
        report = measure(sizes, rounds)
    show(report, as_object, svg)


if __name__ == "__main__":
    main()
