"""What one reader saw on the host: frozen values and nothing else.

The readers beside this module make them; `agent.inventory` turns them into an inventory. An
absent fact is `None` (or an empty tuple) with a `reason`, never a magic string.

Two kinds of path occur. A *host path* is what the agent and the hook open. A *container path*
is what the container sees: the host path with the driver root or the dev root taken off.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileId:
    """A host file and the identity it must still have when the hook mounts it.

    `path` is absolute, with every symbolic link resolved; `mtime_ns` is in nanoseconds.
    """

    path: str
    dev: int
    ino: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class LibraryFact:
    """One shared library of the driver, seen on disk.

    `name` is the basename of the real file (`libcuda.so.580.159.04`); `machine` is the ELF
    machine as `uname -m` writes it (`x86_64`, `i386`, `aarch64`); `links` are the names of
    symbolic links beside it that lead to it (`libcuda.so`, `libcuda.so.1`), sorted. `subdir` is
    "" or the directory below the library directory it belongs into (`vdpau`). `needs` are the
    driver's own libraries in its DT_NEEDED. `directory` is where it was found, a path of the
    driver root: in a farm of links the file itself lies elsewhere.
    """

    name: str
    soname: str | None
    machine: str
    file: FileId
    links: tuple[str, ...] = ()
    subdir: str = ""
    needs: tuple[str, ...] = ()
    directory: str = ""


@dataclass(frozen=True, slots=True)
class ProgramFact:
    """One ELF program of the driver (`nvidia-smi`); scripts of that name are not programs."""

    name: str
    file: FileId


@dataclass(frozen=True, slots=True)
class DataFact:
    """A file injected at its own place: firmware, JSON and configuration files, X server modules.

    `links` are the names of links beside `target` that lead to it. `library` is the absolute
    path by which the text names a library, and the real host path of that library.
    """

    target: str
    file: FileId
    links: tuple[str, ...] = ()
    library: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class IpcFact:
    """A socket or directory of a driver daemon; `kind` is `socket` or `dir`."""

    target: str
    source: str
    kind: str


@dataclass(frozen=True, slots=True)
class NodeFact:
    """A character device node. `target` is its container path, `source` its host path."""

    target: str
    source: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class DriverFact:
    """The loaded kernel module, from `<proc_root>/driver/nvidia` and `<proc_root>/devices`.

    `version` comes out of `version_text`, the whole content of `version`, and so does `machine`,
    the architecture as `uname -m` writes it; `majors` are (name, major) pairs of /proc/devices
    whose name starts with `nvidia`, sorted.
    """

    version: str | None
    version_text: str | None
    params: str | None
    registry: str | None
    majors: tuple[tuple[str, int], ...]
    reason: str | None = None
    machine: str | None = None


@dataclass(frozen=True, slots=True)
class DrmFact:
    """A DRM device of a GPU as sysfs names it: `card0`, `renderD128`, and its number."""

    name: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class PciGpu:
    """An NVIDIA GPU on the PCI bus; `driver` is the kernel driver that has it, if any has."""

    bus_id: str
    driver: str | None
    drm: tuple[DrmFact, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcGpu:
    """One `gpus/<bus id>/information` file. `uuid` is None while the driver shows `?`s."""

    bus_id: str
    minor: int | None
    uuid: str | None
    model: str | None
    excluded: bool


@dataclass(frozen=True, slots=True)
class MigCap:
    """A compute instance that exists, from procfs.

    `gpu_minor`, `gi` and `ci` name it; `gi_cap` and `ci_cap` are minors of `nvidia-caps`.
    """

    gpu_minor: int
    gi: int
    ci: int
    gi_cap: int
    ci_cap: int


@dataclass(frozen=True, slots=True)
class MigManagement:
    """A right over all MIG instances: `name` is `config` or `monitor`, `cap` its minor."""

    name: str
    cap: int
    mode: int


@dataclass(frozen=True, slots=True)
class NvmlMig:
    """One MIG device as NVML reports it on its GPU; `ordinal` counts from 0."""

    ordinal: int
    uuid: str
    gi: int
    ci: int
    name: str | None


@dataclass(frozen=True, slots=True)
class NvmlGpu:
    """One GPU as NVML answers; any field may be None, `error` is the first failing call.

    `index` is NVML's; `minor` is the N of /dev/nvidiaN. `brand` is NVML's brand in words.
    `persistent` is persistence mode: the driver keeps the GPU initialised while nobody uses it.
    """

    index: int
    uuid: str | None
    minor: int | None
    bus_id: str | None
    name: str | None
    brand: str | None
    compute_capability: tuple[int, int] | None
    mig_enabled: bool | None
    migs: tuple[NvmlMig, ...] = ()
    error: str | None = None
    lost: bool = False
    persistent: bool | None = None


@dataclass(frozen=True, slots=True)
class NvmlFact:
    """NVML's answers. `cuda_version` is (major, minor). With a `reason` there is no answer."""

    driver_version: str | None = None
    cuda_version: tuple[int, int] | None = None
    gpus: tuple[NvmlGpu, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Everything the readers saw at one moment.

    `libraries` may hold several driver versions; `inventory` keeps those of the loaded module.
    `libraries_reason` says why there are none. `data` are the files of the graphics stack and of
    OpenCL, `modules` those of the X server, `pci` the GPUs that the kernel sees, whoever has them.
    `node_work` tells, a line each, which nodes and links the agent has made or could not make.
    """

    driver: DriverFact
    gpus: tuple[ProcGpu, ...]
    mig_caps: tuple[MigCap, ...]
    libraries: tuple[LibraryFact, ...]
    programs: tuple[ProgramFact, ...]
    firmware: tuple[DataFact, ...]
    ipc: tuple[IpcFact, ...]
    nodes: tuple[NodeFact, ...]
    nvml: NvmlFact
    libraries_reason: str | None = None
    data: tuple[DataFact, ...] = ()
    modules: tuple[DataFact, ...] = ()
    pci: tuple[PciGpu, ...] = ()
    node_work: tuple[str, ...] = ()
    mig_management: tuple[MigManagement, ...] = ()
