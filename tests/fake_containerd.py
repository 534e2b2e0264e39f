"""A scriptable containerd on a real unix socket: same methods, same messages, no containers.

It keeps records in memory and publishes as containerd does: after the change is stored. Tests
reach in through plain attributes: gates that hold an answer back, a wire that drops, repeats or
reorders events, pings that get lost. It imitates no policy of containerd beyond that.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from typing import Any as Whatever

import anyio
import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from agent._pb.containerd import containers_pb2, events_pb2, namespaces_pb2, tasks_pb2
from agent._pb.containerd import introspection_pb2 as introspection
from agent._pb.containerd import version_pb2 as version
from agent.containerd import methods

if TYPE_CHECKING:  # generic in the stubs, not subscriptable at run time
    Context = grpc.aio.ServicerContext[Whatever, Whatever]
    Handler = grpc.RpcMethodHandler[Whatever, Whatever]
AnyMethod = methods.Method[Whatever, Whatever]
Wire = Callable[[events_pb2.Envelope], list[events_pb2.Envelope]]


class Queue:
    """Envelopes for one subscriber."""

    def __init__(self) -> None:
        self.send, self.receive = anyio.create_memory_object_stream[events_pb2.Envelope](100_000)


@dataclass
class FakeContainerd:
    """An async context manager that serves on `path`."""

    path: Path
    records: dict[tuple[str, str], containers_pb2.Container] = field(default_factory=dict)
    tasks: dict[tuple[str, str], tasks_pb2.Process] = field(default_factory=dict)
    wire: Wire = lambda envelope: [envelope]
    lose_pings: int = 0
    """So many pings get lost, as if the subscription had not begun."""

    get_gates: dict[str, anyio.Event] = field(default_factory=dict)
    """Containers.Get of these ids waits for the event."""

    list_gate: anyio.Event | None = None
    """ListStream takes its picture, then waits for the event before it answers."""

    tasks_gate: anyio.Event | None = None
    """Tasks.List takes its picture, then waits for the event."""

    fail_with: dict[str, grpc.StatusCode] = field(default_factory=dict)
    """Method name -> the status that it answers."""

    asked: list[str] = field(default_factory=list)
    """Names of the methods called, in order."""

    listing: anyio.Event = field(default_factory=anyio.Event)
    """Set when a picture for ListStream was taken."""

    subscribed: anyio.Event = field(default_factory=anyio.Event)
    _queues: list[Queue] = field(default_factory=list)
    _clock: itertools.count[int] = field(default_factory=lambda: itertools.count(1_000))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; records and tasks survive a stop, subscriptions do not."""
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_Router(self),))
        self._server.add_insecure_port(f"unix://{self.path}")
        await self._server.start()

    async def stop(self) -> None:
        """End at once, as SIGKILL would."""
        await self._server.stop(None)
        self.path.unlink(missing_ok=True)

    def add(self, id: str, namespace: str = "k8s.io", spec: bytes = b"{}") -> None:
        """Store a new container and announce it."""
        record = containers_pb2.Container(id=id, image="img", spec=Any(value=spec))
        record.runtime.name = "io.containerd.runc.v2"
        record.labels["kind"] = "container"
        record.created_at.CopyFrom(self._now())
        self.records[namespace, id] = record
        self.publish(namespace, "/containers/create", events_pb2.ContainerChange(id=id))

    def remove(self, id: str, namespace: str = "k8s.io") -> None:
        """Drop a container and announce it."""
        del self.records[namespace, id]
        self.publish(namespace, "/containers/delete", events_pb2.ContainerChange(id=id))

    def run(self, id: str, pid: int, namespace: str = "k8s.io") -> None:
        """Give a container a running task and announce it."""
        status = tasks_pb2.TASK_STATUS_RUNNING
        self.tasks[namespace, id] = tasks_pb2.Process(id=id, pid=pid, status=status)
        start = events_pb2.TaskStart(container_id=id, pid=pid)
        self.publish(namespace, "/tasks/start", start)

    def end(self, id: str, status: int = 0, namespace: str = "k8s.io", exec_id: str = "") -> None:
        """Announce that a container's task, or one of its execs, ended."""
        pid = self.tasks[namespace, id].pid
        if not exec_id:
            del self.tasks[namespace, id]
        end = events_pb2.TaskExit(container_id=id, id=exec_id or id, pid=pid, exit_status=status)
        self.publish(namespace, "/tasks/exit", end)

    def publish(self, namespace: str, topic: str, payload: Message | bytes) -> None:
        """Send an event to all subscribers, through `wire`."""
        value = payload if isinstance(payload, bytes) else payload.SerializeToString()
        envelope = events_pb2.Envelope(
            timestamp=self._now(), namespace=namespace, topic=topic, event=Any(value=value)
        )
        for sent in self.wire(envelope):
            for queue in self._queues:
                queue.send.send_nowait(sent)

    def _now(self) -> Timestamp:
        return Timestamp(seconds=next(self._clock))

    async def answer_version(self, question: Message, context: Context) -> Message:
        return version.VersionResponse(version="1.6.20-fake")

    async def answer_server(self, question: Message, context: Context) -> Message:
        return introspection.ServerResponse(uuid="u-1")

    async def answer_namespaces(self, question: Message, context: Context) -> Message:
        names = sorted({ns for ns, _ in self.records} | {ns for ns, _ in self.tasks})
        listed = [namespaces_pb2.Namespace(name=n) for n in names]
        return namespaces_pb2.ListNamespacesResponse(namespaces=listed)

    async def answer_get(
        self, question: containers_pb2.GetContainerRequest, context: Context
    ) -> Message:
        if (gate := self.get_gates.get(question.id)) is not None:
            await gate.wait()
        record = self.records.get((await self._namespace(context), question.id))
        if record is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"container {question.id!r}")
        return containers_pb2.GetContainerResponse(container=record)

    async def answer_tasks(self, question: Message, context: Context) -> Message:
        wanted = await self._namespace(context)
        found = [task for (ns, _), task in self.tasks.items() if ns == wanted]
        if self.tasks_gate is not None:
            await self.tasks_gate.wait()
        return tasks_pb2.ListTasksResponse(tasks=found)

    async def answer_publish(
        self, question: events_pb2.PublishRequest, context: Context
    ) -> Message:
        namespace = await self._namespace(context)
        if self.lose_pings:
            self.lose_pings -= 1
        else:
            self.publish(namespace, question.topic, question.event.value)
        return Empty()

    async def stream_containers(
        self, question: Message, context: Context
    ) -> AsyncIterator[Message]:
        wanted = await self._namespace(context)
        found = [record for (ns, _), record in self.records.items() if ns == wanted]
        self.listing.set()
        if self.list_gate is not None:
            await self.list_gate.wait()
        for record in found:
            yield containers_pb2.GetContainerResponse(container=record)

    async def stream_events(
        self, question: events_pb2.SubscribeRequest, context: Context
    ) -> AsyncIterator[Message]:
        queue = Queue()
        self._queues.append(queue)
        self.subscribed.set()
        try:
            async for envelope in queue.receive:
                if any(f'"{envelope.topic}"' in f for f in question.filters):
                    yield envelope
        finally:
            self._queues.remove(queue)
            queue.send.close()
            queue.receive.close()

    async def _namespace(self, context: Context) -> str:
        for key, value in context.invocation_metadata() or ():
            if key == "containerd-namespace" and value:
                return str(value)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "namespace is required")


