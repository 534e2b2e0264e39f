# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InventoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ContainersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("container", "devices", "capabilities")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    container: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, container: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., capabilities: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("container",)
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    container: str
    def __init__(self, container: _Optional[str] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("message", "hint", "exit_code")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    message: str
    hint: str
    exit_code: int
    def __init__(self, message: _Optional[str] = ..., hint: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class StatusReport(_message.Message):
    __slots__ = ("version", "pid", "uptime_s", "driver", "generation", "gpus", "containerds", "containers", "containers_with_gpus", "plans_staged", "entries_staged", "replays")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERDS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_WITH_GPUS_FIELD_NUMBER: _ClassVar[int]
    PLANS_STAGED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_STAGED_FIELD_NUMBER: _ClassVar[int]
    REPLAYS_FIELD_NUMBER: _ClassVar[int]
    version: str
    pid: int
    uptime_s: float
    driver: DriverReport
    generation: GenerationReport
    gpus: _containers.RepeatedCompositeFieldContainer[GpuReport]
    containerds: _containers.RepeatedCompositeFieldContainer[ContainerdReport]
    containers: int
    containers_with_gpus: int
    plans_staged: int
    entries_staged: int
    replays: ReplaySummary
    def __init__(self, version: _Optional[str] = ..., pid: _Optional[int] = ..., uptime_s: _Optional[float] = ..., driver: _Optional[_Union[DriverReport, _Mapping]] = ..., generation: _Optional[_Union[GenerationReport, _Mapping]] = ..., gpus: _Optional[_Iterable[_Union[GpuReport, _Mapping]]] = ..., containerds: _Optional[_Iterable[_Union[ContainerdReport, _Mapping]]] = ..., containers: _Optional[int] = ..., containers_with_gpus: _Optional[int] = ..., plans_staged: _Optional[int] = ..., entries_staged: _Optional[int] = ..., replays: _Optional[_Union[ReplaySummary, _Mapping]] = ...) -> None: ...

class DriverReport(_message.Message):
    __slots__ = ("state", "reason", "kernel_version", "user_version", "cuda_version")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KERNEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    USER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    kernel_version: str
    user_version: str
    cuda_version: str
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ..., kernel_version: _Optional[str] = ..., user_version: _Optional[str] = ..., cuda_version: _Optional[str] = ...) -> None: ...

class GenerationReport(_message.Message):
    __slots__ = ("id", "age_s", "why")
    ID_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    id: str
    age_s: float
    why: str
    def __init__(self, id: _Optional[str] = ..., age_s: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class MigReport(_message.Message):
    __slots__ = ("ordinal", "uuid", "gi", "ci", "name")
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    GI_FIELD_NUMBER: _ClassVar[int]
    CI_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ordinal: int
    uuid: str
    gi: int
    ci: int
    name: str
    def __init__(self, ordinal: _Optional[int] = ..., uuid: _Optional[str] = ..., gi: _Optional[int] = ..., ci: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class GpuReport(_message.Message):
    __slots__ = ("index", "minor", "uuid", "bus_id", "name", "health", "migs")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    BUS_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    MIGS_FIELD_NUMBER: _ClassVar[int]
    index: int
    minor: int
    uuid: str
    bus_id: str
    name: str
    health: str
    migs: _containers.RepeatedCompositeFieldContainer[MigReport]
    def __init__(self, index: _Optional[int] = ..., minor: _Optional[int] = ..., uuid: _Optional[str] = ..., bus_id: _Optional[str] = ..., name: _Optional[str] = ..., health: _Optional[str] = ..., migs: _Optional[_Iterable[_Union[MigReport, _Mapping]]] = ...) -> None: ...

class ContainerdReport(_message.Message):
    __slots__ = ("address", "connected", "version", "since_s", "events", "last_event_age_s", "last_error")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    address: str
    connected: bool
    version: str
    since_s: float
    events: int
    last_event_age_s: float
    last_error: str
    def __init__(self, address: _Optional[str] = ..., connected: _Optional[bool] = ..., version: _Optional[str] = ..., since_s: _Optional[float] = ..., events: _Optional[int] = ..., last_event_age_s: _Optional[float] = ..., last_error: _Optional[str] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("name", "ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    ms: float
    def __init__(self, name: _Optional[str] = ..., ms: _Optional[float] = ...) -> None: ...

class ReplayRecord(_message.Message):
    __slots__ = ("label", "ok", "path", "total_ms", "phases", "error", "at")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    label: str
    ok: bool
    path: str
    total_ms: float
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    error: str
    at: float
    def __init__(self, label: _Optional[str] = ..., ok: _Optional[bool] = ..., path: _Optional[str] = ..., total_ms: _Optional[float] = ..., phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., error: _Optional[str] = ..., at: _Optional[float] = ...) -> None: ...

class ReplaySummary(_message.Message):
    __slots__ = ("count", "staged", "asked", "standalone", "none", "failures", "last_failure", "median_ms", "p99_ms", "phases", "phases_p99", "slowest")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    STANDALONE_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_MS_FIELD_NUMBER: _ClassVar[int]
    P99_MS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    PHASES_P99_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_FIELD_NUMBER: _ClassVar[int]
    count: int
    staged: int
    asked: int
    standalone: int
    none: int
    failures: int
    last_failure: str
    median_ms: float
    p99_ms: float
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    phases_p99: _containers.RepeatedCompositeFieldContainer[Phase]
    slowest: str
    def __init__(self, count: _Optional[int] = ..., staged: _Optional[int] = ..., asked: _Optional[int] = ..., standalone: _Optional[int] = ..., none: _Optional[int] = ..., failures: _Optional[int] = ..., last_failure: _Optional[str] = ..., median_ms: _Optional[float] = ..., p99_ms: _Optional[float] = ..., phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., phases_p99: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., slowest: _Optional[str] = ...) -> None: ...

class ContainersReport(_message.Message):
    __slots__ = ("containers",)
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[ContainerReport]
    def __init__(self, containers: _Optional[_Iterable[_Union[ContainerReport, _Mapping]]] = ...) -> None: ...

class ContainerReport(_message.Message):
    __slots__ = ("address", "namespace", "id", "verdict", "why", "generation", "devices", "capabilities", "plan", "replay")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    address: str
    namespace: str
    id: str
    verdict: str
    why: str
    generation: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    plan: str
    replay: ReplayRecord
    def __init__(self, address: _Optional[str] = ..., namespace: _Optional[str] = ..., id: _Optional[str] = ..., verdict: _Optional[str] = ..., why: _Optional[str] = ..., generation: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., capabilities: _Optional[_Iterable[str]] = ..., plan: _Optional[str] = ..., replay: _Optional[_Union[ReplayRecord, _Mapping]] = ...) -> None: ...

class PlanReport(_message.Message):
    __slots__ = ("plan", "generation", "driver_version", "devices", "capabilities", "steps")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    plan: str
    generation: str
    driver_version: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    steps: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, plan: _Optional[str] = ..., generation: _Optional[str] = ..., driver_version: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., capabilities: _Optional[_Iterable[str]] = ..., steps: _Optional[_Iterable[str]] = ...) -> None: ...

class FileReport(_message.Message):
    __slots__ = ("name", "path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class LibraryReport(_message.Message):
    __slots__ = ("name", "soname", "machine", "path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SONAME_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    soname: str
    machine: str
    path: str
    def __init__(self, name: _Optional[str] = ..., soname: _Optional[str] = ..., machine: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("name", "path", "major", "minor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    major: int
    minor: int
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., major: _Optional[int] = ..., minor: _Optional[int] = ...) -> None: ...

class InventoryReport(_message.Message):
    __slots__ = ("generation", "driver", "gpus", "nodes", "libraries", "programs", "files", "ipc", "notes")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    IPC_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    generation: str
    driver: DriverReport
    gpus: _containers.RepeatedCompositeFieldContainer[GpuReport]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeReport]
    libraries: _containers.RepeatedCompositeFieldContainer[LibraryReport]
    programs: _containers.RepeatedCompositeFieldContainer[FileReport]
    files: _containers.RepeatedCompositeFieldContainer[FileReport]
    ipc: _containers.RepeatedCompositeFieldContainer[FileReport]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, generation: _Optional[str] = ..., driver: _Optional[_Union[DriverReport, _Mapping]] = ..., gpus: _Optional[_Iterable[_Union[GpuReport, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeReport, _Mapping]]] = ..., libraries: _Optional[_Iterable[_Union[LibraryReport, _Mapping]]] = ..., programs: _Optional[_Iterable[_Union[FileReport, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[FileReport, _Mapping]]] = ..., ipc: _Optional[_Iterable[_Union[FileReport, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...
