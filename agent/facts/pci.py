"""NVIDIA's GPUs on the PCI bus, from sysfs: whose they are, and which DRM devices they have.

A GPU that another driver has (`vfio-pci`, `nouveau`) is here and not in procfs. It opens no
device and reads no configuration space, so a sleeping GPU stays asleep.
"""

from __future__ import annotations

import os
import re

from agent.facts.busid import parse_bus_id
from agent.facts.root import list_names, read_text
from agent.facts.values import DrmFact, PciGpu

_VENDOR = "0x10de"
# VGA, 3D and other display controllers; not a GPU's audio, USB or NVSwitch functions.
_DISPLAY = "0x03"
_DRM = re.compile(r"(?:card|renderD)\d+")
_NUMBER = re.compile(r"(\d{1,4}):(\d{1,7})")


def read_pci(sys_root: str) -> tuple[PciGpu, ...]:
    """Every NVIDIA GPU that the kernel sees, in bus order."""
    devices = os.path.join(sys_root, "bus/pci/devices")
    found = []
    for name in list_names(devices):
        address = parse_bus_id(name)
        folder = os.path.join(devices, name)
        if address is not None and _is_gpu(folder):
            found.append((address, PciGpu(name, _driver(folder), _drm(folder))))
    return tuple(gpu for _, gpu in sorted(found, key=lambda pair: pair[0]))


def _is_gpu(folder: str) -> bool:
    vendor = read_text(os.path.join(folder, "vendor")) or ""
    kind = read_text(os.path.join(folder, "class")) or ""
    return vendor.strip() == _VENDOR and kind.startswith(_DISPLAY)


def _driver(folder: str) -> str | None:
    try:
        return os.path.basename(os.readlink(os.path.join(folder, "driver"))) or None
    except OSError:
        return None


def _drm(folder: str) -> tuple[DrmFact, ...]:
    """The cards and render nodes, sorted by name; connectors (`card0-DP-1`) are none."""
    found = []
    for name in list_names(os.path.join(folder, "drm")):
        text = read_text(os.path.join(folder, "drm", name, "dev")) or ""
        number = _NUMBER.fullmatch(text.strip())
        if number and _DRM.fullmatch(name):
            found.append(DrmFact(name, int(number.group(1)), int(number.group(2))))
    return tuple(found)
