"""Facts of an imaginary host with two GPUs, as values; tests replace parts of it."""

from __future__ import annotations

from agent.facts.values import (
    DriverFact,
    FileId,
    HostFacts,
    IpcFact,
    LibraryFact,
    NodeFact,
    NvmlFact,
    NvmlGpu,
    ProcGpu,
    ProgramFact,
)

VERSION = "550.54.14"
UUIDS = tuple(f"GPU-a1b2c3d4-0000-4000-8000-00000000000{n}" for n in range(9))
BUS_IDS = ("0000:3b:00.0", "0000:86:00.0", "0000:af:00.0", "0000:d8:00.0")
CAPS_MAJOR = 241


def file(path: str, ino: int = 1) -> FileId:
    """A file with this path and inode."""
    return FileId(path, 64, ino, 1000, 1_700_000_000_000_000_000)


def library(
    stem: str, version: str = VERSION, folder: str = "/usr/lib64", machine: str = "x86_64"
) -> LibraryFact:
    """A library of this driver version."""
    name = f"{stem}.so.{version}"
    return LibraryFact(name, f"{stem}.so.1", machine, file(f"{folder}/{name}"))


def node(target: str, major: int, minor: int) -> NodeFact:
    """A node anyone may use."""
    return NodeFact(target, target, major, minor, 0o666, 0, 0)


def proc_gpu(at: int, minor: int | None = None, uuid: str | None = "", **more: bool) -> ProcGpu:
    """The GPU at this place of the PCI bus; its minor is its place unless said otherwise."""
    uuid = UUIDS[at] if uuid == "" else uuid
    excluded = more.get("excluded", False)
    return ProcGpu(BUS_IDS[at], at if minor is None else minor, uuid, "NVIDIA L4", excluded)


def nvml_gpu(at: int, minor: int | None = None) -> NvmlGpu:
    """NVML's view of the GPU at this place, with its way to write bus ids."""
    bus_id = f"0000{BUS_IDS[at].upper()}"
    number = at if minor is None else minor
    return NvmlGpu(at, UUIDS[at], number, bus_id, "NVIDIA L4", "Nvidia", (8, 9), False)


def nvml(*gpus: NvmlGpu) -> NvmlFact:
    """An answer of NVML with these GPUs."""
    return NvmlFact(VERSION, (12, 4), gpus)


NODES = (
    node("/dev/nvidia0", 195, 0),
    node("/dev/nvidia1", 195, 1),
    node("/dev/nvidia2", 195, 2),
    node("/dev/nvidiactl", 195, 255),
    node("/dev/nvidia-uvm", 511, 0),
    node("/dev/nvidia-uvm-tools", 511, 1),
)

DRIVER = DriverFact(
    version=VERSION,
    version_text=f"NVRM version: {VERSION}\n",
    params="EnableMSI: 1\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n",
    registry='Binary: ""\n',
    majors=(("nvidia", 195), ("nvidia-caps", CAPS_MAJOR), ("nvidia-uvm", 511)),
)

HOST = HostFacts(
    driver=DRIVER,
    gpus=(proc_gpu(0), proc_gpu(1)),
    mig_caps=(),
    libraries=(library("libcuda"), library("libnvidia-ml")),
    programs=(ProgramFact("nvidia-smi", file("/usr/bin/nvidia-smi")),),
    firmware=(),
    ipc=(IpcFact("/tmp/nvidia-mps", "/tmp/nvidia-mps", "dir"),),
    nodes=NODES,
    nvml=nvml(nvml_gpu(0), nvml_gpu(1)),
)
