"""Our set on the recorded H200 host against that of the usual tools, line by line.

`REWRITE_GOLDENS=1 pytest tests/test_peers.py` writes the table anew; read the difference first.
"""

from __future__ import annotations

import difflib
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from agent.config import HostSettings
from agent.host import read_inventory
from agent.inventory import Inventory
from agent.plan import NODE, READ_ONLY
from agent.planner import ProcPaths, plan
from agent.policy import Policy
from agent.request import ask
from contrib import simhost
from tests.peer_table import COMPARED, REASONS, Row, of_mounts, table, text

HOST = Path(__file__).parent / "hosts/h200-580"
PEERS = json.loads((HOST / "peers.json").read_text())

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorded hosts are x86_64"),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Inventory, str]]:
    """The recorded host's inventory, and the root it was built in."""
    made = simhost.build(HOST, tmp_path_factory.mktemp("host") / "root", real_numbers=True)
    root = str(made.root)
    settings = HostSettings(root, root, f"{root}/proc", f"{root}/sys")
    yield anyio.run(read_inventory, settings), root
    simhost.remove(made.root)


@pytest.fixture(scope="module")
def rows(host: tuple[Inventory, str]) -> list[Row]:
    """The table of our plans and the recordings."""
    requests = [ask("all", c, Policy(), "test") for c in ("all", "compute,utility")]
    every, usual = [plan(host[0], r, ProcPaths()) for r in requests if r is not None]
    return table((every, usual), PEERS)


def test_table_is_as_recorded(rows: list[Row]) -> None:
    """The table in the host's folder is, line by line, the one that these plans give."""
    golden = HOST / "peers.md"
    lines = list(text(rows))
    if os.environ.get("REWRITE_GOLDENS"):
        golden.write_text("".join(f"{line}\n" for line in lines))
    old = golden.read_text().splitlines() if golden.exists() else []
    diff = "\n".join(difflib.unified_diff(old, lines, "recorded", "now", lineterm="", n=0))
    assert not diff, f"{golden.name} differs (REWRITE_GOLDENS=1 writes it anew):\n{diff}"


def test_every_difference_has_its_reason(rows: list[Row]) -> None:
    """No tool brings anything that we do not, or the other way, without a stated reason."""
    assert [row.name for row in rows if "?" in row.reasons()] == []
    assert {letter for row in rows for letter in row.reasons()} == set(REASONS)


def test_nothing_that_a_peer_brings_is_missing(rows: list[Row]) -> None:
    """With all capabilities we bring each file and link of both tools, and each node there is."""
    ours, others = COMPARED[0][0], {other for _, other in COMPARED}
    missing = [r.name for r in rows if ours not in r.cells and others & set(r.cells)]
    assert [name for name in missing if not name.startswith("env ")] == ["node /dev/nvidia-modeset"]


def test_options_are_those_of_the_usual_tools() -> None:
    """Both tools mount files as we do; CDI's two further words are the propagation."""
    for _, _, options in PEERS["cdi_toolkit_1.20"]["mounts"]:
        assert set(options) - {"rbind", "rprivate"} == set(READ_ONLY.split(","))
    for line in PEERS["legacy_compute_utility_mountinfo"]:
        kinds = {name.partition(" ")[0] for name, _ in of_mounts([line])}
        if kinds & {"library", "program", "node"}:
            expected = NODE if "node" in kinds else READ_ONLY
            assert set(line[1].split(",")) - {"relatime"} == set(expected.split(","))
