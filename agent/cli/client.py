"""agentctl's side of the control API: one question, one answer, or an error of ours.

It trusts only a socket that root (or the caller itself) owns, waits a bounded time, and tells
an agent that is not there from one that refuses. It starts nothing.
"""

from __future__ import annotations

import os
import stat
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from agent._pb.agent.v1 import agent_pb2 as pb
from agent.control import PROBLEM_KEY, SERVICE, SOCKET, target
from agent.errors import AgentError, Unreachable, UsageError

ANSWER_LIMIT_S = 10.0
SOCKET_PATH_LIMIT = 107

Answer = TypeVar("Answer", bound=Message)

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)


class RemoteError(AgentError):
    """An error that the agent raised, with its own message, hint and exit code."""

    def __init__(self, problem: pb.Problem) -> None:
        super().__init__(problem.message, problem.hint)
        # 0 would call a failure a success, 4 belongs to an agent that does not answer at all.
        self.exit_code = problem.exit_code if problem.exit_code in (1, 2, 3) else 1


class Client:
    """The agent whose run directory is `run_dir`."""

    def __init__(self, run_dir: str, limit_s: float = ANSWER_LIMIT_S) -> None:
        self.path = os.path.join(os.path.abspath(run_dir), SOCKET)
        self.limit_s = limit_s

    def status(self) -> pb.StatusReport:
        """Raises Unreachable and RemoteError, as every call."""
        return self._ask("Status", pb.StatusRequest(), pb.StatusReport)

    def inventory(self) -> pb.InventoryReport:
        """The current inventory."""
        return self._ask("Inventory", pb.InventoryRequest(), pb.InventoryReport)

    def containers(self) -> pb.ContainersReport:
        """All containers the agent knows."""
        return self._ask("Containers", pb.ContainersRequest(), pb.ContainersReport)

    def plan(self, request: pb.PlanRequest) -> pb.PlanReport:
        """The plan of a container or of devices and capabilities."""
        return self._ask("Plan", request, pb.PlanReport)

    def explain(self, container: str) -> pb.ContainerReport:
        """Why a container got what it got."""
        return self._ask("Explain", pb.ExplainRequest(container=container), pb.ContainerReport)

    def _ask(self, method: str, question: Message, answer: type[Answer]) -> Answer:
        check_socket(self.path)
        with grpc.insecure_channel(target(self.path), options=_OPTIONS) as channel:
            call = channel.unary_unary(
                f"/{SERVICE}/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )
            try:
                reply: Answer = call(question, timeout=self.limit_s)
            except grpc.RpcError as e:
                raise self._translated(e) from e
        return reply

    def _translated(self, error: grpc.RpcError) -> AgentError:
        call: Any = error  # what is raised is a grpc.Call too, which the stubs do not say
        for key, value in call.trailing_metadata() or ():
            if key == PROBLEM_KEY and isinstance(value, bytes):
                try:
                    return RemoteError(pb.Problem.FromString(value))
                except DecodeError:
                    break
        reasons = {
            grpc.StatusCode.UNAVAILABLE: "nothing answers there",
            grpc.StatusCode.DEADLINE_EXCEEDED: f"no answer within {self.limit_s:g} s",
            grpc.StatusCode.UNIMPLEMENTED: "an agent of another version, or another program",
            grpc.StatusCode.RESOURCE_EXHAUSTED: "too many calls at once",
        }
        code = call.code()
        return Unreachable(self.path, reasons.get(code, f"{code.name}: {call.details()}"))


def check_socket(path: str) -> None:
    """Raises Unreachable where `path` is no socket, or not one that root or the caller made."""
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        raise UsageError(f"run directory: {path}: too long for a socket's path")
    try:
        found = os.lstat(path)
    except OSError as e:
        raise Unreachable(path, (e.strerror or "cannot be read").lower()) from e
    if not stat.S_ISSOCK(found.st_mode):
        raise Unreachable(path, "not a socket")
    if found.st_uid not in (0, os.geteuid()):
        raise Unreachable(path, f"it belongs to user {found.st_uid}, not to root")
