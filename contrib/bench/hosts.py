"""Recorded hosts that nobody recorded: as many GPUs and MIG devices as a bench wants.

The driver, its files and the form of every fact come from a recording below tests/hosts; GPUs,
nodes and instances are multiplied. `contrib.simhost` builds the result as it builds any other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contrib.simhost.tree import CAPS_PER_GPU, CAPS_PER_INSTANCE
from tests.containers.staging import HOSTS

TEMPLATE = HOSTS / "a100x8-minors"
PROC = "proc/driver/nvidia"
CAPS_MAJOR = 236
FIRST_CAP = 3
NAME = "NVIDIA A100-SXM4-80GB"


@dataclass(frozen=True, slots=True)
class Shape:
    """How many GPUs a host has, and how many MIG devices each GPU."""

    gpus: int
    migs: int = 0

    @property
    def name(self) -> str:
        """For people, and for the folder."""
        return f"{self.gpus} GPUs" + (f", {self.gpus * self.migs} MIG devices" if self.migs else "")


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance with one compute instance, and the minors of their capability nodes."""

    gpu: int
    gi: int

    @property
    def minors(self) -> tuple[int, int]:
        """Of the GPU instance's node and of the compute instance's, as mig-minors has them."""
        each = 1 + CAPS_PER_INSTANCE
        first = FIRST_CAP + self.gpu * CAPS_PER_GPU * each + self.gi * each
        return first, first + 1

    @property
    def uuid(self) -> str:
        """NVML's name for the MIG device."""
        return f"MIG-a1000000-0000-5000-8000-{self.gpu:06x}{self.gi:06x}"


def write_host(folder: Path, shape: Shape) -> Path:
    """Write a host of that shape into the new directory `folder`; gives `folder`."""
    shutil.copytree(TEMPLATE, folder)
    for part in (f"{PROC}/gpus", "inventory.txt", "plans.txt"):
        path = folder / part
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for gpu in range(shape.gpus):
        _write_gpu(folder, gpu)
    instances = [Instance(g, i) for g in range(shape.gpus) for i in range(1, shape.migs + 1)]
    for instance in instances:
        _write_capabilities(folder, instance)
    if instances:
        with open(folder / "tree.txt", "a") as tree:
            tree.write(f"\nmig-minors proc/driver/nvidia-caps/mig-minors {shape.gpus}\n")
    lines = _nodes((folder / "nodes.txt").read_text(), shape, instances)
    (folder / "nodes.txt").write_text("\n".join([*lines, ""]))
    answers = json.loads((folder / "nvml.json").read_text())
    answers |= {"count": shape.gpus, "devices": _devices(shape, instances)}
    (folder / "nvml.json").write_text(json.dumps(answers))
    return folder


def _write_gpu(folder: Path, gpu: int) -> None:
    home = folder / PROC / "gpus" / _bus_id(gpu).lower()
    home.mkdir(parents=True)
    facts = {
        "Model": NAME,
        "IRQ": str(60 + gpu),
        "GPU UUID": _uuid(gpu),
        "Bus Type": "PCIe",
        "Bus Location": _bus_id(gpu).lower(),
        "Device Minor": str(gpu),
        "GPU Excluded": "No",
    }
    (home / "information").write_text("".join(f"{k}: \t {v}\n" for k, v in facts.items()))


def _write_capabilities(folder: Path, instance: Instance) -> None:
    place = folder / PROC / "capabilities" / f"gpu{instance.gpu}" / "mig" / f"gi{instance.gi}"
    for directory, minor in zip((place, place / "ci0"), instance.minors, strict=True):
        directory.mkdir(parents=True)
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        (directory / "access").write_text(text)


def _nodes(recorded: str, shape: Shape, instances: list[Instance]) -> Iterator[str]:
    for line in recorded.splitlines():
        # The template's own GPUs; control nodes have no digit there.
        if not line.removeprefix("dev/nvidia")[:1].isdigit():
            yield line
    for gpu in range(shape.gpus):
        yield f"dev/nvidia{gpu} 195:{gpu} 0666 0:0"
    for instance in instances:
        for minor in instance.minors:
            yield f"dev/nvidia-caps/nvidia-cap{minor} {CAPS_MAJOR}:{minor} 0444 0:0"


def _devices(shape: Shape, instances: list[Instance]) -> list[dict[str, object]]:
    return [_device(gpu, [i for i in instances if i.gpu == gpu]) for gpu in range(shape.gpus)]


def _device(gpu: int, instances: list[Instance]) -> dict[str, object]:
    migs = [
        {"slot": slot, "uuid": i.uuid, "gi": i.gi, "ci": 0, "name": f"{NAME} MIG 1g.10gb"}
        for slot, i in enumerate(instances)
    ]
    return {
        "index": gpu,
        "name": NAME,
        "uuid": _uuid(gpu),
        "brand": 14,
        "minor": gpu,
        "pci_bus_id": _bus_id(gpu),
        "cuda_compute_capability": [8, 0],
        "mig_mode": [int(bool(migs))] * 2,
        "max_mig_device_count": 7,
        "migs": migs,
    }


def _bus_id(gpu: int) -> str:
    return f"00000000:{0x10 + gpu:02X}:00.0"


def _uuid(gpu: int) -> str:
    return f"GPU-a1000000-0000-4000-8000-{gpu:012x}"
