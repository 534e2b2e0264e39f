"""One event at a time to inventory, plans and stage: the only place where they meet.

It holds the state of the agent (the inventory, the containers of every containerd, what is
staged) and turns each event into changes of the run directory. Reading the host goes through
`HostReader`, one reading at a time; everything else here is quick and never waits, so an event
is done when its handler returns.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import anyio

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
from agent.inventory import DriverState, Inventory
from agent.plan import Entry, Plan, digest
from agent.planner import ProcPaths, plan
from agent.policy import Policy
from agent.request import DEFAULT_CAPABILITIES, Reading, Request, read_spec
from agent.stage import Stage
from hooks.state import asks

log = logging.getLogger(__name__)

HostReader = Callable[[], Awaitable[Inventory]]


@dataclass(frozen=True, slots=True)
class Tracked:
    """A container known to a containerd and what was staged for it.

    `reading` is None for a spec that cannot be understood (`why` says it) and for one that names
    nothing of ours. `staged_us` is from the event's arrival to the published entry.
    """

    key: ContainerKey
    spec_digest: str
    reading: Reading | None
    verdict: str
    why: str
    plan: str | None = None
    pid: int = 0
    staged_us: int | None = None


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


class Reconciler:
    """The agent's state. Handlers run on the event loop, one event after the other."""

    def __init__(
        self,
        stage: Stage,
        read_host: HostReader,
        policy: Policy,
        proc: ProcPaths,
        addresses: Sequence[str],
    ) -> None:
        self.stage = stage
        self.policy = policy
        self.proc = proc
        self.inventory: Inventory | None = None
        self.changed_at = time.time()
        self.change_reason = "the agent has not read the host yet"
        self.connections = {a: Connection(a, since=time.monotonic()) for a in addresses}
        self.containers: dict[ContainerKey, Tracked] = {}
        self.staged_us: deque[int] = deque(maxlen=1000)
        self.published = False
        self._read_host = read_host
        self._reading = anyio.Lock()
        self._first = anyio.Event()
        self._readings = 0
        # One plan a request: containers share it, and it is encoded and written once.
        self._plans: dict[Request, tuple[str, Plan]] = {}
        # Containers with byte for byte the same spec share one entry.
        self._holders: Counter[str] = Counter()

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
                self._sync(event.address, event.containers)
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

    async def refresh(self, why: str) -> None:
        """Read the host again; publish a new inventory if its generation moved.

        Callers that come while a reading is under way wait for one that began after they came,
        and share it.
        """
        wanted = self._readings + (2 if self._reading.locked() else 1)
        async with self._reading:
            if self._readings >= wanted:
                return
            inventory = await self._read_host()
            self._readings += 1
            self._adopt(inventory, why)

    async def answer(self, spec: bytes, stale: bool) -> str:
        """Stage a container for its waiting hook; gives its spec's digest.

        `stale` means that the hook found the host changed, so the host is read again first.
        Raises Refused with the line to die with, StageError if there is no room to stage.
        """
        await self._first.wait()
        name = digest(spec)
        if stale:
            await self.refresh("a hook found a source changed")
        entry, _ = self._decide(spec)
        if entry.verdict == "refuse" and not stale and self._host_may_heal(spec):
            await self.refresh("a container was refused")
            entry, _ = self._decide(spec)
        if entry.verdict == "refuse":
            raise Refused(entry.detail)
        self.stage.put_entry(name, entry)
        return name

    def staged_plan(self, request: Request) -> tuple[str, Plan]:
        """The (digest, plan) for a request, published. Raises Refused errors of the planner."""
        if self.inventory is None:
            raise Refused("the agent has not read the host yet")
        found = self._plans.get(request)
        if found is None:
            made = plan(self.inventory, request, self.proc)
            found = (self.stage.put_plan(made), made)
            self._plans[request] = found
        return found

    def _adopt(self, inventory: Inventory, why: str) -> None:
        old = self.inventory
        self.inventory = inventory
        if old is None or old.generation != inventory.generation:
            self.published = False
            self.changed_at, self.change_reason = time.time(), why
            self._tell(inventory, why)
        if not self.published:
            self.publish()
        self._first.set()

    def publish(self) -> None:
        """Put the inventory's generation in force, with everything that is staged for it.

        Nothing in here waits, so no hook is answered in between; while there is no generation
        in force hooks ask. If the directory is full it stays so, and `published` stays False.
        """
        if self.inventory is None:
            return
        self._plans.clear()
        try:
            self.stage.clear_generation()
            for tracked in list(self.containers.values()):
                if tracked.verdict != "none" or tracked.reading is not None:
                    self.containers[tracked.key] = self._stage(tracked)
            self._prepare_usual()
            self._sweep()
            self.stage.set_generation(self.inventory.generation)
            self.published = True
        except StageError as e:
            log.error("generation not published", extra={"error": str(e)})

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

    def _prepare_usual(self) -> None:
        """Plans for the requests that nearly every container makes, before one exists."""
        if self.inventory is None or self.inventory.state is not DriverState.READY:
            return
        base = Request(
            ("all",), self.policy.bounded(DEFAULT_CAPABILITIES), "NVIDIA_VISIBLE_DEVICES"
        )
        singles = [replace(base, devices=(str(gpu.index),)) for gpu in self.inventory.gpus]
        for request in (base, *singles):
            try:
                self.staged_plan(request)
            except Refused:
                # A GPU with a problem has no plan; whoever asks for it is told why.
                continue

    def _track(self, record: ContainerRecord, received_ns: int | None) -> None:
        tracked = self._read(record)
        old = self.containers.get(record.key)
        if old is not None:
            if old.spec_digest == tracked.spec_digest and old.verdict != "refuse":
                return
            self._forget(record.key)
        if tracked.verdict != "none" or tracked.reading is not None:
            tracked = self._stage(tracked)
        if received_ns is not None and tracked.verdict == "plan":
            took = (time.monotonic_ns() - received_ns) // 1000
            tracked = replace(tracked, staged_us=took)
            self.staged_us.append(took)
        self.containers[record.key] = tracked
        self._holders[tracked.spec_digest] += 1

    def _read(self, record: ContainerRecord) -> Tracked:
        name = digest(record.spec)
        if not asks(record.spec):
            why = "not a GPU container: its spec names nothing of NVIDIA's"
            return Tracked(record.key, name, None, "none", why)
        try:
            reading = read_spec(record.spec, self.policy)
        except AgentError as e:
            return Tracked(record.key, name, None, "refuse", str(e))
        return Tracked(record.key, name, reading, "none", reading.why)

    def _stage(self, tracked: Tracked) -> Tracked:
        """Publish the entry of a container, as far as the inventory is known."""
        if self.inventory is None:
            return tracked
        label = f"{tracked.key.namespace}/{tracked.key.id}"
        try:
            entry = self._entry(tracked.reading, tracked.why, label)
            self.stage.put_entry(tracked.spec_digest, entry)
        except StageError as e:
            # The hook will ask; until there is room again that is all that can be done.
            log.error("not staged", extra={"container": label, "error": str(e)})
            return tracked
        why = entry.detail if entry.verdict == "refuse" else tracked.why
        found = entry.detail if entry.verdict == "plan" else None
        return replace(tracked, verdict=entry.verdict, why=why, plan=found)

    def _decide(self, spec: bytes) -> tuple[Entry, Reading | None]:
        try:
            reading = read_spec(spec, self.policy)
        except AgentError as e:
            return self._entry(None, str(e), "asked"), None
        return self._entry(reading, reading.why, "asked"), reading

    def _entry(self, reading: Reading | None, why: str, label: str) -> Entry:
        generation = self.inventory.generation if self.inventory else ""
        if reading is None:
            return Entry("refuse", why, generation, "", (0, 0), label)
        owner = reading.owner
        if reading.request is None:
            return Entry("none", "", generation, reading.root, owner, label)
        try:
            name, _ = self.staged_plan(reading.request)
        except Refused as e:
            return Entry("refuse", str(e), generation, reading.root, owner, label)
        return Entry("plan", name, generation, reading.root, owner, label)

    def _host_may_heal(self, spec: bytes) -> bool:
        """Whether reading the host again could turn a refusal into a plan."""
        try:
            return read_spec(spec, self.policy).request is not None
        except AgentError:
            return False

    def _sync(self, address: str, records: tuple[ContainerRecord, ...]) -> None:
        present = {record.key for record in records}
        for key in [k for k in self.containers if k.address == address and k not in present]:
            self._forget(key)
        for record in records:
            self._track(record, None)
        self.connections[address].synced = True
        self._sweep()

    def _forget(self, key: ContainerKey) -> None:
        gone = self.containers.pop(key, None)
        if gone is None:
            return
        self._holders[gone.spec_digest] -= 1
        if self._holders[gone.spec_digest] <= 0:
            del self._holders[gone.spec_digest]
            self.stage.withdraw(gone.spec_digest)

    def _sweep(self) -> None:
        """Remove what belongs to nobody, once every containerd has said whom it has."""
        if self.inventory is None or not all(c.synced for c in self.connections.values()):
            return
        plans = {name for name, _ in self._plans.values()}
        self.stage.sweep((t.spec_digest for t in self.containers.values()), plans)

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
