"""What the agent knows of each container and each containerd. Values; they decide nothing."""

from __future__ import annotations

from dataclasses import dataclass

from agent.containerd.values import ContainerKey
from agent.request import Reading


@dataclass(frozen=True, slots=True)
class Tracked:
    """A container known to a containerd and what was staged for it.

    `reading` is None for a spec that cannot be understood (`why` says it) and for one that names
    nothing of ours; the spec itself is not kept. `staged_us` is from the event's arrival to the
    published entry.
    """

    key: ContainerKey
    spec_digest: str
    reading: Reading | None
    verdict: str
    why: str
    plan: str | None = None
    pid: int = 0
    staged_us: int | None = None

    @property
    def has_entry(self) -> bool:
        """Whether something is staged for it; a hook needs nothing to see a plain container."""
        return self.verdict != "none" or self.reading is not None

    @property
    def label(self) -> str:
        """Who it is, for people."""
        return f"{self.key.namespace}/{self.key.id}"


@dataclass(slots=True)
class Connection:
    """What is known of one containerd; times are of `time.monotonic`."""

    address: str
    connected: bool = False
    synced: bool = False
    version: str | None = None
    since: float = 0.0
    events: int = 0
    last_event: float | None = None
    error: str | None = None
