"""What containerd says, as frozen values; nothing here knows protobuf or gRPC.

`watch` emits the events in this order: `Connected`, `Synced`, then changes as they happen, with
one `TasksListed` between them. After `Disconnected` nothing is known until the next `Synced`.
Times ending in `_ns` are nanoseconds since the epoch, except `received_ns`, which is monotonic.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ContainerKey:
    """A container on this host. `address` is its containerd's socket, an absolute path."""

    address: str
    namespace: str
    id: str


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container as containerd keeps it; `created_ns` tells two lives of one id apart.

    `spec` is the OCI spec's JSON text, not parsed and not trusted; `labels` are sorted.
    """

    key: ContainerKey
    created_ns: int
    image: str
    runtime: str
    labels: tuple[tuple[str, str], ...]
    spec: bytes


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A container's process. `pid` is 0 and `status` is `unknown` while runc creates it.

    `status` is one of unknown, created, running, stopped, paused, pausing.
    """

    key: ContainerKey
    pid: int
    status: str


@dataclass(frozen=True, slots=True)
class Connected:
    """The event stream is proven live. `server_uuid` is "" where the server has none."""

    address: str
    version: str
    server_uuid: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """There is no stream, and `reason` says why.

    Emitted once per loss, and again only where another kind of trouble takes its place.
    """

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class Synced:
    """Every container of this containerd; one that is not among them does not exist.

    Comes after each `Connected`, and once more whenever events had to be dropped.
    """

    address: str
    containers: tuple[ContainerRecord, ...]


@dataclass(frozen=True, slots=True)
class TasksListed:
    """Every task of this containerd, up to date with the task events emitted before it.

    It follows `Synced` late, never holds it up: containerd takes 2 s to list the tasks of a
    namespace while a container's create hook runs there, and that hook may wait for `Synced`.
    """

    address: str
    tasks: tuple[TaskRecord, ...]


@dataclass(frozen=True, slots=True)
class ContainerCreated:
    """A new container. `received_ns` (monotonic) is when its announcement was read."""

    record: ContainerRecord
    received_ns: int
    timestamp_ns: int = 0


@dataclass(frozen=True, slots=True)
class ContainerUpdated:
    """A container's record changed; `record` is the new one."""

    record: ContainerRecord
    timestamp_ns: int = 0


@dataclass(frozen=True, slots=True)
class ContainerDeleted:
    """A container's record is gone."""

    key: ContainerKey
    timestamp_ns: int = 0


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A container's first process runs."""

    key: ContainerKey
    pid: int
    timestamp_ns: int = 0


@dataclass(frozen=True, slots=True)
class TaskExited:
    """A container's first process ended; `status` is its exit status."""

    key: ContainerKey
    pid: int
    status: int
    timestamp_ns: int = 0


Event = (
    Connected
    | Disconnected
    | Synced
    | TasksListed
    | ContainerCreated
    | ContainerUpdated
    | ContainerDeleted
    | TaskStarted
    | TaskExited
)
