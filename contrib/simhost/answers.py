"""A recorded `nvml.json` in the words of the NVML stub.

The JSON has the recording's keys (`driver_version`, `cuda_driver_version`, `devices`), plus
`errors` and `delays_ms` (function to number) at the top and per device, plus `migs` per device
(slot, uuid, gi, ci, name). Keys without a meaning for the stub are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

DEVICE_KEYS = (
    ("uuid", "uuid"),
    ("name", "name"),
    ("bus", "pci_bus_id"),
    ("minor", "minor"),
    ("brand", "brand"),
    ("slots", "max_mig_device_count"),
    ("cc", "cuda_compute_capability"),
    ("mig", "mig_mode"),
    ("persistence", "persistence_mode"),
)


def answers_text(nvml: Mapping[str, object]) -> str:
    """The stub's answers file, ending in a newline."""
    return "".join(f"{line}\n" for line in library_lines(nvml))


def library_lines(nvml: Mapping[str, object]) -> Iterator[str]:
    """The lines for the library and then those of each device."""
    if version := nvml.get("driver_version"):
        yield f"driver {version}"
    if (cuda := nvml.get("cuda_driver_version")) is not None:
        yield f"cuda {cuda}"
    yield from rule_lines(nvml)
    for device in objects(nvml.get("devices")):
        yield from device_lines(device)


def device_lines(device: Mapping[str, object]) -> Iterator[str]:
    """One GPU and the MIG devices in its slots."""
    yield f"gpu {device.get('index', '')}"
    for key, source in DEVICE_KEYS:
        if (value := device.get(source)) is not None:
            yield f"{key} {' '.join(map(str, value)) if isinstance(value, list) else value}"
    yield from rule_lines(device)
    for mig in objects(device.get("migs")):
        yield f"slot {mig['slot']}"
        yield f"uuid {mig['uuid']}"
        yield f"instance {mig['gi']} {mig['ci']}"
        if name := mig.get("name"):
            yield f"name {name}"
        yield from rule_lines(mig)


def rule_lines(place: Mapping[str, object]) -> Iterator[str]:
    """The failures and delays of one place."""
    for key, source in (("error", "errors"), ("delay_ms", "delays_ms")):
        rules = place.get(source)
        for call, number in rules.items() if isinstance(rules, dict) else ():
            yield f"{key} {call} {number}"


def objects(value: object) -> Iterable[Mapping[str, object]]:
    """The objects of a JSON list, none for anything else."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
