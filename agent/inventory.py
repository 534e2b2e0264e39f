"""Facts to inventory: which driver, GPUs, files and nodes this host can give to containers.

Pure: the same facts give the same inventory and the same generation. It decides what is usable
and says why the rest is not; it never reads the host.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from hashlib import blake2b

from agent import catalog
from agent.facts.values import (
    DataFact,
    DriverFact,
    HostFacts,
    IpcFact,
    LibraryFact,
    MigManagement,
    NodeFact,
    NvmlFact,
    ProgramFact,
)
from agent.gpujoin import Gpu, Mig, join_gpus, number_problem, other_owners
from agent.libraries import choose_libraries, version_key
from agent.missingnodes import missing_nodes, way_out

__all__ = ["DriverState", "Gpu", "Inventory", "Mig", "build"]

STALE_NOTES = 8
"""Notes about nodes with a wrong number; there can be thousands of IMEX channels."""

GROUP_NOTE = "nodes: only root and group "
"""How a note begins that concerns every container with a user other than root."""

# Without these two files the driver's user-space half is not there.
_ANCHORS = ("libcuda", "libnvidia-ml")
_NEEDED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_GPU_NODE = re.compile(r"/dev/nvidia\d+")
_MODIFY = re.compile(r"^(ModifyDeviceFiles:\s*)1\s*$", re.MULTILINE)


class DriverState(enum.StrEnum):
    """The state of the driver; only in READY are there plans."""

    NO_DRIVER = "no-driver"
    STARTING = "starting"
    MISMATCH = "driver-mismatch"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Inventory:
    """All facts of one host at one moment.

    `generation` is 16 hex digits over everything that a plan can contain. `driver_version` is
    the loaded module's, `user_version` the libraries'. `control` are the nodes that belong to
    no GPU and that a driver capability brings (`/dev/nvidiactl`, `/dev/nvidia-uvm`, ...);
    `feature_nodes` those that only a request for a feature brings (MIG configuration, IMEX
    channels, NVSwitch, ...). `data` are files of the graphics stack, `modules` those of the X
    server. `mig_management` are the rights over all MIG instances. `proc_files` are (name,
    content) pairs for the mask of /proc/driver/nvidia, `version_text` the content the loaded
    module must still show when a plan is replayed.
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
    feature_nodes: tuple[NodeFact, ...] = ()
    data: tuple[DataFact, ...] = ()
    modules: tuple[DataFact, ...] = ()
    mig_management: tuple[MigManagement, ...] = ()


def build(facts: HostFacts) -> Inventory:
    """The inventory of a host with these facts; any facts give one."""
    facts = _ordered(facts)
    driver = facts.driver
    checked = [(n, number_problem(n, driver.majors)) for n in facts.nodes]
    nodes = {n.target: n for n, problem in checked if problem is None}
    stale = tuple(problem for _, problem in checked if problem is not None)
    nvml, nvml_note = _trusted(facts.nvml, driver)
    gpus = join_gpus(facts, nvml, nodes)
    libraries = choose_libraries(facts.libraries, driver.version, driver.machine)
    user_version, other = _user_version(facts.libraries, driver.version)
    state, reason = _judge(facts, gpus, nodes, stale, other)
    inventory = Inventory(
        generation="",
        state=state,
        reason=reason,
        driver_version=driver.version,
        user_version=user_version,
        cuda_version=nvml.cuda_version,
        version_text=driver.version_text,
        gpus=gpus,
        libraries=libraries,
        programs=facts.programs,
        firmware=facts.firmware,
        ipc=facts.ipc,
        control=tuple(n for n in nodes.values() if catalog.capabilities_of_node(n.target)),
        proc_files=_proc_files(driver),
        notes=(
            *(*nvml_note, *stale[:STALE_NOTES], *_library_notes(libraries), *_gpu_notes(gpus)),
            *_bus_notes(facts),
            *_persistence_notes(nvml),
            *_group_notes(nodes),
            *(f"nodes: {line}" for line in facts.node_work),
        ),
        feature_nodes=tuple(n for n in nodes.values() if _is_feature(n)),
        data=facts.data,
        modules=facts.modules,
        mig_management=facts.mig_management,
    )
    return replace(inventory, generation=_generation(inventory))


