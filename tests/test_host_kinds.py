"""Hosts of every kind: a tree like theirs, read and planned from end to end.

Each tree has the smallest driver that is one; what differs is where it lies, what leads to it,
and what else lies there.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from agent.facts.read import read_host
from agent.facts.root import HostRoots
from agent.facts.values import HostFacts, NvmlFact
from agent.inventory import DriverState, build
from agent.missingnodes import missing_nodes
from agent.plan import BindFile, CacheEntry, Place, Plan
from agent.planner import ProcPaths, plan
from agent.policy import Policy
from agent.request import ask
from tests.elf_files import AARCH64, I386, PROGRAM, X86_64, elf
from tests.host_trees import DIRECTORY, LIB64, VERSION, Content, Link, library, plant
from tests.ldcache_files import X86_64 as X86_64_FLAGS
from tests.ldcache_files import write

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root"),
]

BUS = "0000:3b:00.0"
UUID = "GPU-a1b2c3d4-0000-4000-8000-000000000000"
NODES = {"nvidiactl": (195, 255), "nvidia0": (195, 0), "nvidia-uvm": (511, 0)}
DEVICES = "Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n"
NO_NVML = NvmlFact(reason="not asked")
SMI = elf(kind=PROGRAM, dynamic=False)
AARCH64_FLAGS = 0x0A03


def kernel(version: str = VERSION, machine: str = "x86_64") -> dict[str, Content]:
    """procfs of a loaded module with one GPU."""
    nvidia = "proc/driver/nvidia"
    text = f"NVRM version: NVIDIA UNIX Open Kernel Module for {machine}  {version}  Release Build\n"
    information = f"Model: \t\t NVIDIA L4\nGPU UUID: \t {UUID}\nDevice Minor: \t 0\n"
    return {
        f"{nvidia}/version": text,
        f"{nvidia}/params": "ModifyDeviceFiles: 1\nDeviceFileMode: 438\n",
        f"{nvidia}/gpus/{BUS}/information": information,
        "proc/devices": DEVICES,
        "sys": DIRECTORY,
    }


def driver(directory: str, version: str = VERSION) -> dict[str, Content]:
    """The libraries of a driver, and one of each further word size or kind."""
    stems = (("libcuda", "1"), ("libnvidia-ml", "1"), ("libGLX_nvidia", "0"))
    trees = [library(s, n, version=version, directory=directory) for s, n in stems]
    return {name: content for tree in trees for name, content in tree.items()}


def nodes(root: Path, *names: str) -> None:
    """Make device nodes below `<root>/dev`."""
    (root / "dev").mkdir(parents=True, exist_ok=True)
    for name in names:
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(*NODES[name]))


def read(root: Path, driver_root: str = "", *extra: str) -> HostFacts:
    """The facts of the host below `root`; the driver may have a root of its own in it."""
    if not (root / "dev").exists():
        nodes(root, *NODES)
    own = f"{root}{driver_root}"
    return read_host(HostRoots(own, str(root), f"{root}/proc", f"{root}/sys", extra), NO_NVML)


def planned(facts: HostFacts, capabilities: str = "all") -> Plan:
    """The plan of the one GPU."""
    request = ask("all", capabilities, Policy(), "test")
    assert request is not None
    inventory = build(facts)
    assert inventory.state is DriverState.READY, inventory.reason
    return plan(inventory, request, ProcPaths())


def sources(made: Plan, root: Path) -> dict[str, str]:
    """Container path (a library's by name alone) to host path without the root."""
    return {
        s.target: s.file.path.removeprefix(str(root))
        for s in made.steps
        if isinstance(s, BindFile) and s.place in (Place.LIBS, Place.ABSOLUTE)
    }


def cache(root: Path, *paths: str, flags: int = X86_64_FLAGS) -> None:
    """Make a loader cache that lists these libraries."""
    entries = [(os.path.basename(p).encode(), p.encode(), flags, 0, 0) for p in paths]
    plant(root, {"etc/ld.so.cache": write(entries, "new-2.33")})


def test_driver_container(tmp_path: Path) -> None:
    """A driver below /run/nvidia/driver: files from there, nodes and procfs of the host."""
    home = "run/nvidia/driver"
    firmware = f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
    plant(tmp_path, {**kernel(), **driver(f"{home}/{LIB64}"), f"{home}/usr/bin/nvidia-smi": SMI})
    plant(tmp_path, {f"{home}/{firmware}": "x", f"{home}/usr/share/nvidia/nvoptix.bin": "x"})
    found = sources(planned(read(tmp_path, f"/{home}")), tmp_path)
    assert found[f"libcuda.so.{VERSION}"] == f"/{home}/{LIB64}/libcuda.so.{VERSION}"
    assert found["/usr/bin/nvidia-smi"] == f"/{home}/usr/bin/nvidia-smi"
    assert found[f"/{firmware}"] == f"/{home}/{firmware}"
    assert found["/usr/share/nvidia/nvoptix.bin"] == f"/{home}/usr/share/nvidia/nvoptix.bin"


def test_driver_container_that_is_not_mounted(tmp_path: Path) -> None:
    """While the driver's root is still empty the host is starting, and says where it looked."""
    plant(tmp_path, {**kernel(), "run/nvidia/driver": DIRECTORY, **driver(LIB64)})
    inventory = build(read(tmp_path, "/run/nvidia/driver"))
    assert inventory.state is DriverState.STARTING
    assert "libraries: lib*.so.550.54.14: none in" in (inventory.reason or "")


GKE = "home/kubernetes/bin/nvidia"
GKE_TREE: dict[str, Content] = {
    **driver(f"{GKE}/lib64"),
    f"{GKE}/bin/nvidia-smi": SMI,
    f"{GKE}/vulkan/icd.d/nvidia_icd.json": "{}",
}


@pytest.mark.parametrize("driver_root", ["", f"/{GKE}"])
def test_gke(tmp_path: Path, driver_root: str) -> None:
    """GKE's own directory is found from / and as a driver root, without a loader cache."""
    plant(tmp_path, {**kernel(), **GKE_TREE})
    found = sources(planned(read(tmp_path, driver_root)), tmp_path)
    assert found[f"libcuda.so.{VERSION}"] == f"/{GKE}/lib64/libcuda.so.{VERSION}"
    assert found["/usr/bin/nvidia-smi"] == f"/{GKE}/bin/nvidia-smi"
    vulkan = found["/etc/vulkan/icd.d/nvidia_icd.json"]
    assert vulkan == f"/{GKE}/vulkan/icd.d/nvidia_icd.json"


def test_talos(tmp_path: Path) -> None:
    """Talos: the driver's glibc tree, programs in /usr/local/bin, no usable cache (B063)."""
    place = "usr/local/glibc/usr/lib"
    plant(tmp_path, {**kernel(), **driver(place), "usr/local/bin/nvidia-smi": SMI})
    plant(tmp_path, {"usr/local/glibc/usr/share/vulkan/icd.d/nvidia_icd.json": "{}"})
    found = sources(planned(read(tmp_path)), tmp_path)
    assert found[f"libGLX_nvidia.so.{VERSION}"] == f"/{place}/libGLX_nvidia.so.{VERSION}"
    assert found["/usr/bin/nvidia-smi"] == "/usr/local/bin/nvidia-smi"
    assert "/etc/vulkan/icd.d/nvidia_icd.json" in found


def test_nixos(tmp_path: Path) -> None:
    """NixOS: a farm of links into the store, whose manifests name store paths (B063, B125)."""
    store, farm = "nix/store/abc-nvidia-x11", "nix/store/def-graphics-drivers"
    gbm = "nix/store/ghi-egl-gbm/lib/libnvidia-egl-gbm.so.1.1.2"
    name = f"libGLX_nvidia.so.{VERSION}"
    manifest = f'{{"ICD": {{"library_path": "/{store}/lib/libGLX_nvidia.so.0"}}}}'
    plant(tmp_path, {**kernel(), **driver(f"{store}/lib"), gbm: elf("libnvidia-egl-gbm.so.1")})
    plant(tmp_path, {f"{store}/share/vulkan/icd.d/nvidia_icd.json": manifest})
    own = [p.name for p in (tmp_path / store / "lib").iterdir()]
    plant(tmp_path, {f"{farm}/lib/{n}": Link(f"/{store}/lib/{n}") for n in own})
    plant(tmp_path, {f"{farm}/lib/{os.path.basename(gbm)}": Link(f"/{gbm}")})
    plant(tmp_path, {f"{farm}/share/vulkan": Link(f"/{store}/share/vulkan")})
    plant(tmp_path, {"run/opengl-driver": Link(f"/{farm}")})
    found = sources(planned(read(tmp_path)), tmp_path)
    assert found[name] == f"/{store}/lib/{name}"
    assert found["libnvidia-egl-gbm.so.1.1.2"] == f"/{gbm}"
    assert found[f"/{store}/lib/libGLX_nvidia.so.0"] == f"/{store}/lib/{name}"


def test_debian_alternatives(tmp_path: Path) -> None:
    """Debian: the driver in nvidia/current, reached by /etc/alternatives; each file once (B056)."""
    place = f"{LIB64}/nvidia/current"
    plant(tmp_path, {**kernel(), **driver(place), "lib": Link("usr/lib"), "bin": Link("usr/bin")})
    plant(tmp_path, {f"{LIB64}/libcuda.so.1": Link("/etc/alternatives/libcuda")})
    plant(tmp_path, {"etc/alternatives/libcuda": Link(f"/{place}/libcuda.so.1")})
    plant(tmp_path, {"usr/bin/nvidia-smi": Link("/etc/alternatives/smi")})
    plant(tmp_path, {"etc/alternatives/smi": Link("/usr/lib/nvidia/current/nvidia-smi")})
    plant(tmp_path, {"usr/lib/nvidia/current/nvidia-smi": SMI})
    cache(tmp_path, f"/{LIB64}/libcuda.so.1", "/lib/x86_64-linux-gnu/libcuda.so.1")
    made = planned(read(tmp_path))
    found = sources(made, tmp_path)
    assert found[f"libcuda.so.{VERSION}"] == f"/{place}/libcuda.so.{VERSION}"
    assert found["/usr/bin/nvidia-smi"] == "/usr/lib/nvidia/current/nvidia-smi"
    files = [(s.file.dev, s.file.ino) for s in made.steps if isinstance(s, BindFile)]
    assert len(files) == len(set(files))


@pytest.mark.parametrize("content", ["none", "stale", "cut", "foreign", "empty"])
def test_cache_of_any_kind(tmp_path: Path, content: str) -> None:
    """Without a loader cache, or with a bad one, the same libraries are found (B061, B063)."""
    plant(tmp_path, {**kernel(), **driver(LIB64)})
    path = tmp_path / "etc/ld.so.cache"
    if content == "stale":
        cache(tmp_path, "/usr/lib64/libcuda.so.535.54.03", "/opt/gone/libcuda.so.1")
    elif content == "cut":
        cache(tmp_path, f"/{LIB64}/libcuda.so.1")
        path.write_bytes(path.read_bytes()[:-9])
    elif content == "foreign":
        cache(tmp_path, "/usr/lib/aarch64-linux-gnu/libcuda.so.1", flags=AARCH64_FLAGS)
    elif content == "empty":
        plant(tmp_path, {"etc/ld.so.cache": ""})
    found = sources(planned(read(tmp_path)), tmp_path)
    wanted = {f"{s}.so.{VERSION}" for s in ("libcuda", "libnvidia-ml", "libGLX_nvidia")}
    assert {n for n in found if not n.startswith("/")} == wanted


def test_several_drivers_in_the_cache(tmp_path: Path) -> None:
    """Of three driver versions that the cache lists only the loaded one's files are planned."""
    others = {"opt/old": "535.54.03", "opt/new": "570.86.15"}
    plant(tmp_path, {**kernel(), **driver("opt/this")})
    for place, version in others.items():
        plant(tmp_path, driver(place, version))
    cache(tmp_path, *(f"/{p}/libcuda.so.1" for p in (*others, "opt/this")))
    found = sources(planned(read(tmp_path)), tmp_path)
    assert found
    assert {os.path.dirname(path) for path in found.values()} == {"/opt/this"}


@pytest.mark.parametrize("version", ["340.108", "390.157", "535.104.05", "600.10", "1000.1.2"])
def test_versions_of_two_and_three_parts(tmp_path: Path, version: str) -> None:
    """The module's version has two parts or three; the files must have exactly the same."""
    plant(tmp_path, {**kernel(version), **driver(LIB64, version)})
    plant(tmp_path, driver("usr/lib64", f"{version}.9" if version.count(".") == 1 else "600.1"))
    found = sources(planned(read(tmp_path)), tmp_path)
    assert {n.partition(".so.")[2] for n in found} == {version}


def test_aarch64(tmp_path: Path) -> None:
    """An arm host gets its own libraries, and not those of a foreign architecture beside them."""
    place = "usr/lib/aarch64-linux-gnu"
    trees = [library(s, directory=place, machine=AARCH64) for s in ("libcuda", "libnvidia-ml")]
    plant(tmp_path, {**kernel(machine="aarch64"), **trees[0], **trees[1], **driver(LIB64)})
    cache(tmp_path, f"/{place}/libcuda.so.1", flags=AARCH64_FLAGS)
    made = planned(read(tmp_path))
    found = sources(made, tmp_path)
    assert found[f"libcuda.so.{VERSION}"] == f"/{place}/libcuda.so.{VERSION}"
    assert f"libGLX_nvidia.so.{VERSION}" not in found
    assert {s.flags for s in made.steps if isinstance(s, CacheEntry)} == {AARCH64_FLAGS}


def test_foreign_architecture_beside_the_own(tmp_path: Path) -> None:
    """Files for another machine in the first directory do not stand for those of this one."""
    foreign = library("libcuda", directory="opt/first", machine=AARCH64)
    wide = library("libcuda", directory="usr/lib32", machine=I386)
    plant(tmp_path, {**kernel(), **foreign, **wide, **driver(LIB64)})
    made = planned(read(tmp_path, "", "/opt/first"))
    places = [
        (s.place, s.file.path.removeprefix(str(tmp_path)))
        for s in made.steps
        if isinstance(s, BindFile) and s.target == f"libcuda.so.{VERSION}"
    ]
    assert sorted(places) == [
        (Place.LIBS, f"/{LIB64}/libcuda.so.{VERSION}"),
        (Place.LIBS32, f"/usr/lib32/libcuda.so.{VERSION}"),
    ]


def test_truncated_library(tmp_path: Path) -> None:
    """Half a copy of libcuda is no driver: the host is not ready while it is all there is."""
    whole = elf("libcuda.so.1", machine=X86_64)
    plant(tmp_path, {**kernel(), f"{LIB64}/libcuda.so.{VERSION}": whole[:-20]})
    assert build(read(tmp_path)).state is DriverState.STARTING


@pytest.mark.parametrize("major", [235, 239, 510])
def test_dynamic_majors(tmp_path: Path, major: int) -> None:
    """The uvm major of this boot decides; a node of the last boot is stale and named."""
    plant(tmp_path, {**kernel(), **driver(LIB64)})
    plant(tmp_path, {"proc/devices": DEVICES.replace("511", str(major))})
    facts = read(tmp_path)
    inventory = build(facts)
    assert inventory.state is DriverState.STARTING
    assert f"has major 511, /proc/devices has {major}" in (inventory.reason or "")
    assert [(n.path, n.major) for n in missing_nodes(facts) if n.path.endswith("uvm")] == [
        ("/dev/nvidia-uvm", major)
    ]


def test_uvm_node_is_missing_after_boot(tmp_path: Path) -> None:
    """The module is loaded and its node not made yet: starting, with what to do (B111)."""
    plant(tmp_path, {**kernel(), **driver(LIB64)})
    nodes(tmp_path, "nvidiactl", "nvidia0")
    facts = read(tmp_path)
    inventory = build(facts)
    assert inventory.state is DriverState.STARTING
    assert inventory.reason == (
        "nodes: /dev/nvidia-uvm: missing (run nvidia-modprobe -u -c 0, or "
        "mknod -m 0666 /dev/nvidia-uvm c 511 0)"
    )
    assert [n[:4] for n in missing_nodes(facts)] == [
        ("/dev/nvidia-uvm", 511, 0, 0o666),
        ("/dev/nvidia-uvm-tools", 511, 1, 0o666),
    ]


def test_gpu_that_virtual_machines_have(tmp_path: Path) -> None:
    """A GPU bound to vfio-pci is on the bus and not in procfs: noted, the others work."""
    device = "sys/bus/pci/devices/0000:af:00.0"
    plant(tmp_path, {**kernel(), **driver(LIB64), f"{device}/vendor": "0x10de\n"})
    plant(tmp_path, {f"{device}/class": "0x030200\n"})
    plant(tmp_path, {f"{device}/driver": Link("../../../drivers/vfio-pci")})
    facts = read(tmp_path)
    note = "GPU 0000:af:00.0: bound to vfio-pci, not to the nvidia driver"
    assert note in build(facts).notes
    planned(facts)
    # It is no part of any plan, so nothing has to be planned again.
    assert build(facts).generation == build(replace(facts, pci=())).generation


def test_gpu_that_is_excluded(tmp_path: Path) -> None:
    """A GPU that the driver's configuration excludes stays in the list with that reason."""
    gpus = "proc/driver/nvidia/gpus"
    plant(tmp_path, {**kernel(), **driver(LIB64)})
    text = "Model: NVIDIA L4\nDevice Minor: 1\nGPU Excluded:\t Yes\n"
    plant(tmp_path, {f"{gpus}/0000:86:00.0/information": text})
    facts = read(tmp_path)
    problems = {g.bus_id: g.problem for g in build(facts).gpus}
    assert problems == {BUS: None, "0000:86:00.0": "excluded by the driver's configuration"}
    assert "/dev/nvidia1" not in {n.path for n in missing_nodes(facts)}
    planned(facts)
