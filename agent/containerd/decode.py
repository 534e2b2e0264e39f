"""containerd's messages to our values: the line that protobuf does not cross.

Pure. It reads fields and refuses what cannot be decoded; it never asks containerd anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from agent._pb.containerd import containers_pb2, events_pb2, tasks_pb2
from agent.containerd.status import Trouble, failure
from agent.containerd.values import (
    ContainerDeleted,
    ContainerKey,
    ContainerRecord,
    TaskExited,
    TaskRecord,
    TaskStarted,
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """One event as it came; `received_ns` is monotonic, `payload` not decoded yet."""

    namespace: str
    topic: str
    payload: bytes
    timestamp_ns: int
    received_ns: int


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """A container was created or updated; its record has to be fetched."""

    key: ContainerKey
    created: bool
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class Signal:
    """What an envelope announces. `received_ns` is monotonic."""

    what: RecordChanged | ContainerDeleted | TaskStarted | TaskExited
    received_ns: int

    @property
    def key(self) -> ContainerKey:
        """The container it is about."""
        return self.what.key


TOPICS = (
    "/containers/create",
    "/containers/update",
    "/containers/delete",
    "/tasks/start",
    "/tasks/exit",
)
"""The topics that `to_signal` understands."""


def to_signal(address: str, envelope: Envelope) -> Signal | None:
    """The announcement, or None where it concerns no container (an exec that ended).

    Raises ContainerdError on a payload that is not the topic's.
    """
    try:
        what = _announced(address, envelope)
    except DecodeError as e:
        why = f"undecodable event on {envelope.topic}"
        raise failure(address, Trouble.NOT_CONTAINERD, why) from e
    return None if what is None else Signal(what, envelope.received_ns)


def _announced(
    address: str, envelope: Envelope
) -> RecordChanged | ContainerDeleted | TaskStarted | TaskExited | None:
    at = envelope.timestamp_ns
    match envelope.topic:
        case "/containers/create" | "/containers/update" | "/containers/delete":
            change = events_pb2.ContainerChange.FromString(envelope.payload)
            key = ContainerKey(address, envelope.namespace, change.id)
            if envelope.topic == "/containers/delete":
                return ContainerDeleted(key, at)
            return RecordChanged(key, envelope.topic == "/containers/create", at)
        case "/tasks/start":
            start = events_pb2.TaskStart.FromString(envelope.payload)
            key = ContainerKey(address, envelope.namespace, start.container_id)
            return TaskStarted(key, start.pid, at)
        case "/tasks/exit":
            end = events_pb2.TaskExit.FromString(envelope.payload)
            key = ContainerKey(address, envelope.namespace, end.container_id)
            # Another id is that of an exec; the container lives on.
            return TaskExited(key, end.pid, end.exit_status, at) if end.id == key.id else None
    return None


def to_record(address: str, namespace: str, container: containers_pb2.Container) -> ContainerRecord:
    """A container's record; its spec stays JSON text."""
    return ContainerRecord(
        key=ContainerKey(address, namespace, container.id),
        created_ns=to_ns(container.created_at),
        image=container.image,
        runtime=container.runtime.name,
        labels=tuple(sorted(container.labels.items())),
        spec=container.spec.value,
    )


def to_task(address: str, namespace: str, process: tasks_pb2.Process) -> TaskRecord:
    """A listed task; containerd leaves `container_id` empty there."""
    key = ContainerKey(address, namespace, process.container_id or process.id)
    return TaskRecord(key, process.pid, _STATUS.get(process.status, "unknown"))


_STATUS = {
    number: name.removeprefix("TASK_STATUS_").lower()
    for name, number in tasks_pb2.TaskStatus.items()
}


def to_envelope(envelope: events_pb2.Envelope, received_ns: int) -> Envelope:
    """An event of the stream, without its protobuf shell."""
    at = to_ns(envelope.timestamp)
    return Envelope(envelope.namespace, envelope.topic, envelope.event.value, at, received_ns)


def to_ns(stamp: Timestamp) -> int:
    """Nanoseconds since the epoch."""
    return stamp.seconds * 1_000_000_000 + stamp.nanos
