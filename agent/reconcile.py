"""One event at a time to inventory, plans and stage: the only place where they meet.

It holds the state of the agent (the inventory, the containers of every containerd, what is
staged) and turns each event into changes of the run directory. Handlers of events are quick and
never wait (a long list lets others have their turns); only readings of the host do, and NVML,
which is slow, is asked beside them. What the run directory does not take is tried again later: it
never ends the agent.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import anyio
import anyio.lowlevel

from agent.containerd.values import (
    Connected,
    ContainerCreated,
    ContainerDeleted,
    ContainerKey,
    ContainerRecord,
    ContainerUpdated,
    Disconnected,
    Event,
    Synced,
    TaskExited,
    TasksListed,
    TaskStarted,
)
from agent.errors import AgentError, Refused, StageError
from agent.inventory import Inventory
from agent.plan import Entry, Plan, digest
from agent.planner import ProcPaths, check
from agent.policy import Policy
from agent.request import Reading, Request, read_spec
from agent.sharing import Shared
from agent.shelf import Shelf
from agent.stage import Stage
from agent.tracked import Connection, Tracked
from hooks.state import asks

log = logging.getLogger(__name__)

FIRST_NVML_S = 2.0
"""How long the first inventory waits for NVML; without it the first one is procfs's."""
HEAL_S = 2.0
"""How long a hook waits for NVML before its container is refused."""
AT_ONCE = 50
"""Listed containers handled before the event loop gets a turn: some 6 ms of work."""
ASKED_KEPT = 1000
"""Entries of hooks whose containers no containerd has announced."""


class HostReader(Protocol):
    """`agent.host.Host`, or a test's."""

    async def read(self) -> Inventory:
        """The host now, with NVML's last answers; takes milliseconds."""

    async def ask_nvml(self) -> bool:
        """Ask NVML, maybe for seconds; True if it answers otherwise than last time."""


