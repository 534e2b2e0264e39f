"""The planner: which devices a request gets, and what a plan has for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent import planner
from agent.errors import DriverNotReady, UnhealthyGpu, UnknownGpu
from agent.facts.values import HostFacts, LibraryFact, MigCap, NvmlFact, NvmlMig
from agent.inventory import build
from agent.plan import (
    BindFile,
    BindIpc,
    BindNode,
    BindProcGpu,
    CacheEntry,
    DeviceRule,
    Link,
    MaskProc,
    Place,
    Plan,
    digest,
    encode,
)
from agent.planner import ProcPaths
from agent.policy import Policy
from agent.request import Request, ask
from hooks import planfile
from tests import fact_values as fv

# Minors run against the bus order: index 0 is minor 2, index 1 minor 0, index 2 minor 1.
MINORS = (2, 0, 1)
MIG_UUIDS = tuple(f"MIG-a1b2c3d4-0000-5000-8000-00000000000{n}" for n in range(3))
CAPS = (MigCap(2, 1, 0, 12, 13), MigCap(2, 2, 0, 21, 22), MigCap(2, 2, 1, 21, 23))
CAP_NODES = tuple(
    fv.node(f"/dev/nvidia-caps/nvidia-cap{n}", fv.CAPS_MAJOR, n) for n in (1, 2, 12, 13, 21, 22, 23)
)
HOST = replace(
    fv.HOST,
    gpus=tuple(fv.proc_gpu(at, minor) for at, minor in enumerate(MINORS)),
    nvml=fv.nvml(*(fv.nvml_gpu(at, minor) for at, minor in enumerate(MINORS))),
)


def mig_host(*, nvml: bool = True) -> HostFacts:
    """HOST with three MIG devices on its first GPU, two of them on one GPU instance."""
    migs = tuple(
        NvmlMig(n, MIG_UUIDS[n], cap.gi, cap.ci, "MIG 1g.10gb") for n, cap in enumerate(CAPS)
    )
    first, *others = HOST.nvml.gpus
    answers = fv.nvml(replace(first, mig_enabled=True, migs=migs), *others)
    nodes = (*HOST.nodes, *CAP_NODES)
    silent = NvmlFact(reason="not asked")
    return replace(HOST, mig_caps=CAPS, nodes=nodes, nvml=answers if nvml else silent)


def request(devices: str, capabilities: str | None = "compute,utility") -> Request:
    made = ask(devices, capabilities, Policy(), "test")
    assert made is not None
    return made


def planned(
    devices: str, capabilities: str | None = "compute,utility", facts: HostFacts = HOST
) -> Plan:
    return planner.plan(build(facts), request(devices, capabilities), ProcPaths())


def gpu_nodes(plan: Plan) -> list[str]:
    nodes = [s.node.target for s in plan.steps if isinstance(s, BindNode)]
    return [n for n in nodes if re.fullmatch(r"/dev/nvidia\d+", n)]


def cap_nodes(plan: Plan) -> list[str]:
    nodes = [s.node.target for s in plan.steps if isinstance(s, BindNode)]
    return [n.rpartition("cap")[2] for n in nodes if "nvidia-caps/" in n]


def files(plan: Plan, place: Place) -> list[str]:
    return [s.target for s in plan.steps if isinstance(s, BindFile) and s.place is place]


@pytest.mark.parametrize(
    ("devices", "minors"),
    [
        ("all", (0, 1, 2)),
        ("0", (2,)),
        ("1", (0,)),
        ("2,0", (1, 2)),
        ("0,0,00", (2,)),
        (fv.UUIDS[1], (0,)),
        (fv.UUIDS[1].upper().replace("GPU", "gpu"), (0,)),
        (fv.BUS_IDS[0], (2,)),
        (f"0000{fv.BUS_IDS[0]}", (2,)),
        (f"{fv.UUIDS[0]},0,{fv.BUS_IDS[0]}", (2,)),
        ("none", ()),
    ],
)
def test_devices_by_every_name(devices: str, minors: Sequence[int]) -> None:
    """Every spelling leads to the node of the GPU's minor, once, and to its procfs directory."""
    plan = planned(devices)
    assert gpu_nodes(plan) == [f"/dev/nvidia{minor}" for minor in minors]
    shown = [s.name for s in plan.steps if isinstance(s, BindProcGpu)]
    assert shown == [f"gpus/{fv.BUS_IDS[MINORS.index(minor)]}" for minor in minors]