def _ordered(facts: HostFacts) -> HostFacts:
    """The same facts in the one order that inventories have."""
    return replace(
        facts,
        libraries=tuple(sorted(facts.libraries, key=lambda f: (f.name, f.machine, f.file.path))),
        programs=tuple(sorted(facts.programs, key=lambda f: f.name)),
        firmware=tuple(sorted(facts.firmware, key=lambda f: f.target)),
        ipc=tuple(sorted(facts.ipc, key=lambda f: f.target)),
        nodes=tuple(sorted(facts.nodes, key=lambda f: f.target)),
        data=tuple(sorted(facts.data, key=lambda f: f.target)),
        modules=tuple(sorted(facts.modules, key=lambda f: f.target)),
    )


def _trusted(nvml: NvmlFact, driver: DriverFact) -> tuple[NvmlFact, tuple[str, ...]]:
    """NVML's answers if they are about the loaded module, and a note if they are not."""
    if nvml.reason is not None:
        return nvml, (f"NVML: {nvml.reason}",)
    if None in (nvml.driver_version, driver.version) or nvml.driver_version == driver.version:
        return nvml, ()
    reason = f"answers are of driver {nvml.driver_version}, {driver.version} is loaded"
    return NvmlFact(reason=reason), (f"NVML: {reason}",)


def _user_version(
    libraries: tuple[LibraryFact, ...], version: str | None
) -> tuple[str | None, str | None]:
    """The user-space driver's version, and the one that stands where the loaded one should.

    Each anchor must be there in the loaded version, if it is there in any: during an upgrade
    the files change one by one.
    """
    found: dict[str, set[str]] = {stem: set() for stem in _ANCHORS}
    for lib in libraries:
        stem, _, own = lib.name.partition(".so.")
        if stem in found:
            found[stem].add(own)
    others = [max(has, key=version_key) for has in found.values() if has and version not in has]
    if others:
        return others[0], others[0] if version else None
    return (version if any(version in has for has in found.values()) else None), None


def _judge(
    facts: HostFacts,
    gpus: tuple[Gpu, ...],
    nodes: dict[str, NodeFact],
    stale: tuple[str, ...],
    other: str | None,
) -> tuple[DriverState, str | None]:
    """The state, and why it is not READY."""
    driver = facts.driver
    if driver.version is None:
        return DriverState.NO_DRIVER, driver.reason or "driver: no nvidia module is loaded"
    if other is not None:
        reason = f"the loaded kernel module is {driver.version}, the libraries are {other}"
        return DriverState.MISMATCH, reason
    ways = {node[0]: way_out(node) for node in missing_nodes(facts)}
    missing = [
        _missing_node(target, driver, stale, ways)
        for target in _NEEDED_NODES
        if target not in nodes
    ]
    if not any(_is_anchor(lib, driver.version) for lib in facts.libraries):
        missing.append(facts.libraries_reason or f"libraries: none of version {driver.version}")
    if not gpus:
        missing.append("GPUs: none in /proc/driver/nvidia/gpus")
    elif not any(gpu.node for gpu in gpus):
        way = next((f" (run {ways[n]})" for n in sorted(ways) if _GPU_NODE.fullmatch(n)), "")
        missing.append(f"nodes: /dev/nvidiaN: none of {len(gpus)} GPUs has one{way}")
    return (DriverState.STARTING, "; ".join(missing)) if missing else (DriverState.READY, None)


