"""The agent's own API on `<run_dir>/control.sock`: agentctl's questions, answered read-only.

It decides nothing: a `Source` answers, and this module turns values into messages and errors
into typed problems. No question names a host path, and nothing on the host changes by one.

Only root gets in. gRPC keeps the accepted socket to itself, so its peer's credentials cannot be
asked for; the socket is therefore 0600 in a directory that must be the agent's own and 0700,
and it appears under its name only after its mode is set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import anyio
import grpc
import grpc.aio
from google.protobuf.message import Message

from agent._pb.agent.v1 import agent_pb2 as pb
from agent.errors import AgentError, Refused, StageError, UsageError
from agent.inventory import Inventory
from agent.report import ContainerReport, PlanReport, StatusReport, inventory_report

SOCKET = "control.sock"
SERVICE = "agent.v1.Agent"
PROBLEM_KEY = "problem-bin"
ANSWER_LIMIT_S = 10.0
REQUEST_LIMIT = 64 * 1024
CONCURRENT_CALLS = 16

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", REQUEST_LIMIT),
)

M = TypeVar("M", bound=Message)

_log = logging.getLogger(__name__)


class Source(Protocol):
    """Who knows the answers. Raises AgentError for what it must refuse.

    Containers are named as `agent.report.find_container` understands it; `devices` and
    `capabilities` are the items of the two variables, not checked yet.
    """

    async def status(self) -> StatusReport:
        """The whole agent at this moment."""

    async def inventory(self) -> Inventory:
        """The current inventory."""

    async def containers(self) -> Sequence[ContainerReport]:
        """Every container known, those without a GPU too."""

    async def plan(self, devices: Sequence[str], capabilities: Sequence[str]) -> PlanReport:
        """The plan such a request would get; nothing is staged."""

    async def plan_of(self, container: str) -> PlanReport:
        """The plan of an existing container."""

    async def explain(self, container: str) -> ContainerReport:
        """Why a container got what it got, or nothing."""


@contextlib.asynccontextmanager
async def serving(run_dir: str, source: Source) -> AsyncIterator[str]:
    """Answer on `<run_dir>/control.sock` while inside; gives the socket's path.

    A socket that a dead agent left is replaced. Raises StageError when `run_dir` is not the
    agent's own or no socket can be made there.
    """
    _check_directory(run_dir)
    path = f"{run_dir}/{SOCKET}"
    draft = f"{path}.new"
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=CONCURRENT_CALLS)
    server.add_generic_rpc_handlers((_handlers(source),))
    try:
        server.add_insecure_port(target(draft))
        await server.start()
        identity = _publish(draft, path)
    except (RuntimeError, OSError) as e:
        await server.stop(None)
        raise StageError(path, f"no control socket: {e}") from e
    try:
        yield path
    finally:
        _withdraw(path, identity)
        await server.stop(1.0)


def target(path: str) -> str:
    """gRPC's name of the unix socket at the absolute `path`."""
    return f"unix:{path.replace('%', '%25')}"


def _check_directory(run_dir: str) -> None:
    try:
        found = os.lstat(run_dir)
    except OSError as e:
        raise StageError(run_dir, e.strerror or "unreadable") from e
    if not stat.S_ISDIR(found.st_mode):
        raise StageError(run_dir, "not a directory")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StageError(run_dir, "others than the agent's user can reach it")


def _publish(draft: str, path: str) -> tuple[int, int]:
    os.chmod(draft, 0o600)
    os.rename(draft, path)
    made = os.lstat(path)
    return (made.st_dev, made.st_ino)


def _withdraw(path: str, identity: tuple[int, int]) -> None:
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == identity:  # a new agent may have taken over
            os.unlink(path)


def _handlers(source: Source) -> grpc.GenericRpcHandler[Any, Any]:
    async def status(_: pb.StatusRequest) -> Message:
        return filled(pb.StatusReport(), await source.status())

    async def inventory(_: pb.InventoryRequest) -> Message:
        return filled(pb.InventoryReport(), inventory_report(await source.inventory()))

    async def containers(_: pb.ContainersRequest) -> Message:
        answer = pb.ContainersReport()
        for container in await source.containers():
            filled(answer.containers.add(), container)
        return answer

    async def plan(asked: pb.PlanRequest) -> Message:
        if asked.HasField("container"):
            if asked.devices or asked.capabilities:
                raise UsageError("plan: give a container, or devices and capabilities, not both")
            return filled(pb.PlanReport(), await source.plan_of(asked.container))
        return filled(pb.PlanReport(), await source.plan(asked.devices, asked.capabilities))

    async def explain(asked: pb.ExplainRequest) -> Message:
        return filled(pb.ContainerReport(), await source.explain(asked.container))

    methods = {
        "Status": _method(pb.StatusRequest, status),
        "Inventory": _method(pb.InventoryRequest, inventory),
        "Containers": _method(pb.ContainersRequest, containers),
        "Plan": _method(pb.PlanRequest, plan),
        "Explain": _method(pb.ExplainRequest, explain),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _method(
    request: type[Any], answer: Callable[[Any], Awaitable[Message]]
) -> grpc.RpcMethodHandler[Any, Message]:
    async def handle(message: Any, context: grpc.aio.ServicerContext[Any, Message]) -> Message:
        try:
            with anyio.fail_after(ANSWER_LIMIT_S):
                return await answer(message)
        except AgentError as e:
            await _abort(context, e)
        except Exception as e:  # the edge: one bad answer must not end the agent
            _log.exception("control: %s failed", request.__name__)
            await _abort(context, AgentError(f"internal error: {type(e).__name__}"))

    return grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


async def _abort(context: grpc.aio.ServicerContext[Any, Message], error: AgentError) -> NoReturn:
    code = grpc.StatusCode.INTERNAL
    if isinstance(error, UsageError):
        code = grpc.StatusCode.INVALID_ARGUMENT
    elif isinstance(error, Refused):
        code = grpc.StatusCode.FAILED_PRECONDITION
    problem = pb.Problem(message=str(error), hint=error.hint, exit_code=error.exit_code)
    metadata = ((PROBLEM_KEY, problem.SerializeToString()),)
    await context.abort(code, str(error), metadata)


def filled(message: M, value: object) -> M:
    """`message` with the fields of the frozen dataclass `value`; None stays unset."""
    for field in dataclasses.fields(value):  # type: ignore[arg-type]  # any dataclass
        item = getattr(value, field.name)
        if isinstance(item, tuple):
            _fill_repeated(getattr(message, field.name), item)
        elif dataclasses.is_dataclass(item):
            part = getattr(message, field.name)
            part.SetInParent()
            filled(part, item)
        elif item is not None:
            setattr(message, field.name, _scalar(item))
    return message


def _fill_repeated(target: Any, items: Iterable[object]) -> None:
    for item in items:
        if dataclasses.is_dataclass(item):
            filled(target.add(), item)
        elif isinstance(item, tuple):  # a pair, as a message of two fields
            part = target.add()
            for field, value in zip(part.DESCRIPTOR.fields, item, strict=True):
                setattr(part, field.name, _scalar(value))
        else:
            target.append(_scalar(item))


def _scalar(value: object) -> object:
    # A path of the host may hold bytes that are not UTF-8; protobuf would refuse the answer.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
