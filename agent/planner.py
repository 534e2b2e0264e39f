"""(Inventory, Request) to Plan: what this host puts into a container that asks for this.

Pure: same arguments, same plan. It chooses GPUs, files and nodes, and refuses what the host does
not have; it knows nothing of images (the hook probes the layout) nor of containerd.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent import catalog
from agent.content import (
    PROFILE,
    application_profile,
    drm_links,
    drm_nodes,
    files,
    links_and_cache,
)
from agent.errors import DriverNotReady, UnhealthyGpu, UnknownGpu
from agent.facts.values import NodeFact
from agent.featurenodes import nodes_of_features
from agent.features import FOR_MIG, OptOut
from agent.inventory import DriverState, Gpu, Inventory, Mig
from agent.plan import (
    BindFile,
    BindIpc,
    BindNode,
    BindProcGpu,
    CacheEntry,
    DeviceRule,
    ForwardCompat,
    Link,
    MaskProc,
    Place,
    Plan,
    Step,
    Text,
)
from agent.request import Capability, Request, implied, normal_bus_id
from agent.requirement import Requirement, check_requirements

PROC_DRIVER = "/driver/nvidia"


@dataclass(frozen=True, slots=True)
class ProcPaths:
    """`root` is the host's procfs; `mask` the container path that is covered."""

    root: str = "/proc"
    mask: str = "/proc/driver/nvidia"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The devices of a request: GPUs in minor order, and MIG devices by (minor, gi, ci)."""

    gpus: tuple[Gpu, ...]
    migs: tuple[Mig, ...]


def plan(inventory: Inventory, request: Request, proc: ProcPaths) -> Plan:
    """The plan for `request`. Raises DriverNotReady, UnknownGpu, UnhealthyGpu or MissingNode."""
    _require_driver(inventory)
    chosen = choose(inventory, request.devices)
    wanted = frozenset(map(str, request.capabilities))
    nodes = [*_nodes(inventory, chosen, wanted), *nodes_of_features(inventory, request)]
    steps = (
        *files(inventory, wanted, request.opt_out),
        *(BindNode(node) for node in nodes),
        *links_and_cache(inventory, wanted),
        *drm_links(chosen.gpus, wanted),
        *_texts(inventory, chosen, request),
        *_proc(inventory, chosen, proc, request),
        *(DeviceRule(node.major, node.minor) for node in nodes),
    )
    return Plan(
        generation=inventory.generation,
        driver_version=inventory.driver_version or "",
        version_file=f"{proc.root}{PROC_DRIVER}/version",
        version_text=inventory.version_text or "",
        steps=_without_repeats(steps),
    )


def check(inventory: Inventory, request: Request, requirements: Sequence[Requirement]) -> None:
    """Raises Unsatisfied if the driver or a GPU of `request` is not what an image requires.

    Apart from `plan`, because containers with different requirements share plans. Raises what
    choosing the GPUs raises.
    """
    if requirements:
        _require_driver(inventory)
        check_requirements(requirements, inventory, choose(inventory, request.devices).gpus)


def choose(inventory: Inventory, devices: Sequence[str]) -> Chosen:
    """The devices that the tokens name. `all` leaves out what has a problem; a name does not.

    Raises UnknownGpu, and UnhealthyGpu also where nothing of `all` is left.
    """
    if devices == ("all",):
        return _healthy(inventory)
    names = _names(inventory)
    if unknown := [token for token in devices if token.lower() not in names]:
        raise UnknownGpu(unknown, known(inventory))
    found = [names[token.lower()] for token in devices]
    for gpu, mig in found:
        if gpu.problem is not None:
            raise UnhealthyGpu(f"{gpu.index} ({gpu.uuid})", gpu.problem)
        if mig is not None and (problem := _mig_problem(mig)) is not None:
            raise UnhealthyGpu(f"{gpu.index}:{mig.ordinal} ({mig.uuid})", problem)
    return _chosen(found)


def _require_driver(inventory: Inventory) -> None:
    if inventory.state is not DriverState.READY:
        raise DriverNotReady(inventory.state, inventory.reason or "no reason known")


def _healthy(inventory: Inventory) -> Chosen:
    gpus = [gpu for gpu in inventory.gpus if gpu.problem is None]
    if inventory.gpus and not gpus:
        # No GPU container starts without its GPU.
        raise UnhealthyGpu("all", "; ".join(f"{g.index}: {g.problem}" for g in inventory.gpus[:8]))
    migs = [(gpu, mig) for gpu in gpus for mig in gpu.migs if _mig_problem(mig) is None]
    return _chosen([*((gpu, None) for gpu in gpus), *migs])


def _mig_problem(mig: Mig) -> str | None:
    missing = mig.gi_node is None or mig.ci_node is None
    return "a node of /dev/nvidia-caps that it needs is missing" if missing else None


def known(inventory: Inventory) -> tuple[str, ...]:
    """What a request could name, for people: each GPU and MIG device by index and UUID."""
    lines = []
    for gpu in inventory.gpus:
        lines.append(f"{gpu.index} ({gpu.uuid})")
        lines += [f"{gpu.index}:{mig.ordinal} ({mig.uuid})" for mig in gpu.migs]
    return tuple(lines)


def _chosen(found: Iterable[tuple[Gpu, Mig | None]]) -> Chosen:
    # By number: without NVML no MIG device has a UUID.
    gpus, migs = {}, {}
    for gpu, mig in found:
        gpus[gpu.minor] = gpu
        if mig is not None:
            migs[gpu.minor, mig.gi, mig.ci] = mig
    return Chosen(
        tuple(gpu for _, gpu in sorted(gpus.items())), tuple(mig for _, mig in sorted(migs.items()))
    )


def _names(inventory: Inventory) -> dict[str, tuple[Gpu, Mig | None]]:
    """Every token that names a device here, in lower case."""
    names: dict[str, tuple[Gpu, Mig | None]] = {}
    for gpu in inventory.gpus:
        for name in (str(gpu.index), gpu.uuid, normal_bus_id(gpu.bus_id)):
            names[name.lower()] = (gpu, None)
        for mig in gpu.migs:
            old = f"mig-{gpu.uuid}/{mig.gi}/{mig.ci}"
            for name in (f"{gpu.index}:{mig.ordinal}", mig.uuid, old):
                names[name.lower()] = (gpu, mig)
    return names


def _nodes(inventory: Inventory, chosen: Chosen, wanted: frozenset[str]) -> list[NodeFact]:
    control = [
        node
        for node in inventory.control
        if catalog.capabilities_of_node(node.target) & (wanted | {catalog.ANY})
    ]
    gpus = [gpu.node for gpu in chosen.gpus if gpu.node is not None]
    caps = [node for mig in chosen.migs for node in (mig.gi_node, mig.ci_node) if node is not None]
    drm = [node for gpu in chosen.gpus for node in drm_nodes(gpu, wanted)]
    return list(dict.fromkeys([*control, *gpus, *caps, *drm]))


def _proc(
    inventory: Inventory, chosen: Chosen, proc: ProcPaths, request: Request
) -> Iterable[Step]:
    if OptOut.PROC_MASK in request.opt_out:
        return
    below = f"/proc{PROC_DRIVER}/"
    # On a simulated host the mask lies higher, where the container's procfs has a directory.
    inner = below.removeprefix(f"{proc.mask}/") if below != f"{proc.mask}/" else ""
    files = (*inventory.proc_files, *_access_files(chosen))
    yield MaskProc(proc.mask, tuple((inner + name, content) for name, content in files))
    names = [f"gpus/{gpu.bus_id}" for gpu in chosen.gpus]
    if set(FOR_MIG) & set(request.features):
        names.append("capabilities")
    for name in names:
        yield BindProcGpu(inner + name, f"{proc.root}{PROC_DRIVER}/{name}")


def _access_files(chosen: Chosen) -> Iterable[tuple[str, str]]:
    """By these CUDA finds the capability nodes of a MIG device; other instances have none here."""
    for gpu in chosen.gpus:
        for mig in (m for m in gpu.migs if m in chosen.migs):
            instance = f"capabilities/gpu{gpu.minor}/mig/gi{mig.gi}"
            for path, node in ((instance, mig.gi_node), (f"{instance}/ci{mig.ci}", mig.ci_node)):
                if node is not None:
                    # As in `params`: the container is not to make or change nodes by itself.
                    text = f"DeviceFileMinor: {node.minor}\nDeviceFileMode: 292\n"
                    yield f"{path}/access", f"{text}DeviceFileModify: 0\n"


def _texts(inventory: Inventory, chosen: Chosen, request: Request) -> Iterable[Step]:
    wanted, without = implied(request.capabilities), request.opt_out
    if Capability.COMPUTE in wanted and OptOut.CUDA_COMPAT not in without:
        yield ForwardCompat(inventory.driver_version or "")
    if Capability.GRAPHICS in wanted and OptOut.APPLICATION_PROFILE not in without:
        yield Text(PROFILE, application_profile(gpu.minor for gpu in chosen.gpus))


def _without_repeats(steps: Iterable[Step]) -> tuple[Step, ...]:
    """One step a place: a second mount or link there would hide the first (R9)."""
    seen: set[tuple[str, ...]] = set()
    kept = []
    for step in steps:
        key = _place_of(step)
        if key not in seen:
            seen.add(key)
            kept.append(step)
    return tuple(kept)


def _place_of(step: Step) -> tuple[str, ...]:
    match step:
        case BindFile() | Link():
            return ("at", step.place, step.target)
        case BindIpc():
            return ("at", Place.ABSOLUTE, step.ipc.target)
        case BindNode():
            return ("at", Place.ABSOLUTE, step.node.target)
        case Text():
            return ("at", Place.ABSOLUTE, step.target)
        case CacheEntry():
            return ("cache", step.place, step.soname, str(step.flags))
        case _:
            return step.fields()
