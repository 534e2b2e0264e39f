"""Many slow look-ups at once, yet each container's events in order.

A signal that needs a record opens a lane for its container; later signals of the same container
queue up behind it, those of others pass. It decides nothing about what events mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

from agent.containerd.decode import RecordChanged, Signal
from agent.containerd.values import ContainerKey

Work = Callable[[Signal], Awaitable[None]]


class Lanes:
    """Runs `work` on signals, in order per container, at most `parallel` slow ones at a time.

    No more than `backlog` signals wait in lanes; then `push` waits.
    """

    def __init__(
        self, tasks: anyio.abc.TaskGroup, work: Work, *, parallel: int, backlog: int
    ) -> None:
        self._tasks = tasks
        self._work = work
        self._lanes: dict[ContainerKey, deque[Signal]] = {}
        self._parallel = anyio.Semaphore(parallel)
        self._room = anyio.Semaphore(backlog)
        self._empty = anyio.Event()

    async def push(self, signal: Signal) -> None:
        """Work on this signal, now or behind those of the same container."""
        if signal.key not in self._lanes and not isinstance(signal.what, RecordChanged):
            await self._work(signal)
            return
        await self._room.acquire()
        if (lane := self._lanes.get(signal.key)) is not None:
            lane.append(signal)
            return
        self._lanes[signal.key] = deque([signal])
        self._tasks.start_soon(self._run, signal.key)

    async def idle(self) -> None:
        """Return once no lane is open; look-ups have deadlines, so it does not take long."""
        while self._lanes:
            self._empty = anyio.Event()
            await self._empty.wait()

    async def _run(self, key: ContainerKey) -> None:
        lane = self._lanes[key]
        while lane:
            async with self._parallel:
                await self._work(lane.popleft())
            self._room.release()
        del self._lanes[key]
        if not self._lanes:
            self._empty.set()
