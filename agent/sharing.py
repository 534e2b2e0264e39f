"""One run for many: an action that is costly, and whose result anybody may use.

It knows nothing of what the action does and never runs it by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Shared(Generic[T]):
    """An action that runs once at a time.

    Whoever comes while it runs may know what that run has missed, so he waits for the next one,
    and everyone who waits shares it: any number of callers at one moment make two runs at most.
    """

    def __init__(self, action: Callable[[], Awaitable[T]]) -> None:
        self._action = action
        self._turn = anyio.Lock()
        self._runs = 0
        self._result: list[T] = []

    async def run(self) -> T:
        """The result of a run that began after this call; what the action raises, its caller."""
        wanted = self._runs + (2 if self._turn.locked() else 1)
        async with self._turn:
            if self._runs < wanted:
                self._result = [await self._action()]
                self._runs += 1
            return self._result[0]
