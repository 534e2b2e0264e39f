"""The queue between the event stream and those who work on events.

Reading must never wait, and memory must not grow without end. So when more than `limit` signals
wait, all of them are dropped and replaced by one word: the consumer has to list again. Losing
events silently is what it refuses to do.
"""

from __future__ import annotations

from collections import deque

import anyio

from agent.containerd.decode import Signal


class Intake:
    """Signals in order of arrival, or the knowledge that some were dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Signal] = deque()
        self._dropped = ""
        self._news = anyio.Event()

    def put(self, signal: Signal) -> None:
        """Add one signal; never waits."""
        if self._dropped:
            return
        if len(self._waiting) >= self._limit:
            self.drop(f"{self._limit} events waited")
            return
        self._waiting.append(signal)
        self._news.set()

    def drop(self, why: str) -> None:
        """Give up what waits and what comes, until `restart`."""
        self._waiting.clear()
        self._dropped = self._dropped or why
        self._news.set()

    def restart(self) -> None:
        """Begin anew; the caller lists everything from here on, so what waited is not missed."""
        self._waiting.clear()
        self._dropped = ""

    async def take(self) -> Signal | None:
        """The next signal; None if signals were dropped (`why` says so)."""
        while not self._waiting and not self._dropped:
            self._news = anyio.Event()
            await self._news.wait()
        return None if self._dropped else self._waiting.popleft()

    @property
    def why(self) -> str:
        """Why signals were dropped, or ""."""
        return self._dropped
