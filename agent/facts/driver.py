"""The loaded kernel module: version, parameters and device majors, from procfs.

It reads `<proc_root>/driver/nvidia` and `<proc_root>/devices` and judges nothing. It never asks
the user-space driver, whose version may be another one.
"""

from __future__ import annotations

import os
import re

from agent.facts.root import read_text
from agent.facts.values import DriverFact

# "NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ..." and
# "NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (...)".
_VERSION = re.compile(r"^NVRM version:[^\n]*?\s(\d{2,}\.\d+(?:\.\d+)?)(?=\s|$)", re.MULTILINE)
_MACHINE = re.compile(r"^NVRM version:[^\n]*?\b(x86_64|aarch64|ppc64le|riscv64)\b", re.MULTILINE)
_DEVICE = re.compile(r"^\s*(\d+)\s+(nvidia\S*)\s*$")


def read_driver(proc_root: str) -> DriverFact:
    """The loaded module; without one, `version` is None and `reason` says why."""
    folder = os.path.join(proc_root, "driver/nvidia")
    text = read_text(os.path.join(folder, "version"))
    version = find_version(text) if text is not None else None
    return DriverFact(
        version=version,
        version_text=text,
        params=read_text(os.path.join(folder, "params")),
        registry=read_text(os.path.join(folder, "registry")),
        majors=find_majors(read_text(os.path.join(proc_root, "devices")) or ""),
        reason=None if version else _reason(folder, text),
        machine=find_machine(text) if text is not None else None,
    )


def find_version(text: str) -> str | None:
    """The version in the text of /proc/driver/nvidia/version, or None."""
    found = _VERSION.search(text)
    return found.group(1) if found else None


def find_machine(text: str) -> str | None:
    """The architecture that the text of /proc/driver/nvidia/version names, or None."""
    found = _MACHINE.search(text)
    return found.group(1) if found else None


def find_majors(text: str) -> tuple[tuple[str, int], ...]:
    """(name, major) of NVIDIA's character devices in the text of /proc/devices, sorted.

    One name may have several majors, and one major several names.
    """
    characters, _, _ = text.partition("Block devices:")
    lines = (_DEVICE.match(line) for line in characters.splitlines())
    return tuple(sorted({(m.group(2), int(m.group(1))) for m in lines if m}))


def _reason(folder: str, text: str | None) -> str:
    if text is not None:
        return f"driver version: {folder}/version: text not understood"
    if os.path.isdir(folder):
        return f"driver version: {folder}/version: cannot be read"
    return f"driver: {folder}: the nvidia module is not loaded"
