"""Proof that a subscription is live: an own event goes out and must come back.

containerd does not say when a subscription begins, and a dead stream looks like a quiet one. The
sentinel's event is told from all others by a random token, so several agents do not disturb each
other. It never touches containers.
"""

from __future__ import annotations

import secrets

import anyio

from agent.containerd.client import Containerd
from agent.containerd.decode import Envelope
from agent.containerd.status import Trouble, failure

TOPIC = "/gpu-agent/ping"
NAMESPACE = "gpu-agent"
"""Only a header: publishing an event does not make the namespace."""

KIND = "gpu-agent.Ping"
FIRST_WAIT_S = 0.02


class Sentinel:
    """Sends pings through one containerd and notes which of them came back."""

    def __init__(self, client: Containerd) -> None:
        self._client = client
        self._awaited: dict[bytes, anyio.Event] = {}

    def heard(self, envelope: Envelope) -> bool:
        """Whether this event is a ping, anybody's; ours is noted."""
        if envelope.topic != TOPIC:
            return False
        if (back := self._awaited.get(envelope.payload)) is not None:
            back.set()
        return True

    async def prove(self, timeout_s: float) -> None:
        """Return once a ping came back; ContainerdError if none does within `timeout_s`."""
        token = secrets.token_bytes(16)
        back = self._awaited[token] = anyio.Event()
        try:
            with anyio.move_on_after(timeout_s):
                await self._ping_until(token, back)
        finally:
            del self._awaited[token]
        if not back.is_set():
            why = f"no own event came back within {timeout_s:g} s"
            raise failure(self._client.address, Trouble.SILENT, why)

    async def _ping_until(self, token: bytes, back: anyio.Event) -> None:
        # The first ping may overtake the subscription and reach nobody.
        wait_s = FIRST_WAIT_S
        while not back.is_set():
            await self._client.publish(NAMESPACE, TOPIC, KIND, token)
            with anyio.move_on_after(wait_s):
                await back.wait()
            wait_s *= 2
