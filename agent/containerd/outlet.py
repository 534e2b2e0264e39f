"""The one place where events leave: one at a time, and never contradicting a list.

Lists and events come by different ways. What is in a list already is not announced again, and
what is older than a list does not undo it. It keeps ids and times of living containers, nothing
else.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

from agent.containerd.values import (
    ContainerCreated,
    ContainerDeleted,
    ContainerKey,
    ContainerRecord,
    Event,
    Synced,
    TaskExited,
    TaskRecord,
    TasksListed,
    TaskStarted,
)

Emit = Callable[[Event], Awaitable[None]]


class Outlet:
    """Calls `emit` for one containerd, never twice at the same time."""

    def __init__(self, address: str, emit: Emit) -> None:
        self._address = address
        self._emit = emit
        self._turn = anyio.Lock()
        self._known: dict[ContainerKey, int] = {}
        self._listed_ns = 0
        self._moved: dict[ContainerKey, TaskRecord | None] | None = None

    async def send(self, event: Event, received_ns: int = 0) -> None:
        """Emit an event, unless a list has told it already."""
        async with self._turn:
            if self._is_new(event, received_ns):
                self._note_task(event)
                await self._emit(event)

    async def send_containers(self, containers: tuple[ContainerRecord, ...]) -> None:
        """Emit `Synced`; what was read before now may be part of the list."""
        async with self._turn:
            self._known = {c.key: c.created_ns for c in containers}
            self._listed_ns = time.monotonic_ns()
            await self._emit(Synced(self._address, containers))

    def expect_tasks(self) -> None:
        """A list of tasks is being asked for: from now on events are newer than it."""
        self._moved = {}

    async def send_tasks(self, tasks: tuple[TaskRecord, ...]) -> None:
        """Emit `TasksListed`, corrected by the events since `expect_tasks`."""
        async with self._turn:
            merged = {t.key: t for t in tasks} | (self._moved or {})
            self._moved = None
            current = tuple(t for t in merged.values() if t is not None)
            await self._emit(TasksListed(self._address, current))

    def _is_new(self, event: Event, received_ns: int) -> bool:
        match event:
            case ContainerCreated(record=record):
                told = self._known.get(record.key) == record.created_ns
                self._known[record.key] = record.created_ns
                return not told
            case ContainerDeleted(key=key, timestamp_ns=at):
                # Only where event and list may have crossed: wall clocks can be set back.
                crossed = received_ns <= self._listed_ns
                if crossed and at < self._known.get(key, 0):
                    return False
                self._known.pop(key, None)
        return True

    def _note_task(self, event: Event) -> None:
        if self._moved is None:
            return
        match event:
            case TaskStarted(key=key, pid=pid):
                self._moved[key] = TaskRecord(key, pid, "running")
            case TaskExited(key=key) | ContainerDeleted(key=key):
                self._moved[key] = None