def test_same_devices_same_bytes() -> None:
    """The order and the spelling of a list change nothing in the plan."""
    one, other = planned("2,0"), planned(f"{fv.UUIDS[0]},2")
    assert encode(one) == encode(other)


def test_bus_id_of_eight_digits_in_procfs() -> None:
    """A driver that writes 8-digit PCI domains is asked for with 4 digits and with 8."""
    gpu = replace(HOST.gpus[0], bus_id=f"0000{fv.BUS_IDS[0]}")
    facts = replace(HOST, gpus=(gpu, *HOST.gpus[1:]))
    for name in (fv.BUS_IDS[0], f"0000{fv.BUS_IDS[0]}"):
        plan = planned(name, facts=facts)
        assert gpu_nodes(plan) == ["/dev/nvidia2"]
        (shown,) = [s for s in plan.steps if isinstance(s, BindProcGpu)]
        assert shown.source == f"/proc/driver/nvidia/gpus/0000{fv.BUS_IDS[0]}"


@pytest.mark.parametrize(
    "devices", ["7", f"GPU-{'0' * 8}-0000-4000-8000-{'0' * 12}", "0000:01:00.0", "0,9", "0:0"]
)
def test_unknown_gpu_names_what_there_is(devices: str) -> None:
    """A device that this host has not is refused with the names that it has."""
    with pytest.raises(UnknownGpu) as caught:
        planned(devices)
    for index, uuid in enumerate(fv.UUIDS[:3]):
        assert f"{index} ({uuid})" in str(caught.value)


def lost(*indexes: int) -> HostFacts:
    gpus = [
        replace(gpu, lost=gpu.index in indexes, error="uuid: GPU is lost")
        if gpu.index in indexes
        else gpu
        for gpu in HOST.nvml.gpus
    ]
    return replace(HOST, nvml=fv.nvml(*gpus))


@pytest.mark.parametrize("devices", ["1", fv.UUIDS[1], fv.BUS_IDS[1], "0,1"])
def test_lost_gpu_by_name_is_refused(devices: str) -> None:
    """Whoever names a lost GPU is told its name and the reason."""
    with pytest.raises(UnhealthyGpu, match=r"GPU unusable: 1 \(GPU-.*\): lost: .*GPU is lost"):
        planned(devices, facts=lost(1))


def test_all_leaves_out_a_lost_gpu() -> None:
    """One dead GPU does not spoil the others."""
    assert gpu_nodes(planned("all", facts=lost(1))) == ["/dev/nvidia1", "/dev/nvidia2"]
    assert gpu_nodes(planned("0,2", facts=lost(1))) == ["/dev/nvidia1", "/dev/nvidia2"]


def test_all_of_nothing_is_refused() -> None:
    """A GPU container never starts without a GPU: `all` with every GPU lost is refused."""
    with pytest.raises(UnhealthyGpu, match=r"all: 0: lost.*; 1: lost.*; 2: lost"):
        planned("all", facts=lost(0, 1, 2))
    assert gpu_nodes(planned("none", facts=lost(0, 1, 2))) == []


@pytest.mark.parametrize(
    ("devices", "caps"),
    [
        ("0:0", ("12", "13")),
        ("0:2", ("21", "23")),
        ("0:1,0:2", ("21", "22", "23")),
        (MIG_UUIDS[1], ("21", "22")),
        (f"MIG-{fv.UUIDS[0]}/2/1", ("21", "23")),
        (f"{MIG_UUIDS[0]},0:0,0:00", ("12", "13")),
        ("0", ()),
        ("all", ("12", "13", "21", "22", "23")),
    ],
)
def test_mig_device_brings_parent_and_its_caps(devices: str, caps: Sequence[str]) -> None:
    """A MIG device has its parent's node and its own two capability nodes, nobody else's."""
    plan = planned(devices, facts=mig_host())
    expected = ["/dev/nvidia2"] if devices != "all" else [f"/dev/nvidia{n}" for n in range(3)]
    assert gpu_nodes(plan) == expected
    assert cap_nodes(plan) == list(caps)
    rules = {(s.major, s.minor) for s in plan.steps if isinstance(s, DeviceRule)}
    assert {m for major, m in rules if major == fv.CAPS_MAJOR} == set(map(int, caps))


def test_mig_devices_without_uuids_stay_apart() -> None:
    """Without NVML no MIG device has a UUID, and `all` still brings each of them."""
    facts = mig_host(nvml=False)
    assert cap_nodes(planned("all", facts=facts)) == ["12", "13", "21", "22", "23"]
    assert cap_nodes(planned("0:0,0:1", facts=facts)) == ["12", "13", "21", "22"]


