"""GPUs on the PCI bus and their DRM devices, found in fake sysfs trees."""

from __future__ import annotations

from pathlib import Path

from agent.facts.pci import read_pci
from agent.facts.values import DrmFact, PciGpu
from tests.host_trees import Content, Link, plant

BUS = "bus/pci/devices"
GPU = "0000:3b:00.0"


def device(bus_id: str, driver: str | None = "nvidia", **files: str) -> dict[str, Content]:
    """One device as sysfs shows it: a link to the place where its files are."""
    place = f"devices/pci0000:3a/{bus_id}"
    tree: dict[str, Content] = {f"{BUS}/{bus_id}": Link(f"../../../{place}")}
    tree |= {f"{place}/{name}": f"{text}\n" for name, text in files.items()}
    if driver is not None:
        tree[f"{place}/driver"] = Link(f"../../../bus/pci/drivers/{driver}")
    return tree


def gpu(bus_id: str, driver: str | None = "nvidia") -> dict[str, Content]:
    """One GPU of NVIDIA's."""
    return device(bus_id, driver, vendor="0x10de", **{"class": "0x030200"})


def test_gpus_and_whose_they_are(tmp_path: Path) -> None:
    """Each GPU is there with the driver that has it, in bus order, also one that none has."""
    trees = gpu("0000:af:00.0", "vfio-pci") | gpu("0000:d8:00.0", None) | gpu(GPU)
    assert read_pci(str(plant(tmp_path, trees))) == (
        PciGpu(GPU, "nvidia"),
        PciGpu("0000:af:00.0", "vfio-pci"),
        PciGpu("0000:d8:00.0", None),
    )


def test_other_devices_are_no_gpus(tmp_path: Path) -> None:
    """Another vendor's GPU and NVIDIA's audio and NVSwitch functions are left out."""
    plant(tmp_path, device("0000:02:00.0", "ast", vendor="0x1a03", **{"class": "0x030000"}))
    plant(tmp_path, device("0000:3b:00.1", vendor="0x10de", **{"class": "0x040300"}))
    plant(tmp_path, device("0000:c1:00.0", vendor="0x10de", **{"class": "0x068000"}))
    assert read_pci(str(tmp_path)) == ()


def test_drm_devices_have_numbers(tmp_path: Path) -> None:
    """The card and the render node of a GPU come with their numbers; connectors are no devices."""
    place = f"devices/pci0000:3a/{GPU}/drm"
    plant(tmp_path, gpu(GPU))
    plant(tmp_path, {f"{place}/card1/dev": "226:1\n", f"{place}/renderD128/dev": "226:128\n"})
    plant(tmp_path, {f"{place}/card1-DP-1/dev": "226:9\n", f"{place}/card2/dev": "what\n"})
    (found,) = read_pci(str(tmp_path))
    assert found.drm == (DrmFact("card1", 226, 1), DrmFact("renderD128", 226, 128))


def test_no_sysfs(tmp_path: Path) -> None:
    """Without a PCI bus there are no GPUs on it."""
    assert read_pci(str(tmp_path / "none")) == ()
