"""The methods of containerd's API that the agent calls: path, question, answer.

Only paths are containerd's; the messages are ours (protos/containerd). Containers and tasks are
only read: there is no method here that could change one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from agent._pb.containerd import containers_pb2 as containers
from agent._pb.containerd import events_pb2 as events
from agent._pb.containerd import introspection_pb2 as introspection
from agent._pb.containerd import namespaces_pb2 as namespaces
from agent._pb.containerd import tasks_pb2 as tasks
from agent._pb.containerd import version_pb2 as version

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """One method: its path on the wire and the messages that travel."""

    path: str
    question: type[Q]
    answer: type[A]

    @property
    def name(self) -> str:
        """`Containers.Get`, for messages."""
        service, _, method = self.path.rpartition("/")
        return f"{service.rpartition('.')[2]}.{method}"


_PREFIX = "/containerd.services"

VERSION = Method(f"{_PREFIX}.version.v1.Version/Version", Empty, version.VersionResponse)
SERVER = Method(
    f"{_PREFIX}.introspection.v1.Introspection/Server", Empty, introspection.ServerResponse
)
SUBSCRIBE = Method(
    f"{_PREFIX}.events.v1.Events/Subscribe", events.SubscribeRequest, events.Envelope
)
PUBLISH = Method(f"{_PREFIX}.events.v1.Events/Publish", events.PublishRequest, Empty)
NAMESPACES = Method(
    f"{_PREFIX}.namespaces.v1.Namespaces/List",
    namespaces.ListNamespacesRequest,
    namespaces.ListNamespacesResponse,
)
GET_CONTAINER = Method(
    f"{_PREFIX}.containers.v1.Containers/Get",
    containers.GetContainerRequest,
    containers.GetContainerResponse,
)
LIST_CONTAINERS = Method(
    f"{_PREFIX}.containers.v1.Containers/ListStream",
    containers.ListContainersRequest,
    containers.GetContainerResponse,
)
LIST_TASKS = Method(
    f"{_PREFIX}.tasks.v1.Tasks/List", tasks.ListTasksRequest, tasks.ListTasksResponse
)
