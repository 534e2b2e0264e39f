"""GPUs and MIG instances as procfs shows them, without opening any GPU.

`gpus/<bus id>/information` is read by key, since a model's name may hold anything. NVML's view
of the same GPUs is read elsewhere, and joining both is the inventory's.
"""

from __future__ import annotations

import os
import re

from agent.errors import one_line
from agent.facts.busid import parse_bus_id
from agent.facts.root import list_names, read_text
from agent.facts.values import MigCap, MigManagement, ProcGpu

MIG_MINORS_LIMIT = 4 * 1024 * 1024
"""Bytes of `mig-minors`, which lists all possible instances of 32 GPUs."""

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NUMBER = re.compile(r"\d{1,9}")
_ACCESS_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d{1,9})\s*$", re.MULTILINE)
_ACCESS_MODE = re.compile(r"^DeviceFileMode:\s*(\d{1,9})\s*$", re.MULTILINE)
_NO_MODE = 0o400


def read_gpus(proc_root: str) -> tuple[ProcGpu, ...]:
    """Every GPU the loaded module has, in PCI bus order; a field it does not show is None."""
    folder = os.path.join(proc_root, "driver/nvidia/gpus")
    found = []
    for name in list_names(folder):
        address = parse_bus_id(name)
        if address is not None:
            text = read_text(os.path.join(folder, name, "information")) or ""
            found.append((address, parse_information(name, text)))
    return tuple(gpu for _, gpu in sorted(found, key=lambda pair: pair[0]))


def parse_information(bus_id: str, text: str) -> ProcGpu:
    """One `information` text."""
    fields: dict[str, str] = {}
    # Not splitlines(): it also breaks at characters that a hostile model name may hold.
    for line in text.split("\n"):
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), one_line(value.replace("\0", "").strip()))
    uuid = fields.get("GPU UUID", "")
    minor = fields.get("Device Minor", "")
    return ProcGpu(
        bus_id=bus_id,
        minor=int(minor) if _NUMBER.fullmatch(minor) else None,
        # Until the GPU was opened once the driver writes "GPU-????????-????-...".
        uuid=uuid if _UUID.fullmatch(uuid) else None,
        model=fields.get("Model") or None,
        excluded=fields.get("GPU Excluded", "").lower() == "yes",
    )


def read_mig_caps(proc_root: str) -> tuple[MigCap, ...]:
    """Every compute instance that exists, sorted; one whose numbers are unknown is left out."""
    folder = os.path.join(proc_root, "driver/nvidia/capabilities")
    gpus = _numbered(folder, "gpu")
    if not gpus:
        return ()
    minors: dict[str, int] | None = None
    found = []
    for gpu, gpu_dir in gpus:
        for gi, gi_dir in _numbered(os.path.join(gpu_dir, "mig"), "gi"):
            for ci, ci_dir in _numbered(gi_dir, "ci"):
                if minors is None:  # a long file, of use only where an instance exists
                    minors = _read_mig_minors(proc_root)
                key = f"gpu{gpu}/gi{gi}"
                gi_cap = _cap(minors, f"{key}/access", gi_dir)
                ci_cap = _cap(minors, f"{key}/ci{ci}/access", ci_dir)
                if gi_cap is not None and ci_cap is not None:
                    found.append(MigCap(gpu, gi, ci, gi_cap, ci_cap))
    return tuple(sorted(found, key=lambda c: (c.gpu_minor, c.gi, c.ci)))


def read_mig_management(proc_root: str) -> tuple[MigManagement, ...]:
    """The capabilities to configure and to monitor all instances, as far as the driver has them.

    `mig/config` and `mig/monitor` are files; their minors stand in them or else in `mig-minors`.
    """
    folder = os.path.join(proc_root, "driver/nvidia/capabilities/mig")
    found = []
    for name in ("config", "monitor"):
        text = read_text(os.path.join(folder, name))
        if text is None:
            continue
        own, mode = _ACCESS_MINOR.search(text), _ACCESS_MODE.search(text)
        minor = int(own.group(1)) if own else _read_mig_minors(proc_root).get(name)
        if minor is not None:
            bits = int(mode.group(1)) & 0o777 if mode else _NO_MODE
            found.append(MigManagement(name, minor, bits))
    return tuple(found)


def parse_mig_minors(text: str) -> dict[str, int]:
    """`gpu0/gi1/access` and the like to minors of `nvidia-caps`; odd lines are passed over."""
    pairs = (line.split() for line in text.splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and _NUMBER.fullmatch(p[1])}


def _read_mig_minors(proc_root: str) -> dict[str, int]:
    path = os.path.join(proc_root, "driver/nvidia-caps/mig-minors")
    return parse_mig_minors(read_text(path, MIG_MINORS_LIMIT) or "")


def _numbered(folder: str, prefix: str) -> list[tuple[int, str]]:
    """(N, path) of the entries called `<prefix>N`."""
    return [
        (int(name[len(prefix) :]), os.path.join(folder, name))
        for name in list_names(folder)
        if name.startswith(prefix) and _NUMBER.fullmatch(name[len(prefix) :])
    ]


def _cap(minors: dict[str, int], key: str, folder: str) -> int | None:
    """A capability's minor, from `mig-minors` or else from its own `access` file.

    The file must be there: `mig-minors` also names instances that do not exist.
    """
    text = read_text(os.path.join(folder, "access"))
    if text is None:
        return None
    own = _ACCESS_MINOR.search(text)
    return minors.get(key, int(own.group(1)) if own else None)
