"""A consumer of containerd events that remembers them, for tests of watch()."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import anyio

from agent.containerd.values import (
    ContainerCreated,
    ContainerDeleted,
    ContainerUpdated,
    Event,
    TaskExited,
    TaskStarted,
)

E = TypeVar("E")
WAIT_S = 20.0


@dataclass
class Heard:
    """Everything that watch() emitted, and a way to wait for more of it."""

    events: list[Event] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)
    hold: anyio.Event | None = None

    async def emit(self, event: Event) -> None:
        """Keep one event; with `hold` set, keep the caller waiting."""
        self.events.append(event)
        self.news.set()
        if self.hold is not None:
            await self.hold.wait()

    async def wait(self, kind: type[E], count: int = 1) -> list[E]:
        """At least `count` events of this kind, within WAIT_S."""
        with anyio.fail_after(WAIT_S):
            while len(found := self.all(kind)) < count:
                self.news = anyio.Event()
                await self.news.wait()
        return found

    def all(self, kind: type[E]) -> list[E]:
        """The events of this kind so far."""
        found: list[E] = []
        found.extend(e for e in self.events if isinstance(e, kind))
        return found

    def story(self) -> list[str]:
        """Changes as `what id`, without lists and connections."""
        return [line for e in self.events if (line := _line(e))]


def _line(event: Event) -> str:
    match event:
        case ContainerCreated(record=record) | ContainerUpdated(record=record):
            return f"{type(event).__name__} {record.key.id}"
        case ContainerDeleted(key=key) | TaskStarted(key=key) | TaskExited(key=key):
            return f"{type(event).__name__} {key.id}"
    return ""
