"""What one container asks for, read from its OCI spec. Or: it asks for no GPU.

Pure: spec bytes and policy in, values out. The environment holds the image's value and then the
orchestrator's, so the last one wins. Nothing here looks at the host or grants a device by name
of a path; the planner matches the tokens with the inventory.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Capability(enum.StrEnum):
    """A driver capability of NVIDIA_DRIVER_CAPABILITIES."""

    COMPUTE = "compute"
    UTILITY = "utility"
    VIDEO = "video"
    GRAPHICS = "graphics"
    DISPLAY = "display"
    NGX = "ngx"
    COMPAT32 = "compat32"


@dataclass(frozen=True, slots=True)
class Request:
    """A GPU request. Containers with equal requests share one plan.

    `devices` are tokens in the order asked, without duplicates: `all`, an index, a UUID, a bus
    id, a MIG form; empty means driver files and control nodes only (`none`). `capabilities`
    are sorted. `source` says which input asked (`NVIDIA_VISIBLE_DEVICES`).
    """

    devices: tuple[str, ...]
    capabilities: tuple[Capability, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One spec, read. `why` is a sentence for `agentctl explain`.

    `root` is root.path as written in the spec; `owner` is the host (uid, gid) of the
    container's root user, (0, 0) without a user namespace; `namespace` details come from the
    containerd record, not from here.
    """

    root: str
    owner: tuple[int, int]
    request: Request | None
    why: str