class _Router(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # as above
    """Finds the handler of a method path."""

    def __init__(self, fake: FakeContainerd) -> None:
        self._fake = fake
        self._answers: dict[AnyMethod, Callable[..., Whatever]] = {
            methods.VERSION: fake.answer_version,
            methods.SERVER: fake.answer_server,
            methods.NAMESPACES: fake.answer_namespaces,
            methods.GET_CONTAINER: fake.answer_get,
            methods.LIST_TASKS: fake.answer_tasks,
            methods.PUBLISH: fake.answer_publish,
        }
        self._streams: dict[AnyMethod, Callable[..., Whatever]] = {
            methods.LIST_CONTAINERS: fake.stream_containers,
            methods.SUBSCRIBE: fake.stream_events,
        }

    def service(self, details: grpc.HandlerCallDetails) -> Handler | None:
        """gRPC's question: who answers this path? None makes it UNIMPLEMENTED."""
        for method in (*self._answers, *self._streams):
            if method.path == details.method:
                return self._handler(method)
        return None

    def _handler(self, method: AnyMethod) -> Handler:
        self._fake.asked.append(method.name)
        codec = {
            "request_deserializer": method.question.FromString,
            "response_serializer": method.answer.SerializeToString,
        }
        if (code := self._fake.fail_with.get(method.name)) is not None:
            return grpc.unary_unary_rpc_method_handler(_failing(code), **codec)
        if method in self._answers:
            return grpc.unary_unary_rpc_method_handler(self._answers[method], **codec)
        return grpc.unary_stream_rpc_method_handler(self._streams[method], **codec)


def _failing(code: grpc.StatusCode) -> Callable[..., Whatever]:
    async def answer(question: Message, context: Context) -> Message:
        await context.abort(code, "as the test asked")

    return answer