class Reconciler:
    """The agent's state. Handlers run on the event loop, one event after the other."""

    def __init__(
        self,
        stage: Stage,
        host: HostReader,
        policy: Policy,
        proc: ProcPaths,
        addresses: Sequence[str],
    ) -> None:
        self.stage = stage
        self.policy = policy
        self.inventory: Inventory | None = None
        self.changed_at = time.time()
        self.change_reason = "the agent has not read the host yet"
        self.connections = {a: Connection(a, since=time.monotonic()) for a in addresses}
        self.containers: dict[ContainerKey, Tracked] = {}
        self.staged_us: deque[int] = deque(maxlen=1000)
        self.published = False
        self.trouble = ""
        self._host = host
        self._reading = Shared(host.read)
        self._asking = Shared(self._ask_nvml)
        self._nvml_wanted = anyio.Event()
        self._first = anyio.Event()
        self._shelf = Shelf(stage, proc, self._used_plans)
        # Containers with byte for byte the same spec share one entry.
        self._holders: Counter[str] = Counter()
        # What hooks were answered before their containers were announced, oldest first.
        self._asked: dict[str, None] = {}

    async def handle(self, event: Event) -> None:
        """Apply one event of a containerd."""
        connection = self._count(event)
        match event:
            case Connected():
                connection.connected, connection.error = True, None
                connection.version, connection.since = event.version, time.monotonic()
            case Disconnected():
                connection.connected = connection.synced = False
                connection.error, connection.since = event.reason, time.monotonic()
            case Synced():
                await self._sync(event.address, event.containers)
            case ContainerCreated():
                self._track(event.record, event.received_ns)
            case ContainerUpdated():
                self._track(event.record, None)
            case ContainerDeleted():
                self._forget(event.key)
            case TaskStarted():
                self._set_pid(event.key, event.pid)
            case TaskExited():
                self._set_pid(event.key, 0)
            case TasksListed():
                for task in event.tasks:
                    self._set_pid(task.key, task.pid)

    async def start(self) -> None:
        """The first reading; afterwards there is an inventory, and hooks are answered."""
        with anyio.move_on_after(FIRST_NVML_S) as limit:
            await self._host.ask_nvml()
        await self._read("the agent started")
        if limit.cancelled_caught:
            self._nvml_wanted.set()

    async def refresh(self, why: str) -> None:
        """Read the host again, publish if its generation moved, and have NVML asked."""
        await self._read(why)
        self._nvml_wanted.set()

    async def follow_nvml(self) -> None:
        """Ask NVML after every refresh, however long it takes, until cancelled."""
        while True:
            await self._nvml_wanted.wait()
            self._nvml_wanted = anyio.Event()
            await self._asking.run()

    async def answer(self, spec: bytes, stale: bool, namespace: str | None = None) -> str:
        """Stage a container for its waiting hook; gives its spec's digest.

        `stale` means that the hook found the host changed, so the host is read again first;
        `namespace` is containerd's for the container, None where the hook cannot prove it.
        Raises Refused with the line to die with, StageError if there is no room to stage.
        """
        await self._first.wait()
        if stale:
            await self.refresh("a hook found a source changed")
        entry, reading = self._decide(spec, namespace)
        if entry.verdict == "refuse" and reading is not None:
            await self._read("a container was refused")
            # A MIG device may be so new that only NVML knows it; nothing else asks NVML here.
            with anyio.move_on_after(HEAL_S):
                await self._asking.run()
            entry, _ = self._decide(spec, namespace)
        if entry.verdict == "refuse":
            raise Refused(entry.detail)
        name = digest(spec)
        self.stage.put_entry(name, entry)
        self._remember(name)
        return name

    def planned(self, request: Request) -> Plan:
        """The plan for a request, not published. Raises what the planner raises."""
        if self.inventory is None:
            raise Refused("the agent has not read the host yet")
        return self._shelf.planned(self.inventory, request)

    def publish(self) -> None:
        """Put the inventory's generation in force, with everything that is staged for it.

        Nothing in here waits, so no hook is answered in between; while there is no generation
        in force hooks ask. If the directory is full it stays so, and `published` stays False.
        """
        if self.inventory is None:
            return
        try:
            self._publish(self.inventory)
        except StageError as e:
            self._note(e)
            return
        self.published, self.trouble = True, ""

    def _publish(self, inventory: Inventory) -> None:
        self._shelf.clear()
        self._asked.clear()
        old = self.stage.generation()
        self.stage.clear_generation()
        if old != inventory.generation:
            # Nothing that lies there can be replayed; what is staged next may need its room.
            self.stage.sweep((), ())
        for key, tracked in list(self.containers.items()):
            if tracked.has_entry:
                self.containers[key] = self._stage(tracked)
        self._shelf.prepare(inventory, self.policy)
        self._sweep()
        self.stage.set_generation(inventory.generation)

    async def _read(self, why: str) -> None:
        self._adopt(await self._reading.run(), why)

    async def _ask_nvml(self) -> None:
        if await self._host.ask_nvml():
            await self._read("NVML answers otherwise")

    def _adopt(self, inventory: Inventory, why: str) -> None:
        old = self.inventory
        self.inventory = inventory
        if old is None or old.generation != inventory.generation:
            self.changed_at, self.change_reason = time.time(), why
            self._tell(inventory, why)
            self.publish()
        self._first.set()

    @staticmethod
    def _tell(inventory: Inventory, why: str) -> None:
        log.info(
            "new generation",
            extra={
                "generation": inventory.generation,
                "state": str(inventory.state),
                "why": why,
                "reason": inventory.reason or "",
            },
        )

    def _note(self, error: StageError) -> None:
        """Something is not as it should be in the run directory; `publish` makes it good."""
        self.published = False
        if self.trouble != str(error):
            self.trouble = str(error)
            log.error("not published", extra={"error": self.trouble})

    def _require_generation(self) -> None:
        """Somebody may have emptied the run directory, or it was full."""
        wanted = self.inventory.generation if self.inventory else None
        if self.stage.generation() != wanted:
            self.publish()
            if not self.published:
                raise StageError(str(self.stage.path), f"nothing in force: {self.trouble}")

    def _track(self, record: ContainerRecord, received_ns: int | None) -> None:
        tracked = self._understood(record)
        old = self.containers.get(record.key)
        if old is not None:
            if old.spec_digest == tracked.spec_digest and old.verdict != "refuse":
                return
            self._forget(record.key)
        self._holders[tracked.spec_digest] += 1
        self._asked.pop(tracked.spec_digest, None)
        self.containers[record.key] = tracked
        if not tracked.has_entry or self.inventory is None:
            return
        try:
            tracked = self._stage(tracked)
        except StageError as e:
            # The hook will ask; until there is room again that is all that can be done.
            self._note(e)
            return
        if received_ns is not None and tracked.verdict == "plan":
            took = (time.monotonic_ns() - received_ns) // 1000
            tracked = replace(tracked, staged_us=took)
            self.staged_us.append(took)
        self.containers[record.key] = tracked

    def _understood(self, record: ContainerRecord) -> Tracked:
        name = digest(record.spec)
        if not asks(record.spec, self.policy.words):
            why = "not a GPU container: its spec names nothing of NVIDIA's"
            return Tracked(record.key, name, None, "none", why)
        try:
            reading = read_spec(record.spec, self.policy, record.key.namespace)
        except AgentError as e:
            return Tracked(record.key, name, None, "refuse", str(e))
        return Tracked(record.key, name, reading, "none", reading.why)

    def _stage(self, tracked: Tracked) -> Tracked:
        """Publish the entry of a container. Raises StageError."""
        known = tracked.reading.why if tracked.reading else tracked.why
        entry = self._entry(tracked.reading, known, tracked.label)
        self.stage.put_entry(tracked.spec_digest, entry)
        why = entry.detail if entry.verdict == "refuse" else known
        found = entry.detail if entry.verdict == "plan" else None
        return replace(tracked, verdict=entry.verdict, why=why, plan=found)

    def _decide(self, spec: bytes, namespace: str | None) -> tuple[Entry, Reading | None]:
        """The entry of a container that nobody announced. Raises StageError."""
        self._require_generation()
        # The hook speaks of this very container, the records of all that have such a spec.
        namespace = namespace or self._namespace(digest(spec))
        try:
            reading = read_spec(spec, self.policy, namespace)
        except AgentError as e:
            return self._entry(None, str(e), "asked"), None
        return self._entry(reading, reading.why, "asked"), reading

    def _namespace(self, spec_digest: str) -> str | None:
        """The containerd namespace of the container with this spec, if one was announced."""
        found = {k.namespace for k, t in self.containers.items() if t.spec_digest == spec_digest}
        return found.pop() if len(found) == 1 else None

    def _entry(self, reading: Reading | None, why: str, label: str) -> Entry:
        if self.inventory is None:
            return Entry("refuse", "the agent has not read the host yet", "", "", (0, 0), label)
        generation = self.inventory.generation
        if reading is None:
            return Entry("refuse", why, generation, "", (0, 0), label)
        owner = reading.owner
        if reading.request is None:
            return Entry("none", "", generation, reading.root, owner, label)
        try:
            check(self.inventory, reading.request, reading.requirements)
            name = self._shelf.staged(self.inventory, reading.request)
        except Refused as e:
            return Entry("refuse", str(e), generation, reading.root, owner, label)
        return Entry("plan", name, generation, reading.root, owner, label, reading.volumes)

    async def _sync(self, address: str, records: tuple[ContainerRecord, ...]) -> None:
        present = {record.key for record in records}
        for key in [k for k in self.containers if k.address == address and k not in present]:
            self._forget(key)
        for number, record in enumerate(records, 1):
            self._track(record, None)
            if number % AT_ONCE == 0:
                # Hooks are answered in between. This containerd's next event comes after us.
                await anyio.lowlevel.checkpoint()
        self.connections[address].synced = True
        try:
            self._sweep()
        except StageError as e:
            self._note(e)

    def _forget(self, key: ContainerKey) -> None:
        gone = self.containers.pop(key, None)
        if gone is None:
            return
        self._holders[gone.spec_digest] -= 1
        if self._holders[gone.spec_digest] <= 0:
            del self._holders[gone.spec_digest]
            self._withdraw(gone.spec_digest)

    def _remember(self, spec_digest: str) -> None:
        if spec_digest in self._holders:
            return
        self._asked[spec_digest] = None
        if len(self._asked) > ASKED_KEPT:
            oldest = next(iter(self._asked))
            del self._asked[oldest]
            self._withdraw(oldest)

    def _withdraw(self, spec_digest: str) -> None:
        try:
            self.stage.withdraw(spec_digest)
        except StageError as e:
            self._note(e)

    def _used_plans(self) -> frozenset[str]:
        return frozenset(t.plan for t in self.containers.values() if t.plan is not None)

    def _sweep(self) -> None:
        """Remove what belongs to nobody, once every containerd has said whom it has."""
        if self.inventory is None or not all(c.synced for c in self.connections.values()):
            return
        self.stage.sweep((*self._holders, *self._asked), self._shelf.names())

    def _set_pid(self, key: ContainerKey, pid: int) -> None:
        if (tracked := self.containers.get(key)) is not None:
            self.containers[key] = replace(tracked, pid=pid)

    def _count(self, event: Event) -> Connection:
        match event:
            case Connected() | Disconnected() | Synced() | TasksListed():
                return self.connections[event.address]
            case ContainerCreated() | ContainerUpdated():
                address = event.record.key.address
            case _:
                address = event.key.address
        connection = self.connections[address]
        connection.events += 1
        connection.last_event = time.monotonic()
        return connection
