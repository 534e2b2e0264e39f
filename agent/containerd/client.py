"""The gRPC client of one containerd: questions with deadlines, answers as values.

It asks and never changes anything in containerd; the one thing it sends is its own event. Every
failure is a `ContainerdError` whose `kind` says what it means. It never retries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NoReturn, Self, TypeVar
from urllib.parse import quote

import anyio
import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from agent._pb.containerd import containers_pb2, events_pb2, namespaces_pb2, tasks_pb2
from agent.containerd import methods
from agent.containerd.decode import Envelope, to_envelope, to_record, to_task
from agent.containerd.status import Trouble, translate
from agent.containerd.values import ContainerKey, ContainerRecord, TaskRecord
from agent.errors import ContainerdError

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

CLOSE_S = 1.0
ANSWER_LIMIT = 64 << 20
"""Bytes of one message; containerd itself sends no more than 16 MiB."""

CHANNEL_OPTIONS = (
    # The defaults would leave a containerd that is back unnoticed for seconds.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # In fact the time that the other side has for the HTTP/2 handshake; our own deadlines are
    # shorter, and then a silent socket is told from one that is not gRPC.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # Channels of one target otherwise share a connection and its back-off.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", ANSWER_LIMIT),
    # containerd puts whole error texts into trailers; the default of 8 KiB would hide them.
    ("grpc.max_metadata_size", 64 << 10),
    ("grpc.enable_retries", 0),
)


class Containerd:
    """One connection to the containerd whose socket is `address`, an absolute path.

    An async context manager, for use in one task group of one event loop. `timeout_s` bounds
    every question that names no deadline of its own.
    """

    def __init__(self, address: str, *, timeout_s: float = 2.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._greeted = False

    async def __aenter__(self) -> Self:
        target = f"unix://{quote(self.address)}"
        self._channel = grpc.aio.insecure_channel(target, CHANNEL_OPTIONS)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._channel.close(None)

    async def version(self) -> str:
        """The server's own version string."""
        return (await self._ask(methods.VERSION, Empty())).version

    async def server_uuid(self) -> str:
        """The id of the server's root directory; it outlives restarts."""
        return (await self._ask(methods.SERVER, Empty())).uuid

    async def namespaces(self) -> tuple[str, ...]:
        """Names of all namespaces."""
        answer = await self._ask(methods.NAMESPACES, namespaces_pb2.ListNamespacesRequest())
        return tuple(n.name for n in answer.namespaces)

    async def get(self, key: ContainerKey) -> ContainerRecord | None:
        """The record of one container, or None if there is none."""
        question = containers_pb2.GetContainerRequest(id=key.id)
        try:
            answer = await self._ask(methods.GET_CONTAINER, question, key.namespace)
        except ContainerdError as e:
            if e.kind == Trouble.MISSING:
                return None
            raise
        return to_record(self.address, key.namespace, answer.container)

    async def containers(self, namespace: str) -> tuple[ContainerRecord, ...]:
        """Every container of a namespace, streamed: the list call cannot exceed 16 MiB."""
        found: list[ContainerRecord] = []

        def keep(answer: containers_pb2.GetContainerResponse) -> None:
            found.append(to_record(self.address, namespace, answer.container))

        question = containers_pb2.ListContainersRequest()
        deadline_s = 5 * self._timeout_s
        await self._read(methods.LIST_CONTAINERS, question, keep, namespace, deadline_s)
        return tuple(found)

    async def tasks(self, namespace: str, timeout_s: float = 30.0) -> tuple[TaskRecord, ...]:
        """Every task of a namespace. Takes 2 s and more while a create hook runs in there."""
        question = tasks_pb2.ListTasksRequest()
        answer = await self._ask(methods.LIST_TASKS, question, namespace, timeout_s)
        return tuple(to_task(self.address, namespace, p) for p in answer.tasks)

    async def publish(self, namespace: str, topic: str, kind: str, payload: bytes) -> None:
        """Send an event of our own; `kind` is the payload's type url, any word."""
        event = Any(type_url=kind, value=payload)
        await self._ask(
            methods.PUBLISH, events_pb2.PublishRequest(topic=topic, event=event), namespace
        )

    async def subscribe(
        self, filters: Sequence[str], deliver: Callable[[Envelope], None]
    ) -> NoReturn:
        """Deliver events of all namespaces as they come, until the stream ends in an error.

        There is no sign that the subscription has begun. `deliver` must return at once:
        containerd keeps what is not read in its own memory.
        """

        def forward(message: events_pb2.Envelope) -> None:
            deliver(to_envelope(message, time.monotonic_ns()))

        question = events_pb2.SubscribeRequest(filters=filters)
        await self._read(methods.SUBSCRIBE, question, forward)
        raise self._meaning(methods.SUBSCRIBE.name, grpc.StatusCode.OK, "the stream ended")

    async def _ask(
        self,
        method: methods.Method[Q, A],
        question: Q,
        namespace: str = "",
        timeout_s: float | None = None,
    ) -> A:
        call = self._channel.unary_unary(
            method.path,
            request_serializer=method.question.SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        timeout_s = timeout_s or self._timeout_s
        try:
            answer: A = await call(question, timeout=timeout_s, metadata=_header(namespace))
        except grpc.aio.AioRpcError as e:
            raise self._meaning(method.name, e.code(), e.details()) from e
        self._greeted = True
        return answer

    async def _read(
        self,
        method: methods.Method[Q, A],
        question: Q,
        deliver: Callable[[A], None],
        namespace: str = "",
        timeout_s: float | None = None,
    ) -> None:
        stream = self._channel.unary_stream(
            method.path,
            request_serializer=method.question.SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        call = stream(question, timeout=timeout_s, metadata=_header(namespace))
        try:
            async for answer in call:
                deliver(answer)
        except grpc.aio.AioRpcError as e:
            raise self._meaning(method.name, e.code(), e.details()) from e
        finally:
            call.cancel()
        self._greeted = True

    def _meaning(self, method: str, code: grpc.StatusCode, details: str | None) -> ContainerdError:
        return translate(self.address, method, code, details or "", self._greeted)


def _header(namespace: str) -> grpc.aio.Metadata | None:
    return grpc.aio.Metadata(("containerd-namespace", namespace)) if namespace else None
