"""Names that change while the hook works: 10,000 runs in `contrib/check --all`, some by default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.containers.image import DEBIAN
from tests.immunity.oracles import host_untouched
from tests.immunity.races import Cell, Flipper
from tests.kernel.starts import NEEDS_CONTAINERS

pytestmark = NEEDS_CONTAINERS

LIBS = DEBIAN.libraries
FEW, MANY = 40, 10_000

# What is exchanged, and for a link to where below the canary.
PLACES = [(LIBS, LIBS), ("etc", "etc"), ("usr/local/cuda/compat", "lib"), ("dev", "dev")]


# The table reads the number of runs off the ids.
RUNS = pytest.mark.parametrize(
    "runs",
    [
        pytest.param(FEW, id=f"{FEW} runs"),
        pytest.param(MANY, id=f"{MANY} runs", marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
    ],
)


@pytest.fixture
def tree(work: Path) -> Path:
    """A plain root with the directories that are going to be exchanged."""
    root = work / "tree"
    for name in (LIBS, "etc", "usr/local/cuda/compat", "dev", "usr/bin", "run", "proc", "lib"):
        (root / name).mkdir(parents=True)
    (root / "etc/debian_version").write_text("12\n")
    (root / f"{LIBS}/libother.so").write_text("image")
    return root


@RUNS
@pytest.mark.parametrize(("place", "canary_place"), PLACES, ids=[p for p, _ in PLACES])
def test_directory_becomes_a_link(
    in_cell: Callable[[Path], Cell],
    flip: Flipper,
    tree: Path,
    canary: Path,
    runs: int,
    place: str,
    canary_place: str,
) -> None:
    """A directory that turns into a link out of the root and back, all the time: the hook works
    inside the root or refuses; the host has no new file, and every mount is the plan's."""
    other = tree / place
    other = other.with_name(f"{other.name}.link")
    other.symlink_to(canary / canary_place)
    attacked = in_cell(tree)
    with host_untouched(canary), flip(tree / place, other):
        outcomes = [checked(attacked) for _ in range(runs)]
    # Both sides of the race were seen, else nothing was raced; a compat directory only decides
    # what the cache says.
    assert place.endswith("compat") or len(set(outcomes)) == 2
    assert list(tree.rglob("*.gpu-agent-*")) == []


@RUNS
@pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_target_becomes_a_link(
    in_cell: Callable[[Path], Cell],
    flip: Flipper,
    tree: Path,
    canary: Path,
    runs: int,
    name: str,
) -> None:
    """The same for a single name that the hook makes or replaces."""
    (tree / LIBS / name).write_text("image")
    (tree / LIBS / "other").symlink_to(canary / "file")
    attacked = in_cell(tree)
    with host_untouched(canary), flip(tree / LIBS / name, tree / LIBS / "other"):
        for _ in range(runs):
            checked(attacked)
    assert list(tree.rglob("*.gpu-agent-*")) == []


def checked(attacked: Cell) -> int:
    """One run; O2: what it mounted comes from the host's driver or is our own, inside the root."""
    run = attacked.run()
    node = attacked.starter.node
    for line in run.mounts:
        words = line.split(" ")
        inside = Path(words[4]).is_relative_to(attacked.root)
        ours = words[3] == "/" and " - tmpfs " in line
        driver = str(node.host.root).endswith(tuple(_prefixes(words[3], node.host.root)))
        assert inside, line
        assert ours or driver, line
    return run.status


def _prefixes(source: str, host: Path) -> list[str]:
    """The parts of `host` that `source`, a path inside its file system, can begin with."""
    parts = host.parts
    tails = ["/" + "/".join(parts[i:]) for i in range(1, len(parts))]
    return [tail for tail in tails if source.startswith(f"{tail}/")]
