"""Which device nodes the loaded driver should have and has not, and how one gets them.

Pure: it makes no node. The driver leaves that to user space, and until the first program made
them a container could not be given any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from agent.facts.values import DriverFact, HostFacts

DRAFT = ".gpu-agent-"
"""How the name of a node begins while it is made; such a file is nobody's."""

# Fixed in the driver's interface; the majors are not.
_CONTROL_MINOR, _MODESET_MINOR = 255, 254
_CAP_MODE = 0o444
_DEFAULT_MODE = 0o666
_PARAM = re.compile(
    r"^(DeviceFileUID|DeviceFileGID|DeviceFileMode|ModifyDeviceFiles|CreateImexChannel0):\s*(\d+)\s*$"
)


class NodeToMake(NamedTuple):
    """A character device node to be made; `path` is its container path."""

    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


def missing_nodes(facts: HostFacts) -> tuple[NodeToMake, ...]:
    """The nodes that the loaded driver needs and `/dev` lacks or has with another number.

    Empty where the driver's parameters say that its nodes are somebody else's to make.
    """
    params = _parameters(facts.driver)
    if facts.driver.version is None or params.get("ModifyDeviceFiles") == 0:
        return ()
    there = {(n.target, n.major, n.minor) for n in facts.nodes}
    owner = (params.get("DeviceFileUID", 0), params.get("DeviceFileGID", 0))
    mode = params.get("DeviceFileMode", _DEFAULT_MODE) & 0o777
    wanted = [NodeToMake(*number, mode, *owner) for number in _usual(facts)]
    if params.get("CreateImexChannel0") == 1:
        wanted += [NodeToMake(*number, mode, *owner) for number in _first_channel(facts)]
    wanted += [NodeToMake(*number, _CAP_MODE, 0, 0) for number in _capabilities(facts)]
    wanted += _management(facts)
    return tuple(node for node in dict.fromkeys(wanted) if node[:3] not in there)


def way_out(node: NodeToMake) -> str:
    """What to type to get the node."""
    by_hand = f"mknod -m {node.mode:04o} {node.path} c {node.major} {node.minor}"
    if node.uid or node.gid:
        by_hand += f" && chown {node.uid}:{node.gid} {node.path}"
    if "-caps/" in node.path:
        return by_hand
    uvm, modeset = node.path.startswith("/dev/nvidia-uvm"), node.path == "/dev/nvidia-modeset"
    flags = "-u -c 0" if uvm else "-m" if modeset else f"-c {node.minor}"
    return f"nvidia-modprobe {flags}, or {by_hand}"


def _usual(facts: HostFacts) -> Iterator[tuple[str, int, int]]:
    """Path and number of the nodes of the GPUs and of the driver as a whole."""
    majors = facts.driver.majors
    if (major := _major(majors, "nvidia", "nvidia-frontend")) is not None:
        control = _major(majors, "nvidiactl")
        yield "/dev/nvidiactl", major if control is None else control, _CONTROL_MINOR
        for gpu in facts.gpus:
            if gpu.minor is not None and not gpu.excluded:
                yield f"/dev/nvidia{gpu.minor}", major, gpu.minor
    if (major := _major(majors, "nvidia-modeset")) is not None:
        yield "/dev/nvidia-modeset", major, _MODESET_MINOR
    if (major := _major(majors, "nvidia-uvm")) is not None:
        yield "/dev/nvidia-uvm", major, 0
        yield "/dev/nvidia-uvm-tools", major, 1


def _capabilities(facts: HostFacts) -> Iterator[tuple[str, int, int]]:
    """Path and number of the nodes of the MIG instances that exist."""
    major = _major(facts.driver.majors, "nvidia-caps")
    if major is not None:
        for cap in facts.mig_caps:
            for minor in (cap.gi_cap, cap.ci_cap):
                yield f"/dev/nvidia-caps/nvidia-cap{minor}", major, minor


def _management(facts: HostFacts) -> Iterator[NodeToMake]:
    """The nodes of the rights over all MIG instances, with the modes that the driver shows."""
    major = _major(facts.driver.majors, "nvidia-caps")
    if major is not None:
        for right in facts.mig_management:
            path = f"/dev/nvidia-caps/nvidia-cap{right.cap}"
            yield NodeToMake(path, major, right.cap, right.mode, 0, 0)


def _first_channel(facts: HostFacts) -> Iterator[tuple[str, int, int]]:
    """IMEX channel 0, if the driver was told to have it; the others are a cluster's to give."""
    major = _major(facts.driver.majors, "nvidia-caps-imex-channels")
    if major is not None:
        yield "/dev/nvidia-caps-imex-channels/channel0", major, 0


def _major(majors: tuple[tuple[str, int], ...], *names: str) -> int | None:
    return next((number for want in names for name, number in majors if name == want), None)


def _parameters(driver: DriverFact) -> dict[str, int]:
    found = (_PARAM.match(line) for line in (driver.params or "").splitlines())
    return {m.group(1): int(m.group(2)) for m in found if m}
