"""Which device numbers the nodes of a simulated host get.

Recorded numbers lead nowhere on a machine without the driver: an allowed open is ENXIO, a refused
one EPERM. Stand-ins are devices that this kernel has and that containers are normally refused, so
that an allowed open succeeds. Only devices whose open has no effect are in the list; refuses to
hand one stand-in to two nodes, and nodes that go without keep their recorded number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from contrib.simhost.record import NodeRecord

MISC_MAJOR = 10
MISC = ("autofs", "loop-control", "fuse", "btrfs-control", "vsock", "cpu_dma_latency", "kvm")
MISC_SPARE = ("userfaultfd", "vga_arbiter")
"""Misc devices that root may open for reading and writing without a further capability, the most
common ones first. `tun` is missing because some runc versions allow it to every container."""

FIXED = (("cpu/cpuid", 203, 0), ("vcs", 7, 0), ("vcs", 7, 64), ("vcs", 7, 128))
"""(name in /proc/devices, major, minor) of devices outside the misc class."""

KMSG = (1, 11)


@dataclass(frozen=True, slots=True)
class Numbered:
    """A node and the number it gets; `stand_in` is that device's name, "" for a recorded one."""

    node: NodeRecord
    major: int
    minor: int
    stand_in: str


def stand_ins(misc: str, devices: str, dmesg_restrict: str) -> list[tuple[str, int, int]]:
    """(name, major, minor) of usable devices, from the texts of the kernel's procfs files."""
    lines = [line.split() for line in misc.splitlines()]
    minors = {words[1]: int(words[0]) for words in lines if len(words) == 2}
    characters = devices.partition("Block devices:")[0].splitlines()
    drivers = {words[1] for words in map(str.split, characters) if len(words) == 2}
    found = [(n, MISC_MAJOR, minors[n]) for n in MISC if n in minors]
    if dmesg_restrict.strip() == "0":  # else reading needs CAP_SYSLOG, which containers lack
        found.insert(0, ("kmsg", *KMSG))
    found += [(f"{n} {minor}", major, minor) for n, major, minor in FIXED if n in drivers]
    return found + [(n, MISC_MAJOR, minors[n]) for n in MISC_SPARE if n in minors]


def kernel_stand_ins(proc: Path = Path("/proc")) -> list[tuple[str, int, int]]:
    """The stand-ins that the running kernel offers."""

    def text(name: str) -> str:
        path = proc / name
        return path.read_text() if path.exists() else ""

    return stand_ins(text("misc"), text("devices"), text("sys/kernel/dmesg_restrict"))


def assign(
    nodes: Iterable[NodeRecord], available: Iterable[tuple[str, int, int]]
) -> tuple[Numbered, ...]:
    """Give stand-ins to nodes in their order, recorded numbers when they run out.

    Capability and DRM nodes keep theirs: mig-minors and sysfs refer to the numbers.
    """
    pool = iter(available)
    given = []
    for node in nodes:
        kept = "caps" in node.path or node.path.startswith("dev/dri/")
        free = None if kept else next(pool, None)
        name, major, minor = free or ("", node.major, node.minor)
        given.append(Numbered(node, major, minor, name))
    return tuple(given)


def proc_devices(recorded: str, numbered: Iterable[Numbered]) -> str:
    """/proc/devices as the simulated host must show it: the majors that its nodes really have."""
    majors: dict[int, set[int]] = {}
    for n in numbered:
        majors.setdefault(n.node.major, set()).add(n.major)
    characters, block, rest = recorded.partition("\nBlock devices:")
    lines = []
    for line in characters.splitlines():
        number, _, name = line.strip().partition(" ")
        moved = majors.get(int(number)) if number.isdigit() and "nvidia" in name else None
        lines += [f"{m:3d} {name}" for m in sorted(moved)] if moved else [line]
    return "\n".join(lines) + "\n" + block + rest
