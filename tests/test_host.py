"""The host of the agent: readings with NVML's last answers, which are asked for apart."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from agent.config import HostSettings
from agent.host import Host, read_inventory
from agent.inventory import DriverState
from contrib import simhost

HOSTS = Path(__file__).parent / "hosts"
VERSION = "550.90.07"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorded hosts are x86_64"),
]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    host = simhost.build(HOSTS / "a100-mig", tmp_path / "root")
    yield host.root
    simhost.remove(host.root)


def settings(root: Path, *, nvml: bool = True, timeout_s: float = 20.0) -> HostSettings:
    return HostSettings(
        driver_root=str(root),
        dev_root=str(root),
        proc_root=f"{root}/proc",
        sys_root=f"{root}/sys",
        nvml=nvml,
        nvml_timeout_s=timeout_s,
    )


def upgrade(root: Path, version: str) -> None:
    """Another driver: its module and its libraries at once."""
    loaded = root / "proc/driver/nvidia/version"
    loaded.write_text(loaded.read_text().replace(VERSION, version))
    for library in list(root.rglob(f"lib*.so.{VERSION}")):
        library.rename(str(library).replace(VERSION, version))


def test_nvml_is_joined_once_it_has_answered(root: Path) -> None:
    """Readings have NVML's names after it was asked; it says whether its answers are others."""

    async def body() -> None:
        host = Host(settings(root))
        before = await host.read()
        assert before.state is DriverState.READY
        assert "NVML: not asked yet" in before.notes
        assert (await host.ask_nvml(), await host.ask_nvml()) == (True, False)
        after = await host.read()
        assert [m.uuid[:3] for m in after.gpus[0].migs] == ["MIG"] * 3
        assert after == await read_inventory(settings(root))
        answers = root / "nvml.answers"
        answers.write_text(answers.read_text().replace("MIG 3g.40gb", "MIG 4g.40gb"))
        assert await host.ask_nvml()
        assert (await host.read()).gpus[0].migs[0].name == "NVIDIA A100 80GB PCIe MIG 4g.40gb"

    anyio.run(body)


def test_without_nvml_procfs_is_enough(root: Path) -> None:
    """NVML switched off is never asked, and its note says so without a prefix of its own."""

    async def body() -> None:
        host = Host(settings(root, nvml=False))
        assert await host.ask_nvml() is False
        inventory = await host.read()
        assert inventory.notes == ("NVML: switched off in the config",)
        assert [len(gpu.migs) for gpu in inventory.gpus] == [3, 0]

    anyio.run(body)


def test_answers_of_another_driver_are_not_believed(root: Path) -> None:
    """After a driver change the last answers are left out until NVML is asked again."""

    async def body() -> None:
        host = Host(settings(root))
        await host.ask_nvml()
        upgrade(root, "550.99.99")
        inventory = await host.read()
        assert inventory.state is DriverState.READY
        assert inventory.cuda_version is None
        assert f"NVML: answers are of driver {VERSION}, 550.99.99 is loaded" in inventory.notes

    anyio.run(body)


def test_nvml_that_hangs_is_an_answer_too(root: Path) -> None:
    """After its time NVML is silent with a reason, and the GPUs are those of procfs."""
    answers = root / "nvml.answers"
    answers.write_text(f"delay_ms nvmlInitWithFlags -1\n{answers.read_text()}")
    inventory = anyio.run(read_inventory, settings(root, timeout_s=0.2))
    assert inventory.state is DriverState.READY
    assert any("no answer within 0.2 s" in note for note in inventory.notes)
