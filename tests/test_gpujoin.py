"""procfs and NVML joined: which GPU is which, and which one is unusable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.facts.values import MigCap, NvmlFact, NvmlGpu, NvmlMig
from agent.gpujoin import NO_INDEX, Gpu
from agent.inventory import DriverState, build
from tests.fact_values import (
    BUS_IDS,
    CAPS_MAJOR,
    HOST,
    NODES,
    UUIDS,
    node,
    nvml,
    nvml_gpu,
    proc_gpu,
)

SILENT = NvmlFact(reason="not asked")
LOST = NvmlGpu(1, None, None, None, None, None, None, None, error="GPU is lost", lost=True)


def by_uuid(gpus: tuple[Gpu, ...]) -> dict[str, Gpu]:
    """The GPUs by UUID."""
    return {gpu.uuid: gpu for gpu in gpus}


def test_index_is_not_the_minor() -> None:
    """The index is NVML's, the node is that of the minor."""
    host = replace(
        HOST,
        gpus=(proc_gpu(0, minor=2), proc_gpu(1, minor=0)),
        nvml=nvml(nvml_gpu(0, minor=2), nvml_gpu(1, minor=0)),
    )
    found = [(g.index, g.minor, g.uuid, g.node and g.node.target) for g in build(host).gpus]
    assert found == [(0, 2, UUIDS[0], "/dev/nvidia2"), (1, 0, UUIDS[1], "/dev/nvidia0")]


def test_without_nvml_the_bus_gives_the_index() -> None:
    """Without NVML the index is the place in PCI bus order, whatever order procfs has."""
    host = replace(HOST, gpus=(proc_gpu(1, minor=0), proc_gpu(0, minor=1)), nvml=SILENT)
    found = [(g.index, g.minor, g.bus_id) for g in build(host).gpus]
    assert found == [(0, 1, BUS_IDS[0]), (1, 0, BUS_IDS[1])]


def test_nvml_adds_what_procfs_has_not() -> None:
    """Name, brand and compute capability are NVML's; without it the model is the name."""
    gpu = build(HOST).gpus[0]
    assert (gpu.name, gpu.brand, gpu.compute_capability) == ("NVIDIA L4", "Nvidia", (8, 9))
    plain = build(replace(HOST, nvml=SILENT)).gpus[0]
    assert (plain.name, plain.brand, plain.compute_capability) == ("NVIDIA L4", None, None)


def test_joined_by_bus_id() -> None:
    """While procfs shows no UUID the two views meet in the bus id, and NVML's UUID counts."""
    gpus = build(replace(HOST, gpus=(proc_gpu(0, uuid=None), proc_gpu(1)))).gpus
    assert [(g.index, g.uuid, g.problem) for g in gpus] == [
        (0, UUIDS[0], None),
        (1, UUIDS[1], None),
    ]


def test_unknown_uuid_is_no_problem() -> None:
    """A GPU that was never used has no UUID yet; it can be given out by index."""
    inventory = build(replace(HOST, gpus=(proc_gpu(0, uuid=None),), nvml=SILENT))
    assert [(g.uuid, g.problem) for g in inventory.gpus] == [("", None)]
    assert any("UUID unknown" in note for note in inventory.notes)


def test_lost_gpu_spoils_no_other() -> None:
    """A GPU without an NVML handle is marked lost under its own UUID; the others work (B139)."""
    host = replace(
        HOST,
        gpus=(proc_gpu(0), proc_gpu(1), proc_gpu(2)),
        nvml=nvml(nvml_gpu(0), LOST, nvml_gpu(2)),
    )
    inventory = build(host)
    problems = {uuid: gpu.problem for uuid, gpu in by_uuid(inventory.gpus).items()}
    assert inventory.state is DriverState.READY
    assert problems == {UUIDS[0]: None, UUIDS[1]: "lost: GPU is lost", UUIDS[2]: None}
    assert [g.index for g in inventory.gpus] == [0, 1, 2]


def test_lost_gpu_that_procfs_dropped() -> None:
    """A lost GPU that is gone from procfs is listed by its index, and no other is blamed."""
    inventory = build(replace(HOST, nvml=nvml(nvml_gpu(0), LOST, replace(nvml_gpu(1), index=2))))
    found = [(g.index, g.uuid, g.minor, g.problem) for g in inventory.gpus]
    assert found == [
        (0, UUIDS[0], 0, None),
        (1, "", NO_INDEX, "lost: GPU is lost"),
        (2, UUIDS[1], 1, None),
    ]


def test_refused_handle_is_not_lost() -> None:
    """A handle that NVML refuses is a problem in NVML's words."""
    denied = replace(LOST, error="no permission", lost=False)
    gpu = by_uuid(build(replace(HOST, nvml=nvml(nvml_gpu(0), denied))).gpus)[UUIDS[1]]
    assert gpu.problem == "NVML: no permission"


def test_failed_detail_is_no_problem() -> None:
    """A GPU of which one value is not supported can be used."""
    odd = replace(nvml_gpu(1), brand=None, error="brand: not supported")
    assert build(replace(HOST, nvml=nvml(nvml_gpu(0), odd))).gpus[1].problem is None