def _missing_node(
    target: str, driver: DriverFact, stale: tuple[str, ...], ways: Mapping[str, str]
) -> str:
    """Why a needed node is not there, and what to do."""
    way = f" (run {ways[target]})" if target in ways else ""
    for problem in stale:
        if problem.startswith(f"{target}:"):
            return f"nodes: {problem}{way.replace('(run', '(remove it and run')}"
    if target.endswith("-uvm") and "nvidia-uvm" not in dict(driver.majors):
        return f"nodes: {target}: the nvidia-uvm module is not loaded (run modprobe nvidia-uvm)"
    return f"nodes: {target}: missing{way}"


def _is_anchor(library: LibraryFact, version: str) -> bool:
    return library.name in {f"{stem}.so.{version}" for stem in _ANCHORS}


def _is_feature(node: NodeFact) -> bool:
    """A node that no GPU and no capability brings; DRM nodes may be another vendor's GPU."""
    return not (
        _GPU_NODE.fullmatch(node.target)
        or node.target.startswith("/dev/dri/")
        or catalog.capabilities_of_node(node.target)
    )


def _proc_files(driver: DriverFact) -> tuple[tuple[str, str], ...]:
    """The files that a container sees in /proc/driver/nvidia.

    With `ModifyDeviceFiles: 1` the driver's libraries would make nodes in the container.
    """
    params = _MODIFY.sub(r"\g<1>0", driver.params) if driver.params is not None else None
    files = (("params", params), ("registry", driver.registry), ("version", driver.version_text))
    return tuple((name, text) for name, text in files if text is not None)


def _library_notes(libraries: tuple[LibraryFact, ...]) -> tuple[str, ...]:
    stems = sorted({catalog.stem_of(lib.name) for lib in libraries})
    default = ", ".join(sorted(catalog.load().default))
    return tuple(
        f"libraries: {stem}: not in the catalog, taken as {default}"
        for stem in stems
        if not catalog.knows_library(stem)
    )


def _gpu_notes(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    bad = [f"GPU {gpu.bus_id or gpu.index}: {gpu.problem}" for gpu in gpus if gpu.problem]
    nameless = [
        f"GPU {gpu.bus_id}: UUID unknown until the GPU is first used"
        for gpu in gpus
        if not gpu.problem and not gpu.uuid
    ]
    return (*bad, *nameless)


def _bus_notes(facts: HostFacts) -> tuple[str, ...]:
    """The GPUs that the nvidia module does not have. Without the module that is all of them."""
    if facts.driver.version is None:
        return ()
    return tuple(
        f"GPU {bus_id}: bound to {driver}, not to the nvidia driver"
        if driver not in (None, "nvidia")
        else f"GPU {bus_id}: the nvidia driver does not show it"
        if driver
        else f"GPU {bus_id}: no driver has it"
        for bus_id, driver in other_owners(facts)
    )


def _persistence_notes(nvml: NvmlFact) -> tuple[str, ...]:
    """The GPUs that the driver lets go of. Not our starts but the first CUDA call pays for it."""
    return tuple(
        f"GPU {gpu.bus_id or gpu.index}: persistence mode is off: each first use initialises it "
        "(run nvidia-smi -pm 1)"
        for gpu in nvml.gpus
        if gpu.persistent is False
    )


def _group_notes(nodes: Mapping[str, NodeFact]) -> tuple[str, ...]:
    """The groups that users need; a hook comes after the spec and cannot give them."""
    closed = [n for t, n in nodes.items() if t.startswith("/dev/nvidia") and n.mode & 0o6 != 0o6]
    groups = {n.gid for n in closed if n.mode & 0o60 == 0o60 and n.gid != 0}
    return tuple(
        f"{GROUP_NOTE}{gid} may open them: the runtime wrapper gives a user this group, with the "
        "hook alone the container must ask for it (supplementalGroups, --group-add)"
        for gid in sorted(groups)
    )


def _generation(inventory: Inventory) -> str:
    """16 hex digits over all that a plan can contain; notes and reasons do not count.

    A socket is in it by path only, since its daemon may restart without any plan changing.
    """
    content = replace(inventory, generation="", reason=None, notes=())
    return blake2b(repr(astuple(content)).encode("utf-8", "replace"), digest_size=8).hexdigest()
