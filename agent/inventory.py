"""Facts to inventory: which driver, GPUs, files and nodes this host can give to containers.

Pure: the same facts give the same inventory and the same generation. It decides what is usable
and says why the rest is not; it never reads the host.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from agent.facts.values import DataFact, IpcFact, LibraryFact, NodeFact, ProgramFact


class DriverState(enum.StrEnum):
    """The state of the driver; only in READY are there plans."""

    NO_DRIVER = "no-driver"
    STARTING = "starting"
    MISMATCH = "driver-mismatch"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Mig:
    """A MIG device. `gi_node` and `ci_node` are the two capability nodes it needs."""

    ordinal: int
    uuid: str
    gi: int
    ci: int
    name: str | None
    gi_node: NodeFact | None
    ci_node: NodeFact | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `index` is NVML's (PCI bus order); `minor` is the N of /dev/nvidiaN.

    `bus_id` is the name under /proc/driver/nvidia/gpus (`0000:3b:00.0`). A GPU with a
    `problem` cannot be given to a container.
    """

    index: int
    minor: int
    uuid: str
    bus_id: str
    name: str | None
    brand: str | None
    compute_capability: tuple[int, int] | None
    node: NodeFact | None
    mig_enabled: bool
    migs: tuple[Mig, ...]
    problem: str | None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All facts of one host at one moment.

    `generation` is 16 hex digits over everything that a plan can contain. `driver_version` is
    the loaded module's, `user_version` the libraries'. `control` are the nodes that belong to
    no GPU (`/dev/nvidiactl`, `/dev/nvidia-uvm`, ...). `proc_files` are (name, content) pairs
    for the mask of /proc/driver/nvidia, `version_text` the content the loaded module must
    still show when a plan is replayed.
    """

    generation: str
    state: DriverState
    reason: str | None
    driver_version: str | None
    user_version: str | None
    cuda_version: tuple[int, int] | None
    version_text: str | None
    gpus: tuple[Gpu, ...]
    libraries: tuple[LibraryFact, ...]
    programs: tuple[ProgramFact, ...]
    firmware: tuple[DataFact, ...]
    ipc: tuple[IpcFact, ...]
    control: tuple[NodeFact, ...]
    proc_files: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