def test_excluded_gpu_has_no_index() -> None:
    """A GPU excluded by the driver takes no index from the others, with NVML and without."""
    procs = (proc_gpu(0, excluded=True), proc_gpu(1))
    for answer in (SILENT, nvml(replace(nvml_gpu(1), index=0))):
        gpus = build(replace(HOST, gpus=procs, nvml=answer)).gpus
        assert [(g.index, g.uuid) for g in gpus] == [(0, UUIDS[1]), (NO_INDEX, UUIDS[0])]
        assert gpus[1].problem == "excluded by the driver's configuration"


def test_gpu_that_nvml_does_not_list() -> None:
    """Where NVML answers but leaves a GPU out, that GPU is unusable."""
    gpus = by_uuid(build(replace(HOST, nvml=nvml(nvml_gpu(0)))).gpus)
    assert gpus[UUIDS[1]].problem == "NVML does not list it"
    assert gpus[UUIDS[0]].problem is None


def test_nvml_that_lists_nothing_is_no_answer() -> None:
    """An NVML without any GPU does not make those of procfs unusable."""
    assert [g.problem for g in build(replace(HOST, nvml=nvml())).gpus] == [None, None]


@pytest.mark.parametrize("major", [None, 196])
def test_gpu_without_usable_node(major: int | None) -> None:
    """A missing node, or one with a foreign number, makes only its own GPU unusable."""
    nodes = tuple(n for n in NODES if n.target != "/dev/nvidia1")
    if major is not None:
        nodes = (*nodes, node("/dev/nvidia1", major, 1))
    inventory = build(replace(HOST, nodes=nodes))
    assert inventory.state is DriverState.READY
    assert [g.problem for g in inventory.gpus] == [None, "no usable node /dev/nvidia1"]


def test_gpu_without_minor() -> None:
    """A GPU of which nobody knows the minor has no node."""
    procs = (proc_gpu(0), replace(proc_gpu(1), minor=None))
    gpus = build(replace(HOST, gpus=procs, nvml=SILENT)).gpus
    assert [(g.minor, g.problem) for g in gpus] == [
        (0, None),
        (NO_INDEX, "the driver shows no device minor"),
    ]


CAP_NODES = tuple(node(f"/dev/nvidia-caps/nvidia-cap{n}", CAPS_MAJOR, n) for n in (12, 13, 21, 22))
MIG_HOST = replace(
    HOST,
    mig_caps=(MigCap(0, 1, 0, 12, 13), MigCap(0, 2, 0, 21, 22)),
    nodes=(*NODES, *CAP_NODES),
)
MIGS = (NvmlMig(0, "MIG-b", 2, 0, "1g.10gb"), NvmlMig(1, "MIG-a", 1, 0, "1g.10gb"))


def test_mig_devices_have_both_nodes() -> None:
    """A MIG device has the nodes of its GPU instance and of its compute instance, by number."""
    first = replace(nvml_gpu(0), mig_enabled=True, migs=MIGS)
    gpu = build(replace(MIG_HOST, nvml=nvml(first, nvml_gpu(1)))).gpus[0]
    found = [
        (m.ordinal, m.uuid, m.gi_node and m.gi_node.minor, m.ci_node and m.ci_node.minor)
        for m in gpu.migs
    ]
    assert gpu.mig_enabled
    assert found == [(0, "MIG-b", 21, 22), (1, "MIG-a", 12, 13)]


def test_mig_devices_without_nvml() -> None:
    """Without NVML procfs shows the instances, though not their UUIDs."""
    gpu = build(replace(MIG_HOST, nvml=SILENT)).gpus[0]
    assert gpu.mig_enabled
    assert [(m.ordinal, m.uuid, m.gi, m.ci) for m in gpu.migs] == [(0, "", 1, 0), (1, "", 2, 0)]


def test_mig_belongs_to_the_minor() -> None:
    """procfs names MIG instances by the GPU's minor, not by its index."""
    host = replace(MIG_HOST, gpus=(proc_gpu(0, minor=1), proc_gpu(1, minor=0)), nvml=SILENT)
    assert [len(g.migs) for g in build(host).gpus] == [0, 2]


def test_cap_node_with_an_old_major() -> None:
    """A capability node of another major is some other device: the MIG device has no node."""
    old = tuple(replace(n, major=CAPS_MAJOR + 1) for n in CAP_NODES)
    migs = build(replace(MIG_HOST, nodes=(*NODES, *old), nvml=SILENT)).gpus[0].migs
    assert [(m.gi_node, m.ci_node) for m in migs] == [(None, None), (None, None)]


def test_mig_that_procfs_does_not_show() -> None:
    """A MIG device that NVML lists and procfs does not is kept without nodes."""
    first = replace(nvml_gpu(0), mig_enabled=True, migs=(NvmlMig(0, "MIG-c", 9, 0, None),))
    (mig,) = build(replace(MIG_HOST, nvml=nvml(first, nvml_gpu(1)))).gpus[0].migs
    assert (mig.uuid, mig.gi_node, mig.ci_node) == ("MIG-c", None, None)


def test_mig_on_without_instances() -> None:
    """MIG mode without an instance: enabled, and no MIG device."""
    first = replace(nvml_gpu(0), mig_enabled=True)
    gpu = build(replace(HOST, nvml=nvml(first, nvml_gpu(1)))).gpus[0]
    assert (gpu.mig_enabled, gpu.migs) == (True, ())
