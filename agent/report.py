"""What agentctl shows: frozen values about the agent, its host and its containers.

Pure. The agent fills them, `agent.control` sends them, and their field names are those of
`protos/agent/v1/agent.proto` and of the JSON that agentctl prints. Ages are seconds before the
moment of the report, so that no reader needs the agent's clock. A value that does not exist is
None, never a word for it; the only word decided here is the health `ok`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.errors import AmbiguousContainer, UnknownContainer
from agent.inventory import Gpu, Inventory
from agent.plan import Plan
from agent.replays import ReplayRecord, ReplaySummary
from agent.request import Request

HEALTHY = "ok"


@dataclass(frozen=True, slots=True)
class DriverReport:
    """The driver's state; `kernel_version` is the loaded module's, `user_version` the files'."""

    state: str
    reason: str | None
    kernel_version: str | None
    user_version: str | None
    cuda_version: str | None


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """The inventory's generation, its age in seconds and what made it change last."""

    id: str
    age_s: float
    why: str


@dataclass(frozen=True, slots=True)
class MigReport:
    """One MIG device of a GPU."""

    ordinal: int
    uuid: str
    gi: int
    ci: int
    name: str | None


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU. `health` is `ok` or why it cannot be given to a container."""

    index: int
    minor: int
    uuid: str
    bus_id: str
    name: str | None
    health: str
    migs: tuple[MigReport, ...]


@dataclass(frozen=True, slots=True)
class ContainerdReport:
    """One containerd. `since_s`: seconds connected, or without a connection."""

    address: str
    connected: bool
    version: str | None
    since_s: float
    events: int
    last_event_age_s: float | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class StatusReport:
    """Everything `agentctl status` shows."""

    version: str
    pid: int
    uptime_s: float
    driver: DriverReport
    generation: GenerationReport
    gpus: tuple[GpuReport, ...]
    containerds: tuple[ContainerdReport, ...]
    containers: int
    containers_with_gpus: int
    plans_staged: int
    entries_staged: int
    replays: ReplaySummary


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """One container and what it got.

    (`address`, `namespace`, `id`) is its key. `verdict` is the staged entry's: `plan`, `none` or
    `refuse`; `why` is a sentence. `devices` and `capabilities` are what it asked for.
    """

    address: str
    namespace: str
    id: str
    verdict: str
    why: str
    generation: str
    devices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    plan: str | None = None
    replay: ReplayRecord | None = None


@dataclass(frozen=True, slots=True)
class PlanReport:
    """One plan in words. `plan` is its digest, `steps` are in the order of replay."""

    plan: str
    generation: str
    driver_version: str
    devices: tuple[str, ...]
    capabilities: tuple[str, ...]
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileReport:
    """A host file a container can get: where it is and as what a container sees it."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class LibraryReport:
    """A driver library; `machine` is the architecture as `uname -m` has it."""

    name: str
    soname: str | None
    machine: str
    path: str


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A device node that belongs to no GPU."""

    name: str
    path: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class InventoryReport:
    """Everything `agentctl inventory` shows; `files` are firmware and configuration."""

    generation: str
    driver: DriverReport
    gpus: tuple[GpuReport, ...]
    nodes: tuple[NodeReport, ...]
    libraries: tuple[LibraryReport, ...]
    programs: tuple[FileReport, ...]
    files: tuple[FileReport, ...]
    ipc: tuple[FileReport, ...]
    notes: tuple[str, ...]


def container_name(container: ContainerReport) -> str:
    """The one unambiguous name of a container: `<socket>:<namespace>/<id>`."""
    return f"{container.address}:{container.namespace}/{container.id}"


def find_container(asked: str, containers: Iterable[ContainerReport]) -> ContainerReport:
    """The container that `asked` names: a full name, `<namespace>/<id>`, an id or its beginning.

    An exact id wins over beginnings. Raises UnknownContainer and AmbiguousContainer.
    """
    known = list(containers)
    exact = [c for c in known if asked in (c.id, f"{c.namespace}/{c.id}", container_name(c))]
    found = exact or [
        c
        for c in known
        if asked and any(n.startswith(asked) for n in (c.id, f"{c.namespace}/{c.id}"))
    ]
    if not found:
        raise UnknownContainer(asked, len(known))
    if len(found) > 1:
        raise AmbiguousContainer(asked, [container_name(c) for c in found])
    return found[0]


def driver_report(inventory: Inventory) -> DriverReport:
    """The driver part of an inventory."""
    cuda = inventory.cuda_version
    return DriverReport(
        state=inventory.state,
        reason=inventory.reason,
        kernel_version=inventory.driver_version,
        user_version=inventory.user_version,
        cuda_version=f"{cuda[0]}.{cuda[1]}" if cuda else None,
    )


def gpu_reports(inventory: Inventory) -> tuple[GpuReport, ...]:
    """The GPUs of an inventory, in its order."""
    return tuple(_gpu_report(gpu) for gpu in inventory.gpus)


def inventory_report(inventory: Inventory) -> InventoryReport:
    """An inventory for people: paths and names, without the identities that plans need."""
    return InventoryReport(
        generation=inventory.generation,
        driver=driver_report(inventory),
        gpus=gpu_reports(inventory),
        nodes=tuple(NodeReport(n.target, n.source, n.major, n.minor) for n in inventory.control),
        libraries=tuple(
            LibraryReport(f.name, f.soname, f.machine, f.file.path) for f in inventory.libraries
        ),
        programs=tuple(FileReport(p.name, p.file.path) for p in inventory.programs),
        files=tuple(FileReport(f.target, f.file.path) for f in inventory.firmware),
        ipc=tuple(FileReport(i.target, i.source) for i in inventory.ipc),
        notes=inventory.notes,
    )


def plan_report(plan: Plan, digest: str, request: Request) -> PlanReport:
    """A plan in words, with the request it answers."""
    return PlanReport(
        plan=digest,
        generation=plan.generation,
        driver_version=plan.driver_version,
        devices=request.devices,
        capabilities=tuple(str(c) for c in request.capabilities),
        steps=plan.describe(),
    )


def _gpu_report(gpu: Gpu) -> GpuReport:
    return GpuReport(
        index=gpu.index,
        minor=gpu.minor,
        uuid=gpu.uuid,
        bus_id=gpu.bus_id,
        name=gpu.name,
        health=gpu.problem or HEALTHY,
        migs=tuple(MigReport(m.ordinal, m.uuid, m.gi, m.ci, m.name) for m in gpu.migs),
    )
