"""GPUs and MIG instances, from procfs texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.facts.busid import format_bus_id, parse_bus_id
from agent.facts.gpus import (
    parse_information,
    parse_mig_minors,
    read_gpus,
    read_mig_caps,
    read_mig_management,
)
from agent.facts.values import MigCap, MigManagement, ProcGpu
from tests.host_trees import DIRECTORY, HOSTS, Content, plant

UUID = "GPU-a1b2c3d4-0000-4000-8000-00000000000a"


def information(model: str = "NVIDIA H200", uuid: str = UUID, minor: str = "3") -> str:
    """A text with the driver's own spacing."""
    return (
        f"Model: \t\t {model}\nIRQ:   \t\t 41\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.a5\n"
        f"Bus Location: \t 0000:00:06.0\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
    )


def test_recorded_gpu() -> None:
    """The information file of a real H200."""
    gpus = read_gpus(str(HOSTS / "h200-580/proc"))
    assert gpus == (ProcGpu("0000:00:06.0", 0, UUID, "NVIDIA H200", False),)


@pytest.mark.parametrize(
    "model", ["GeForce GTX 1080 Ti / special", "Quadro (TM) M4000: Device Minor: 9", "A/B (C)"]
)
def test_model_may_hold_anything(model: str) -> None:
    """Spaces, slashes, parentheses and colons in a model's name change no other field (B117)."""
    gpu = parse_information("0000:01:00.0", information(model))
    assert (gpu.model, gpu.minor, gpu.uuid) == (model, 3, UUID)


def test_model_with_nul_and_line_separator() -> None:
    """NULs go, and a character that some call a line end starts no new field."""
    gpu = parse_information(
        "0000:01:00.0", information("Ge\0Force\x0bDevice Minor: 9\u2028GPU UUID: x")
    )
    assert (gpu.minor, gpu.uuid) == (3, UUID)
    assert gpu.model == "GeForce?Device Minor: 9?GPU UUID: x"


@pytest.mark.parametrize("uuid", ["GPU-????????-????-????-????-????????????", "", "GPU-1234"])
def test_unknown_uuid_is_none(uuid: str) -> None:
    """What the driver shows before the first use of the GPU is no UUID."""
    assert parse_information("0000:01:00.0", information(uuid=uuid)).uuid is None


def test_excluded_gpu_without_minor() -> None:
    """An excluded GPU says so and has no minor."""
    text = information(minor="").replace("Excluded:\t No", "Excluded:\t Yes")
    gpu = parse_information("0000:01:00.0", text)
    assert (gpu.excluded, gpu.minor) == (True, None)


def test_empty_information() -> None:
    """A GPU whose file cannot be read is still listed, with nothing known of it."""
    assert parse_information("0000:01:00.0", "") == ProcGpu("0000:01:00.0", None, None, None, False)


def test_domains_of_any_width(tmp_path: Path) -> None:
    """Domains of 4, 5 and 8 digits are GPUs, in PCI order; other names are not (B117)."""
    names = ("10000:e1:00.0", "00000000:01:00.0", "0000:0a:00.0", "GeForce", "0000:zz:00.0")
    tree: dict[str, Content] = {f"driver/nvidia/gpus/{n}/information": information() for n in names}
    gpus = read_gpus(str(plant(tmp_path, tree)))
    assert [g.bus_id for g in gpus] == ["00000000:01:00.0", "0000:0a:00.0", "10000:e1:00.0"]


def test_bus_ids_of_procfs_and_nvml_are_one_address() -> None:
    """Case and leading zeros do not matter, and a procfs name comes back."""
    assert parse_bus_id("00000000:3B:00.0") == parse_bus_id("0000:3b:00.0") == (0, 0x3B, 0, 0)
    assert format_bus_id((0x10000, 0xE1, 0, 1)) == "10000:e1:00.1"
    assert parse_bus_id("0000:3b:00.0\n") is None


MINORS = "config 1\nmonitor 2\n" + "".join(
    f"gpu0/gi{g}/access {3 + 9 * g}\ngpu0/gi{g}/ci0/access {4 + 9 * g}\n" for g in range(15)
)


def instances(gpu: int, *pairs: tuple[int, int], access: str = "") -> dict[str, Content]:
    """The capability files of MIG instances that exist."""
    base = f"driver/nvidia/capabilities/gpu{gpu}/mig"
    tree: dict[str, Content] = {}
    for gi, ci in pairs:
        tree[f"{base}/gi{gi}/access"] = access
        tree[f"{base}/gi{gi}/ci{ci}/access"] = access
    return tree


def test_only_existing_instances(tmp_path: Path) -> None:
    """`mig-minors` lists every possible instance; only those with a folder are there."""
    minors: dict[str, Content] = {"driver/nvidia-caps/mig-minors": MINORS}
    plant(tmp_path, {**minors, **instances(0, (13, 0), (5, 0))})
    caps = read_mig_caps(str(tmp_path))
    assert caps == (MigCap(0, 5, 0, 48, 49), MigCap(0, 13, 0, 120, 121))


def test_capability_number_without_mig_minors(tmp_path: Path) -> None:
    """Without `mig-minors` the access files' own numbers serve."""
    plant(tmp_path, instances(2, (1, 0), access="DeviceFileMinor: 77\nDeviceFileMode: 292\n"))
    assert read_mig_caps(str(tmp_path)) == (MigCap(2, 1, 0, 77, 77),)


def test_instance_without_number_is_left_out(tmp_path: Path) -> None:
    """An instance whose capability has no number anywhere cannot be used."""
    plant(tmp_path, instances(0, (1, 0)))
    assert read_mig_caps(str(tmp_path)) == ()


def test_mig_management_by_name(tmp_path: Path) -> None:
    """The files' own numbers and modes, or those of `mig-minors`; a missing file is no right."""
    folder = "driver/nvidia/capabilities/mig"
    access = "DeviceFileMinor: 7\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    plant(tmp_path, {f"{folder}/monitor": access})
    assert read_mig_management(str(tmp_path)) == (MigManagement("monitor", 7, 0o444),)
    plant(tmp_path, {f"{folder}/config": "", "driver/nvidia-caps/mig-minors": "config 9\n"})
    assert read_mig_management(str(tmp_path))[0] == MigManagement("config", 9, 0o400)


def test_mig_off(tmp_path: Path) -> None:
    """An empty `mig` folder, as with MIG off, is no instance."""
    plant(tmp_path, {"driver/nvidia/capabilities/gpu0/mig": DIRECTORY})
    assert read_mig_caps(str(tmp_path)) == ()


def test_odd_lines_of_mig_minors() -> None:
    """Lines that are not a name and a number are passed over."""
    assert parse_mig_minors("config 1\n\nx\ngpu0 -1\na b c\nmonitor 2\n") == {
        "config": 1,
        "monitor": 2,
    }
