"""Follow one containerd for ever: its containers as they are, then every change in order.

Each connection goes the same way: subscribe, prove the subscription with an own event, list all
containers, then forward. containerd replays nothing, so whatever goes wrong, from a lost socket
to a full queue, is answered by listing again. It decides nothing about containers.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial

import anyio

from agent.containerd.client import Containerd
from agent.containerd.decode import TOPICS, Envelope, RecordChanged, Signal, to_signal
from agent.containerd.intake import Intake
from agent.containerd.lanes import Lanes
from agent.containerd.outlet import Emit, Outlet
from agent.containerd.sentinel import TOPIC as PING_TOPIC
from agent.containerd.sentinel import Sentinel
from agent.containerd.status import Trouble, socket_problem
from agent.containerd.values import (
    Connected,
    ContainerCreated,
    ContainerRecord,
    ContainerUpdated,
    Disconnected,
    TaskRecord,
)
from agent.errors import ContainerdError

log = logging.getLogger(__name__)

# containerd takes `/` for a quote character, hence the quotes.
FILTERS = tuple(f'topic=="{topic}"' for topic in (*TOPICS, PING_TOPIC))


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait and how much to hold; times in seconds."""

    call_s: float = 2.0
    prove_s: float = 5.0
    tasks_s: float = 30.0
    heartbeat_s: float = 30.0
    retry_min_s: float = 0.05
    retry_max_s: float = 2.0
    queue: int = 10_000
    lookups: int = 16


async def watch(address: str, emit: Emit, *, pace: Pace | None = None) -> None:
    """Emit what happens in the containerd at `address`, an absolute path, until cancelled.

    `emit` is called by one task at a time and should return soon. Failures are emitted as
    `Disconnected` and retried; only what `emit` raises comes out of here.
    """
    pace = pace or Pace()
    down = ""
    retry_s = pace.retry_min_s
    while True:
        session = Session(address, emit, pace)
        kind, reason = await session.run()
        if session.steady_for_s > pace.retry_max_s:
            retry_s = pace.retry_min_s
        if session.connected or down != kind:
            log.warning("containerd: %s: %s", address, reason)
            await emit(Disconnected(address, reason))
        down = kind
        await anyio.sleep(retry_s)
        retry_s = min(2 * retry_s, pace.retry_max_s)


class Session:
    """One connection, from the first question to its loss."""

    def __init__(self, address: str, emit: Emit, pace: Pace) -> None:
        self._address = address
        self._pace = pace
        self._intake = Intake(pace.queue)
        self._outlet = Outlet(address, emit)
        self._tasks_wanted = anyio.Event()
        self._connected_at: float | None = None

    @property
    def connected(self) -> bool:
        """Whether `Connected` was emitted."""
        return self._connected_at is not None

    @property
    def steady_for_s(self) -> float:
        """How long ago the subscription was proven; 0 if it never was."""
        return 0.0 if self._connected_at is None else time.monotonic() - self._connected_at

    async def run(self) -> tuple[str, str]:
        """Work until the connection is lost; return the kind of trouble and the reason."""
        # Not the error itself: its traceback would keep the closed connection alive.
        loss = ("", "")
        try:
            if (problem := socket_problem(self._address)) is not None:
                raise problem
            async with Containerd(self._address, timeout_s=self._pace.call_s) as client:
                await self._serve(client)
        except* ContainerdError as group:
            loss = _first(group)
        return loss

    async def _serve(self, client: Containerd) -> None:
        version, uuid = await client.version(), await client.server_uuid()
        sentinel = Sentinel(client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.subscribe, FILTERS, partial(self._take_in, sentinel))
            await sentinel.prove(self._pace.prove_s)
            await self._outlet.send(Connected(self._address, version, uuid))
            self._connected_at = time.monotonic()
            tasks.start_soon(self._beat, sentinel)
            tasks.start_soon(self._list_tasks, client)
            pushed = partial(self._forward, client)
            pace = self._pace
            lanes = Lanes(tasks, pushed, parallel=pace.lookups, backlog=pace.queue)
            while True:
                await self._follow(client, lanes)

    def _take_in(self, sentinel: Sentinel, envelope: Envelope) -> None:
        if sentinel.heard(envelope):
            return
        if (signal := to_signal(self._address, envelope)) is not None:
            self._intake.put(signal)

    async def _follow(self, client: Containerd, lanes: Lanes) -> None:
        """List everything, then forward signals until some had to be dropped."""
        # A look-up from before the list could bring back a container that the list has not.
        await lanes.idle()
        self._intake.restart()
        await self._outlet.send_containers(await _all_containers(client))
        self._tasks_wanted.set()
        while (signal := await self._intake.take()) is not None:
            await lanes.push(signal)
        log.warning("containerd: %s: listing again: %s", self._address, self._intake.why)

    async def _forward(self, client: Containerd, signal: Signal) -> None:
        what = signal.what
        if not isinstance(what, RecordChanged):
            await self._outlet.send(what, signal.received_ns)
            return
        try:
            record = await client.get(what.key)
        except ContainerdError as e:
            self._intake.drop(e.reason)
            return
        if record is None:
            return  # deleted meanwhile, and that event follows
        if what.created:
            event = ContainerCreated(record, signal.received_ns, what.timestamp_ns)
            await self._outlet.send(event, signal.received_ns)
        else:
            await self._outlet.send(ContainerUpdated(record, what.timestamp_ns))

    async def _list_tasks(self, client: Containerd) -> None:
        """Emit the tasks after each list of containers, apart from all that hooks wait for."""
        while True:
            await self._tasks_wanted.wait()
            self._tasks_wanted = anyio.Event()
            self._outlet.expect_tasks()
            try:
                tasks = await _all_tasks(client, self._pace.tasks_s)
            except ContainerdError as e:
                if e.kind == Trouble.ABSENT:
                    raise
                # One slow shim can hold up the answer; that is no reason to give up the stream.
                log.warning("containerd: %s: tasks not listed: %s", self._address, e.reason)
                self._tasks_wanted.set()
                await anyio.sleep(self._pace.retry_max_s)
                continue
            await self._outlet.send_tasks(tasks)

    async def _beat(self, sentinel: Sentinel) -> None:
        while True:
            await anyio.sleep(self._pace.heartbeat_s)
            await sentinel.prove(self._pace.prove_s)


async def _all_containers(client: Containerd) -> tuple[ContainerRecord, ...]:
    found: list[ContainerRecord] = []
    for namespace in await client.namespaces():
        found.extend(await client.containers(namespace))
    return tuple(found)


async def _all_tasks(client: Containerd, timeout_s: float) -> tuple[TaskRecord, ...]:
    found: list[TaskRecord] = []
    for namespace in await client.namespaces():
        found.extend(await client.tasks(namespace, timeout_s))
    return tuple(found)


def _first(error: BaseException) -> tuple[str, str]:
    """Kind and reason of the first error in a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ContainerdError)  # nothing else passes `except*`
    return error.kind, error.reason
