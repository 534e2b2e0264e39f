"""The whole host in one reading."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.facts.read import read_host
from agent.facts.root import HostRoots
from agent.facts.values import NvmlFact
from tests.elf_files import PROGRAM, elf
from tests.host_trees import (
    DIRECTORY,
    HOSTS,
    VERSION,
    Content,
    Link,
    library,
    plant,
    version_text,
)

ASKED = NvmlFact(reason="not asked")
HOST: dict[str, Content] = {
    **library("libcuda"),
    **library("libnvidia-ml"),
    "usr/bin/nvidia-smi": elf(kind=PROGRAM),
    f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin": b"x",
    "proc/devices": "Character devices:\n195 nvidia\n511 nvidia-uvm\n",
    "proc/driver/nvidia/version": version_text(),
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Device Minor: \t 0\n",
    "tmp/nvidia-mps": DIRECTORY,
}


def roots(path: Path) -> HostRoots:
    """Every root below one folder."""
    return HostRoots(str(path), str(path), f"{path}/proc", f"{path}/sys")


def test_whole_host(tmp_path: Path) -> None:
    """Every reader's facts arrive, and NVML's as they were given."""
    facts = read_host(roots(plant(tmp_path, HOST)), ASKED)
    assert (facts.driver.version, facts.nvml, facts.libraries_reason) == (VERSION, ASKED, None)
    assert [lib.name.partition(".")[0] for lib in facts.libraries] == ["libcuda", "libnvidia-ml"]
    assert [g.minor for g in facts.gpus] == [0]
    assert [p.name for p in facts.programs] == ["nvidia-smi"]
    assert [f.target for f in facts.firmware] == [f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"]
    assert [i.target for i in facts.ipc] == ["/tmp/nvidia-mps"]


def test_same_host_same_facts(tmp_path: Path) -> None:
    """Reading an unchanged host again gives equal facts."""
    where = roots(plant(tmp_path, HOST))
    assert read_host(where, ASKED) == read_host(where, ASKED)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 999, DIRECTORY, Link("loop"), Link("/dev/zero")]
)
def test_broken_host(tmp_path: Path, content: Content) -> None:
    """Whatever stands in the place of each file of a host, reading it raises nothing."""
    for name in HOST:
        root = tmp_path / name.replace("/", "_")
        plant(root, {**{k: v for k, v in HOST.items() if k != name}, name: content})
        assert read_host(roots(root), ASKED).nvml == ASKED


def test_no_roots_at_all() -> None:
    """Roots that do not exist give empty facts with reasons."""
    facts = read_host(HostRoots("/none", "/none", "/none", "/none"), ASKED)
    assert (facts.gpus, facts.libraries, facts.nodes, facts.ipc) == ((), (), (), ())
    assert None not in (facts.driver.reason, facts.libraries_reason)


def test_recorded_procfs(tmp_path: Path) -> None:
    """A real host's procfs with a fake driver root: version and GPU come from procfs."""
    where = HostRoots(str(tmp_path), str(tmp_path), str(HOSTS / "h200-580/proc"), str(tmp_path))
    facts = read_host(where, ASKED)
    assert facts.driver.version == "580.159.04"
    assert [g.bus_id for g in facts.gpus] == ["0000:00:06.0"]


def test_loads_nothing_from_outside() -> None:
    """The readers and the inventory need the standard library only: a standalone tool uses them."""
    program = (
        "import sys, agent.facts.read, agent.inventory; "
        "print(*(m for m in ('grpc', 'pydantic', 'pynvml', 'anyio') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.split() == []
