"""Recorded hosts: the plans of typical requests, in words, as a text beside the recording.

`REWRITE_GOLDENS=1 pytest tests/test_plans_golden.py` writes the texts anew; read the difference
before committing it. Paths are those below the driver root. Every plan is also read back as the
hook reads it, and checked for what no plan may have.
"""

from __future__ import annotations

import difflib
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from agent.config import HostSettings
from agent.errors import Refused
from agent.host import read_inventory
from agent.inventory import Inventory
from agent.plan import (
    BindFile,
    BindIpc,
    BindNode,
    DeviceRule,
    Link,
    MaskProc,
    Place,
    Plan,
    Step,
    encode,
)
from agent.planner import ProcPaths, plan
from agent.policy import Policy
from agent.request import Request, ask
from contrib import simhost
from hooks import planfile

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(p.name for p in HOSTS.iterdir() if (p / "tree.txt").is_file())
REWRITE = "REWRITE_GOLDENS"

USUAL = (("all", "compute,utility"), ("0", "utility"), ("none", "utility"), ("99", "utility"))
OWN = {
    "a100-mig": (
        *(("0:1", "compute,utility"), ("MIG-a1000316-0000-5000-8000-00000000000d", "compute")),
        *(("MIG-GPU-a1000316-0000-4000-8000-000000000000/1/0", "compute"), ("1", "graphics")),
        ("0:3", "compute"),
    ),
    "a100x8-minors": (
        *(("all", "all"), ("1,7", "compute,compat32"), ("0000:47:00.0", "video")),
        ("00000000:47:00.0", "utility"),
    ),
    "h200-580": (("0", "all"),),
    "l40s-lost": (("1", "utility"), ("0,2", "display")),
}

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorded hosts are x86_64"),
]

Read = Callable[[str], tuple[Inventory, Path]]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Read]:
    """Build a recorded host with its real numbers and read it, once: inventory and root."""
    place = tmp_path_factory.mktemp("hosts")
    known: dict[str, tuple[Inventory, Path]] = {}

    def once(name: str) -> tuple[Inventory, Path]:
        if name not in known:
            host = simhost.build(HOSTS / name, place / name, real_numbers=True)
            root = str(host.root)
            settings = HostSettings(root, root, f"{root}/proc", f"{root}/sys")
            known[name] = (anyio.run(read_inventory, settings), host.root)
        return known[name]

    yield once
    for root in sorted(place.iterdir()):
        simhost.remove(root)


def requests(name: str) -> Iterator[Request]:
    for devices, capabilities in (*USUAL, *OWN.get(name, ())):
        made = ask(devices, capabilities, Policy(), "test")
        assert made is not None
        yield made


def plans(name: str, inventory: Inventory) -> Iterator[tuple[Request, Plan | Refused]]:
    for request in requests(name):
        try:
            yield request, plan(inventory, request, ProcPaths())
        except Refused as e:
            yield request, e


def describe(request: Request, made: Plan | Refused) -> Iterator[str]:
    """The request as a heading and its steps or its refusal, a blank line last."""
    capabilities = ",".join(request.capabilities) or "nothing"
    yield f"{','.join(request.devices) or 'none'} with {capabilities}"
    if isinstance(made, Refused):
        yield f"  refused: {made}"
    else:
        yield from (f"  {line}" for line in made.describe())
    yield ""


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_as_recorded(name: str, read: Read) -> None:
    """The plans of the recorded host are, line by line, the text in its folder."""
    inventory, root = read(name)
    lines = [
        line.replace(str(root), "")
        for request, made in plans(name, inventory)
        for line in describe(request, made)
    ]
    golden = HOSTS / name / "plans.txt"
    if os.environ.get(REWRITE):
        golden.write_text("".join(f"{line}\n" for line in lines))
    old = golden.read_text().splitlines() if golden.exists() else []
    diff = "\n".join(difflib.unified_diff(old, lines, "recorded", "now", lineterm="", n=1))
    assert not diff, f"{golden.name} of {name} differs ({REWRITE}=1 writes it anew):\n{diff}"


def places(steps: tuple[Step, ...]) -> Iterator[tuple[Place, str]]:
    """Where in the container each step puts something."""
    for step in steps:
        match step:
            case BindFile() | Link():
                yield step.place, step.target
            case BindNode():
                yield Place.ABSOLUTE, step.node.target
            case BindIpc():
                yield Place.ABSOLUTE, step.ipc.target
            case MaskProc():
                yield Place.ABSOLUTE, step.target


@pytest.mark.parametrize("name", NAMES)
def test_no_target_twice_and_none_inside_another(name: str, read: Read) -> None:
    """No two steps have the same place, and none lies below a place that another one covers."""
    for _, made in plans(name, read(name)[0]):
        if isinstance(made, Refused):
            continue
        found = list(places(made.steps))
        assert len(found) == len(set(found))
        inside = [(p, t) for p, t in found for q, u in found if p is q and t.startswith(f"{u}/")]
        assert inside == []


@pytest.mark.parametrize("name", NAMES)
def test_rules_are_exact(name: str, read: Read) -> None:
    """The rules are the numbers of the bound nodes, each once, for reading and writing only."""
    for _, made in plans(name, read(name)[0]):
        if isinstance(made, Refused):
            continue
        nodes = [(s.node.major, s.node.minor) for s in made.steps if isinstance(s, BindNode)]
        rules = [s for s in made.steps if isinstance(s, DeviceRule)]
        assert [(r.major, r.minor) for r in rules] == nodes
        assert len(set(nodes)) == len(nodes)
        assert {r.access for r in rules} <= {"rw"}


@pytest.mark.parametrize("name", NAMES)
def test_the_hook_reads_every_plan(name: str, read: Read) -> None:
    """The hook's parser takes every plan, step for step; the two sides cannot drift apart."""
    for _, made in plans(name, read(name)[0]):
        if isinstance(made, Refused):
            continue
        steps = planfile.parse_plan(encode(made)).steps
        assert [[f.decode() for f in s] for s in steps] == [list(s.fields()) for s in made.steps]