def test_unknown_mig_names_what_there_is() -> None:
    """The error lists MIG devices in both forms."""
    with pytest.raises(UnknownGpu, match=rf"0:2 \({MIG_UUIDS[2]}\)"):
        planned("0:3", facts=mig_host())


def test_mig_device_without_its_node_is_unusable() -> None:
    """A MIG device whose capability node is missing is refused by name and left out of `all`."""
    facts = mig_host()
    facts = replace(facts, nodes=tuple(n for n in facts.nodes if not n.target.endswith("cap22")))
    with pytest.raises(UnhealthyGpu, match=r"0:1 \(MIG-.*\): a node of /dev/nvidia-caps"):
        planned("0:1", facts=facts)
    assert cap_nodes(planned("all", facts=facts)) == ["12", "13", "21", "23"]


LIBRARIES = (
    *fv.HOST.libraries,
    *(fv.library(stem) for stem in ("libnvidia-encode", "libGLX_nvidia", "libnvidia-ngx")),
    fv.library("libnvidia-novel"),
    fv.library("libGL"),
    *(fv.library(s, folder="/usr/lib32", machine="i386") for s in ("libcuda", "libGLX_nvidia")),
)
RICH = replace(HOST, libraries=LIBRARIES)


@pytest.mark.parametrize(
    ("capabilities", "libs", "libs32"),
    [
        ("compute", "libcuda libnvidia-novel", ""),
        ("utility", "libnvidia-ml", ""),
        ("compute,utility", "libcuda libnvidia-ml libnvidia-novel", ""),
        ("video", "libcuda libnvidia-encode libnvidia-novel", ""),
        ("compute,compat32", "libcuda libnvidia-novel", "libcuda"),
        ("utility,compat32", "libnvidia-ml", ""),
        (
            "all",
            "libGLX_nvidia libcuda libnvidia-encode libnvidia-ml libnvidia-ngx libnvidia-novel",
            "libGLX_nvidia libcuda",
        ),
    ],
)
def test_libraries_by_capability(capabilities: str, libs: str, libs32: str) -> None:
    """Each capability brings its libraries, an unknown one counts as compute's, GL never comes."""
    plan = planned("0", capabilities, RICH)
    assert files(plan, Place.LIBS) == [f"{stem}.so.{fv.VERSION}" for stem in libs.split()]
    assert files(plan, Place.LIBS32) == [f"{stem}.so.{fv.VERSION}" for stem in libs32.split()]


