"""GPUs: procfs and NVML joined into one list, each GPU with its nodes or its problem.

Pure. One bad GPU never spoils the others: it stays in the list with a `problem`, so that a
request that names it can be answered with the reason. Nothing here reads the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.facts.busid import format_bus_id, parse_bus_id
from agent.facts.values import HostFacts, MigCap, NodeFact, NvmlFact, NvmlGpu, NvmlMig, ProcGpu

NO_INDEX = -1
"""Index or minor of a GPU that has none; no request can name it."""

# Node name -> names that /proc/devices may have for its major.
_MAJOR_NAMES = (
    (re.compile(r"/dev/nvidia\d+"), ("nvidia", "nvidia-frontend")),
    (re.compile(r"/dev/nvidiactl"), ("nvidiactl", "nvidia", "nvidia-frontend")),
    (re.compile(r"/dev/nvidia-modeset"), ("nvidia-modeset", "nvidia", "nvidia-frontend")),
    (re.compile(r"/dev/nvidia-uvm(?:-tools)?"), ("nvidia-uvm",)),
    (re.compile(r"/dev/nvidia-caps/.*"), ("nvidia-caps",)),
    (re.compile(r"/dev/nvidia-caps-imex-channels/.*"), ("nvidia-caps-imex-channels",)),
    (re.compile(r"/dev/nvidia-nvswitch.*"), ("nvidia-nvswitch",)),
)


@dataclass(frozen=True, slots=True)
class Mig:
    """A MIG device. `gi_node` and `ci_node` are the two capability nodes it needs.

    `uuid` is "" without NVML; then `ordinal` counts in the order of (gi, ci).
    """

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
    `problem` cannot be given to a container. `index` and `minor` are `NO_INDEX` and `uuid` is
    "" where nothing tells them. `drm` are the GPU's card and render node.
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
    drm: tuple[NodeFact, ...] = ()


def number_problem(node: NodeFact, majors: Iterable[tuple[str, int]]) -> str | None:
    """Why a node is not the loaded module's, or None.

    A dynamic major may be another one after a reload; a node left over from before would give
    a container some other device.
    """
    names = next((names for form, names in _MAJOR_NAMES if form.fullmatch(node.target)), None)
    right = sorted({major for name, major in majors if names and name in names})
    if names is None or node.major in right:
        return None
    listed = " or ".join(map(str, right)) if right else "none"
    return f"{node.target}: has major {node.major}, /proc/devices has {listed} for {names[0]}"


def join_gpus(facts: HostFacts, nvml: NvmlFact, nodes: Mapping[str, NodeFact]) -> tuple[Gpu, ...]:
    """Every GPU that procfs or NVML shows, by index; `nodes` are the usable ones by target."""
    # An NVML that lists nothing knows nothing: procfs alone must give a usable inventory.
    answered = nvml.reason is None and bool(nvml.gpus)
    pairs = _pair(facts.gpus, nvml.gpus if answered else ())
    order = _bus_order(facts.gpus)
    found = []
    for proc, asked in pairs:
        if asked is not None:
            index = asked.index
        else:
            index = NO_INDEX if answered or proc is None else order[proc.bus_id]
        found.append(_join(proc, asked, index, answered, facts, nodes))
    return tuple(sorted(found, key=lambda g: (g.index == NO_INDEX, g.index, g.bus_id)))


def _bus_order(gpus: Iterable[ProcGpu]) -> dict[str, int]:
    """The index NVML would give: PCI bus order of the GPUs that are not excluded."""
    order = {gpu.bus_id: NO_INDEX for gpu in gpus}
    visible = sorted(
        (g for g in gpus if not g.excluded), key=lambda g: parse_bus_id(g.bus_id) or ()
    )
    order.update({gpu.bus_id: n for n, gpu in enumerate(visible)})
    return order


def _pair(
    procs: tuple[ProcGpu, ...], asked: tuple[NvmlGpu, ...]
) -> list[tuple[ProcGpu | None, NvmlGpu | None]]:
    """Each GPU of procfs with NVML's of the same UUID, else of the same bus id.

    NVML tells nothing of a GPU without a handle but its index. Where as many such indices are
    left as GPUs, they belong together in bus order, which is NVML's.
    """
    left = list(asked)
    found: dict[str, NvmlGpu] = {}
    for same in (_same_uuid, _same_bus_id):
        for proc in procs:
            match = next((n for n in left if proc.bus_id not in found and same(proc, n)), None)
            if match is not None:
                found[proc.bus_id] = match
                left.remove(match)
    nameless = sorted((n for n in left if not n.uuid and not n.bus_id), key=lambda n: n.index)
    order = _bus_order(procs)
    alone = sorted(
        (p for p in procs if p.bus_id not in found and not p.excluded),
        key=lambda p: order[p.bus_id],
    )
    if len(nameless) == len(alone):
        for proc, gpu in zip(alone, nameless, strict=True):
            found[proc.bus_id] = gpu
            left.remove(gpu)
    return [*((p, found.get(p.bus_id)) for p in procs), *((None, gpu) for gpu in left)]


def _same_uuid(proc: ProcGpu, gpu: NvmlGpu) -> bool:
    return proc.uuid is not None and gpu.uuid is not None and proc.uuid.lower() == gpu.uuid.lower()


def _same_bus_id(proc: ProcGpu, gpu: NvmlGpu) -> bool:
    address = parse_bus_id(proc.bus_id)
    return address is not None and gpu.bus_id is not None and parse_bus_id(gpu.bus_id) == address


def _join(
    proc: ProcGpu | None,
    asked: NvmlGpu | None,
    index: int,
    answered: bool,
    facts: HostFacts,
    nodes: Mapping[str, NodeFact],
) -> Gpu:
    """One GPU from its one or two sources."""
    minor = proc.minor if proc else None
    if minor is None and asked is not None:
        minor = asked.minor
    node = nodes.get(f"/dev/nvidia{minor}") if minor is not None else None
    caps = [c for c in facts.mig_caps if c.gpu_minor == minor]
    mig_enabled = asked.mig_enabled if asked else None
    address = parse_bus_id(asked.bus_id) if asked and asked.bus_id else None
    return Gpu(
        index=index,
        minor=NO_INDEX if minor is None else minor,
        uuid=(proc.uuid if proc else None) or (asked.uuid if asked else None) or "",
        bus_id=proc.bus_id if proc else format_bus_id(address) if address else "",
        name=(asked.name if asked else None) or (proc.model if proc else None),
        brand=asked.brand if asked else None,
        compute_capability=asked.compute_capability if asked else None,
        node=node,
        mig_enabled=bool(caps) if mig_enabled is None else mig_enabled,
        migs=_join_migs(asked, caps, facts, nodes),
        problem=_problem(proc, asked, answered, minor, node),
        drm=_drm(proc.bus_id if proc else "", facts, nodes),
    )


def _drm(bus_id: str, facts: HostFacts, nodes: Mapping[str, NodeFact]) -> tuple[NodeFact, ...]:
    """The DRM nodes of the GPU at this address, if their numbers are those that sysfs shows."""
    address = parse_bus_id(bus_id)
    seen = [d for p in facts.pci if address and parse_bus_id(p.bus_id) == address for d in p.drm]
    found = ((nodes.get(f"/dev/dri/{d.name}"), d) for d in seen)
    return tuple(n for n, d in found if n and (n.major, n.minor) == (d.major, d.minor))


def other_owners(facts: HostFacts) -> tuple[tuple[str, str | None], ...]:
    """(bus id, driver) of the GPUs on the bus that the nvidia module does not have."""
    ours = {parse_bus_id(gpu.bus_id) for gpu in facts.gpus}
    return tuple((p.bus_id, p.driver) for p in facts.pci if parse_bus_id(p.bus_id) not in ours)


def _problem(
    proc: ProcGpu | None,
    asked: NvmlGpu | None,
    answered: bool,
    minor: int | None,
    node: NodeFact | None,
) -> str | None:
    """Why the GPU cannot be given to a container; the worst first."""
    if asked is not None and asked.lost:
        return f"lost: {asked.error or 'the driver no longer reaches it'}"
    if asked is not None and asked.error and not (asked.uuid or asked.bus_id):
        return f"NVML: {asked.error}"
    if proc is None:
        return "not in /proc/driver/nvidia/gpus"
    if proc.excluded:
        return "excluded by the driver's configuration"
    if answered and asked is None:
        return "NVML does not list it"
    if minor is None:
        return "the driver shows no device minor"
    if node is None:
        return f"no usable node /dev/nvidia{minor}"
    return None


def _join_migs(
    asked: NvmlGpu | None, caps: list[MigCap], facts: HostFacts, nodes: Mapping[str, NodeFact]
) -> tuple[Mig, ...]:
    """The GPU's MIG devices as NVML lists them, or without its answer as procfs shows them."""
    ordered = sorted(caps, key=lambda c: (c.gi, c.ci))
    listed = asked.migs if asked is not None else ()
    if not listed and (asked is None or asked.mig_enabled is None):
        listed = tuple(NvmlMig(n, "", c.gi, c.ci, None) for n, c in enumerate(ordered))
    majors = {major for name, major in facts.driver.majors if name == "nvidia-caps"}
    by_number = {n.minor: n for n in nodes.values() if _is_cap(n) and n.major in majors}
    by_id = {(c.gi, c.ci): c for c in caps}
    found = []
    for mig in sorted(listed, key=lambda m: m.ordinal):
        cap = by_id.get((mig.gi, mig.ci))
        gi_node, ci_node = (
            (by_number.get(cap.gi_cap), by_number.get(cap.ci_cap)) if cap else (None, None)
        )
        found.append(Mig(mig.ordinal, mig.uuid, mig.gi, mig.ci, mig.name, gi_node, ci_node))
    return tuple(found)


def _is_cap(node: NodeFact) -> bool:
    return node.target.startswith("/dev/nvidia-caps/")
