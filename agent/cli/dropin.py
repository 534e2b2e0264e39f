"""`agentctl list` and `agentctl info`: what `nvidia-container-cli list` and `info` print.

Charliecloud, Sarus and site scripts parse those two outputs, so the lines and the order of the
classes are the same. Both read the host themselves and need no running agent, like the tool they
stand in for. They list what exists: a node that is not there is not printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import anyio
import click

from agent import catalog
from agent.content import MACHINES_32
from agent.errors import DriverNotReady
from agent.facts.busid import parse_bus_id
from agent.host import read_inventory
from agent.inventory import DriverState, Gpu, Inventory
from agent.planner import choose
from agent.request import parse_devices
from agent.standalone import load

INFO_COLUMNS = (
    *("Device Index", "Device Minor", "Model", "Brand", "GPU UUID", "Bus Location"),
    "Architecture",
)
WIDTH = 16
"""Column at which `info` writes its values."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which classes `list` prints; none chosen means all but the 32-bit libraries."""

    devices: str | None = None
    libraries: bool = False
    binaries: bool = False
    ipcs: bool = False
    firmwares: bool = False
    compat32: bool = False

    @property
    def everything(self) -> bool:
        """Whether nothing in particular was asked for."""
        return self.devices is None and not (
            self.libraries or self.binaries or self.ipcs or self.firmwares
        )


def read(config: str) -> Inventory:
    """The host now, NVML included. Raises ConfigError, and DriverNotReady without a driver."""
    inventory = anyio.run(read_inventory, load(config).host)
    if inventory.state in (DriverState.NO_DRIVER, DriverState.MISMATCH):
        raise DriverNotReady(inventory.state, inventory.reason or "no reason known")
    return inventory


def listing(inventory: Inventory, selection: Selection) -> list[str]:
    """Host paths, one a line: devices, programs, libraries, sockets, firmware.

    Raises UnknownGpu and UnhealthyGpu for a device list that the host cannot meet.
    """
    lines: list[str] = []
    if selection.everything or selection.devices is not None:
        lines += _devices(inventory, selection.devices)
    if selection.everything or selection.binaries:
        programs = {p.name: p.file.path for p in inventory.programs}
        lines += [programs[name] for name in catalog.load().programs if name in programs]
    if selection.everything or selection.libraries:
        lines += _libraries(inventory, selection.compat32)
    if selection.everything or selection.ipcs:
        lines += [ipc.source for ipc in inventory.ipc]
    if selection.everything or selection.firmwares:
        lines += [data.file.path for data in inventory.firmware]
    return list(dict.fromkeys(lines))


def info_text(inventory: Inventory) -> str:
    """The driver, then every GPU, as `key:  value` lines."""
    lines = [
        _pair("NVRM version", inventory.driver_version),
        _pair("CUDA version", _cuda(inventory)),
    ]
    for gpu in inventory.gpus:
        lines += ["", *(_pair(k, v) for k, v in zip(INFO_COLUMNS, _values(gpu), strict=True))]
    return "\n".join(lines)


def info_csv(inventory: Inventory) -> str:
    """The same as comma-separated lines, two tables under their headings."""
    lines = ["NVRM version,CUDA version", f"{inventory.driver_version},{_cuda(inventory)}"]
    lines.append(",".join(INFO_COLUMNS))
    lines += [",".join(_values(gpu)) for gpu in inventory.gpus]
    return "\n".join(lines)


def _devices(inventory: Inventory, asked: str | None) -> Iterable[str]:
    tokens: Sequence[str] = ("all",) if asked is None else parse_devices(asked) or ()
    chosen = choose(inventory, tokens)
    yield from (node.source for node in inventory.control)
    yield from (gpu.node.source for gpu in chosen.gpus if gpu.node is not None)
    for mig in chosen.migs:
        yield from (node.source for node in (mig.gi_node, mig.ci_node) if node is not None)


def _libraries(inventory: Inventory, compat32: bool) -> list[str]:
    order = {stem: place for place, stem in enumerate(catalog.load().libraries)}
    wanted = [
        library
        for library in inventory.libraries
        if catalog.capabilities_of_library(catalog.stem_of(library.name))
        and (compat32 or library.machine not in MACHINES_32)
    ]
    wanted.sort(
        key=lambda f: (f.machine in MACHINES_32, order.get(catalog.stem_of(f.name), len(order)))
    )
    return [library.file.path for library in wanted]


def _values(gpu: Gpu) -> tuple[str, ...]:
    arch = gpu.compute_capability
    return (
        str(gpu.index),
        str(gpu.minor),
        gpu.name or "",
        gpu.brand or "",
        gpu.uuid,
        _long_bus_id(gpu.bus_id),
        f"{arch[0]}.{arch[1]}" if arch else "",
    )


def _long_bus_id(bus_id: str) -> str:
    parsed = parse_bus_id(bus_id)
    if parsed is None:
        return bus_id
    domain, bus, device, function = parsed
    return f"{domain:08x}:{bus:02x}:{device:02x}.{function}"


def _cuda(inventory: Inventory) -> str:
    version = inventory.cuda_version
    return f"{version[0]}.{version[1]}" if version else ""


def _pair(key: str, value: str | None) -> str:
    return f"{key + ':':{WIDTH}}{value or ''}"


def print_listing(config: str, selection: Selection) -> None:
    """Read the host and print what `selection` names."""
    for line in listing(read(config), selection):
        click.echo(line)


def print_info(config: str, *, csv: bool) -> None:
    """Read the host and print what it is."""
    inventory = read(config)
    click.echo(info_csv(inventory) if csv else info_text(inventory))