@pytest.mark.parametrize(
    ("capabilities", "control", "program", "ipc"),
    [
        ("utility", ["/dev/nvidiactl"], True, False),
        ("compute", ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"], False, True),
        ("graphics", ["/dev/nvidiactl"], False, False),
    ],
)
def test_nodes_programs_and_sockets_by_capability(
    capabilities: str, control: list[str], program: bool, ipc: bool
) -> None:
    """Every GPU container gets nvidiactl; uvm, nvidia-smi and MPS only who asks for their class."""
    plan = planned("0", capabilities)
    nodes = [s.node.target for s in plan.steps if isinstance(s, BindNode)]
    assert [n for n in nodes if n != "/dev/nvidia2"] == control
    assert ("/usr/bin/nvidia-smi" in files(plan, Place.ABSOLUTE)) is program
    assert any(isinstance(s, BindIpc) for s in plan.steps) is ipc


def test_links_lead_over_the_soname_to_the_file() -> None:
    """The SONAME leads to the file, every other name to the SONAME, libcuda.so even if unseen."""
    cuda = replace(
        fv.library("libcuda"), links=("libcuda.so", "libcuda.so.1", f"libcuda.so.{fv.VERSION}")
    )
    glx = replace(fv.library("libGLX_nvidia"), soname="libGLX_nvidia.so.0")
    facts = replace(HOST, libraries=(cuda, glx, fv.library("libnvidia-ml")))
    links = {s.target: s.points_to for s in planned("0", "all", facts).steps if isinstance(s, Link)}
    assert links == {
        "libcuda.so.1": f"libcuda.so.{fv.VERSION}",
        "libcuda.so": "libcuda.so.1",
        "libGLX_nvidia.so.0": f"libGLX_nvidia.so.{fv.VERSION}",
        "libGLX_indirect.so.0": "libGLX_nvidia.so.0",
        "libnvidia-ml.so.1": f"libnvidia-ml.so.{fv.VERSION}",
    }


def test_library_below_the_library_directory() -> None:
    """A vdpau library goes below `vdpau` with its links, and not into the loader's cache."""
    name = f"libvdpau_nvidia.so.{fv.VERSION}"
    vdpau = LibraryFact(
        name, "libvdpau_nvidia.so.1", "x86_64", fv.file(f"/usr/lib64/vdpau/{name}"), (), "vdpau"
    )
    plan = planned("0", "video", replace(HOST, libraries=(*HOST.libraries, vdpau)))
    assert f"vdpau/{name}" in files(plan, Place.LIBS)
    assert Link(Place.LIBS, "vdpau/libvdpau_nvidia.so.1", name) in plan.steps
    assert [s.soname for s in plan.steps if isinstance(s, CacheEntry)] == ["libcuda.so.1"]


def test_rules_are_those_of_the_nodes() -> None:
    """Exactly the bound nodes may be opened: their own numbers, read and write, no mknod."""
    plan = planned("all", "all", mig_host())
    nodes = [(s.node.major, s.node.minor) for s in plan.steps if isinstance(s, BindNode)]
    rules = [s for s in plan.steps if isinstance(s, DeviceRule)]
    assert [(r.major, r.minor) for r in rules] == nodes
    assert {r.access for r in rules} == {"rw"}


def test_mask_shows_the_drivers_own_files() -> None:
    """The mask has the driver's version text, and params that let nobody make nodes."""
    (mask,) = [s for s in planned("0").steps if isinstance(s, MaskProc)]
    shown = dict(mask.files)
    assert mask.target == "/proc/driver/nvidia"
    assert shown["version"] == fv.DRIVER.version_text
    assert "ModifyDeviceFiles: 0" in shown["params"]


def test_mask_above_the_drivers_directory() -> None:
    """Where only /proc/driver exists the mask lies there and its names have the rest."""
    proc = ProcPaths("/sim/proc", "/proc/driver")
    plan = planner.plan(build(HOST), request("0"), proc)
    (mask,) = [s for s in plan.steps if isinstance(s, MaskProc)]
    assert {name for name, _ in mask.files} == {
        *("nvidia/params", "nvidia/registry", "nvidia/version")
    }
    (shown,) = [s for s in plan.steps if isinstance(s, BindProcGpu)]
    assert shown.name == f"nvidia/gpus/{fv.BUS_IDS[0]}"
    assert shown.source == f"/sim/proc/driver/nvidia/gpus/{fv.BUS_IDS[0]}"
    assert plan.version_file == "/sim/proc/driver/nvidia/version"


def test_one_step_a_place() -> None:
    """Two libraries of one name in two directories are one bind, one link and one cache entry."""
    twin = fv.library("libcuda", folder="/opt/lib")
    plan = planned("0", facts=replace(HOST, libraries=(*HOST.libraries, twin)))
    assert files(plan, Place.LIBS).count(twin.name) == 1
    assert [s.soname for s in plan.steps if isinstance(s, CacheEntry)].count("libcuda.so.1") == 1


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            replace(HOST, driver=replace(fv.DRIVER, version=None, reason="no module")),
            "driver not ready: no-driver: no module",
        ),
        (
            replace(HOST, libraries=tuple(fv.library(s, "550.54.15") for s in ("libcuda",))),
            "driver not ready: driver-mismatch: .*550.54.14.*550.54.15",
        ),
        (replace(HOST, nodes=HOST.nodes[:3]), "driver not ready: starting: .*/dev/nvidiactl"),
    ],
)
@pytest.mark.parametrize("devices", ["all", "0", "none", "99"])
def test_no_plan_before_the_driver_is_ready(facts: HostFacts, words: str, devices: str) -> None:
    """Outside READY there is no plan for anybody, and the reason names both versions."""
    with pytest.raises(DriverNotReady, match=words):
        planned(devices, facts=facts)


def test_the_hook_reads_what_is_planned() -> None:
    """Every step of a rich plan passes the hook's parser, which keeps version and generation."""
    facts = replace(mig_host(), libraries=LIBRARIES)
    plan = planned("all", "all", facts)
    read = planfile.parse_plan(encode(plan))
    assert len(read.steps) == len(plan.steps)
    assert read.generation.decode() == build(facts).generation
    assert read.version_text.decode() == fv.DRIVER.version_text
    assert len(digest(encode(plan))) == 32
