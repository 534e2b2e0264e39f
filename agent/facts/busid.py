"""PCI bus ids: `0000:3b:00.0` in procfs, `00000000:3B:00.0` in NVML, one address.

Only the text form; what lies at the address is read elsewhere.
"""

from __future__ import annotations

import re

# The kernel writes four digits and more where the domain needs them (Intel VMD: 10000).
_BUS_ID = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")

PciAddress = tuple[int, int, int, int]
"""Domain, bus, device, function: sorts in PCI bus order."""


def parse_bus_id(text: str) -> PciAddress | None:
    """The address that a bus id means, or None if it is not one."""
    found = _BUS_ID.fullmatch(text)
    if found is None:
        return None
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return domain, bus, device, function


def format_bus_id(address: PciAddress) -> str:
    """The name of an address under /proc/driver/nvidia/gpus."""
    domain, bus, device, function = address
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
