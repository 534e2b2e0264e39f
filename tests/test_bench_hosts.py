"""The benches' composed hosts: the agent finds in them what was asked for, all of it usable."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from agent import config
from agent.facts.nvml import read_nvml
from agent.facts.read import read_host
from agent.facts.values import NvmlFact
from agent.host import host_roots, nvml_library
from agent.inventory import Inventory, build
from contrib.bench.hosts import Instance, Shape, write_host
from contrib.simhost import tree

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="device nodes need root"),
]


async def inventory(home: Path, shape: Shape) -> Inventory:
    """What the agent finds on a host of that shape, NVML included."""
    host = tree.build(write_host(home / "recorded", shape), home / "host")
    try:
        roots = host_roots(config.parse(host.config().encode(), "test").host)
        answers = await read_nvml(nvml_library(read_host(roots, NvmlFact(reason="first"))), 10.0)
        return build(read_host(roots, answers))
    finally:
        tree.remove(host.root)


def run(home: Path, shape: Shape) -> Inventory:
    """The same, from a test that is not asynchronous."""
    return anyio.run(inventory, home, shape)


@pytest.mark.parametrize("gpus", [8, 16])
def test_whole_gpus(tmp_path: Path, gpus: int) -> None:
    """Every GPU has its node, its name and no problem."""
    found = run(tmp_path, Shape(gpus))
    assert str(found.state) == "ready"
    assert [(g.index, g.minor, g.problem) for g in found.gpus] == [
        (n, n, None) for n in range(gpus)
    ]
    assert all(g.node is not None and g.name for g in found.gpus)


def test_mig_devices(tmp_path: Path) -> None:
    """8 GPUs of 7 instances are 56 MIG devices, each with both of its capability nodes."""
    found = run(tmp_path, Shape(8, migs=7))
    migs = [(g.index, m) for g in found.gpus for m in g.migs]
    assert len(migs) == len({m.uuid for _, m in migs}) == 56
    for gpu, mig in migs:
        names = [node.target if node else None for node in (mig.gi_node, mig.ci_node)]
        minors = Instance(gpu, mig.gi).minors
        assert names == [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors]
