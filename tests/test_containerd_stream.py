"""watch() against a fake containerd on a real socket: nothing lost, nothing twice, in order."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from agent._pb.containerd import events_pb2
from agent.containerd.stream import Pace, watch
from agent.containerd.values import (
    Connected,
    ContainerCreated,
    ContainerDeleted,
    ContainerKey,
    ContainerRecord,
    Disconnected,
    Event,
    Synced,
    TaskExited,
    TaskRecord,
    TasksListed,
    TaskStarted,
)
from tests.containerd.heard import Heard
from tests.fake_containerd import FakeContainerd

pytestmark = pytest.mark.anyio

QUICK = Pace(call_s=0.5, prove_s=1.0, retry_max_s=0.1)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """grpc.aio runs on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> None:
    """One event loop to the end: gRPC's poller thread wakes the loop of calls long cancelled."""


@pytest.fixture
def path() -> Iterator[Path]:
    """A socket path that is short enough for sun_path."""
    with tempfile.TemporaryDirectory(prefix="gpu-agent-") as folder:
        yield Path(folder) / "c.sock"


@pytest.fixture
async def fake(path: Path) -> AsyncIterator[FakeContainerd]:
    """A fake that listens."""
    async with FakeContainerd(path) as server:
        yield server


@asynccontextmanager
async def watching(path: Path, pace: Pace = QUICK) -> AsyncIterator[Heard]:
    """watch() in the background, ended with the block."""
    heard = Heard()

    async def run() -> None:
        await watch(str(path), heard.emit, pace=pace)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        yield heard
        tasks.cancel_scope.cancel()


async def until_asked(fake: FakeContainerd, method: str, count: int = 1) -> None:
    """Return once a method was called so many times in all, within 10 s."""
    with anyio.fail_after(10):
        while fake.asked.count(method) < count:
            await anyio.lowlevel.checkpoint()


def ids(containers: tuple[ContainerRecord, ...]) -> list[str]:
    """Ids in order."""
    return [c.key.id for c in containers]


async def test_connects_lists_and_follows(fake: FakeContainerd) -> None:
    """First the connection, then what exists, then each change with its record."""
    fake.add("old")
    fake.run("old", 7)
    async with watching(fake.path) as heard:
        (listed,) = await heard.wait(TasksListed)
        fake.add("new", spec=b"{1}")
        (created,) = await heard.wait(ContainerCreated)
    key = ContainerKey(str(fake.path), "k8s.io", "old")
    assert heard.events[0] == Connected(str(fake.path), "1.6.20-fake", "u-1")
    assert isinstance(heard.events[1], Synced)
    assert ids(heard.events[1].containers) == ["old"]
    assert listed.tasks == (TaskRecord(key, 7, "running"),)
    assert (created.record.key.id, created.record.spec) == ("new", b"{1}")
    assert created.received_ns > 0


async def test_a_lost_ping_is_sent_again(fake: FakeContainerd) -> None:
    """A ping that overtook the subscription proves nothing; the next one does."""
    fake.lose_pings = 2
    async with watching(fake.path) as heard:
        await heard.wait(Synced)
    assert fake.asked.count("Events.Publish") == 3
    assert not heard.all(Disconnected)


async def test_no_proof_no_connection(fake: FakeContainerd) -> None:
    """While no ping comes back there is no Connected, but a reason."""
    fake.lose_pings = 10_000
    pace = Pace(prove_s=0.1, retry_max_s=0.1)
    async with watching(fake.path, pace) as heard:
        (loss,) = await heard.wait(Disconnected)
        fake.lose_pings = 0
        await heard.wait(Connected)
    assert isinstance(heard.events[0], Disconnected)
    assert "no own event came back" in loss.reason


async def test_a_dead_stream_is_noticed(fake: FakeContainerd) -> None:
    """A stream that delivers nothing any more is given up after a heartbeat."""
    pace = Pace(prove_s=0.1, heartbeat_s=0.05, retry_max_s=0.1)
    async with watching(fake.path, pace) as heard:
        await heard.wait(Synced)
        fake.lose_pings = 10_000
        (loss,) = await heard.wait(Disconnected)
    assert loss.reason.startswith("silent")


async def test_listing_does_not_wait_for_tasks(fake: FakeContainerd) -> None:
    """Containers are known, and followed, while Tasks.List hangs on a create in progress."""
    fake.add("creating")
    fake.tasks_gate = anyio.Event()
    async with watching(fake.path) as heard:
        await heard.wait(Synced)
        fake.add("next")
        await heard.wait(ContainerCreated)
        assert not heard.all(TasksListed)
        fake.tasks_gate.set()
        await heard.wait(TasksListed)


async def test_a_task_list_does_not_undo_later_events(fake: FakeContainerd) -> None:
    """A list of tasks that was overtaken by a start and an exit says what they said."""
    fake.add("a")
    fake.add("b")
    fake.run("a", 1)
    fake.tasks_gate = anyio.Event()
    async with watching(fake.path) as heard:
        await heard.wait(Synced)
        await until_asked(fake, "Tasks.List")
        fake.end("a")
        fake.run("b", 2)
        await heard.wait(TaskStarted)
        fake.tasks_gate.set()
        (listed,) = await heard.wait(TasksListed)
    assert [(t.key.id, t.pid) for t in listed.tasks] == [("b", 2)]


async def test_no_gap_between_subscription_and_list(fake: FakeContainerd) -> None:
    """What is created or deleted while the list is under way comes after it."""
    fake.add("stays")
    fake.add("goes")
    fake.list_gate = anyio.Event()
    async with watching(fake.path) as heard:
        with anyio.fail_after(5):
            await fake.listing.wait()
        fake.add("comes")
        fake.remove("goes")
        fake.list_gate.set()
        await heard.wait(ContainerDeleted)
        await heard.wait(ContainerCreated)
    (synced,) = heard.all(Synced)
    assert sorted(ids(synced.containers)) == ["goes", "stays"]
    assert sorted(heard.story()) == ["ContainerCreated comes", "ContainerDeleted goes"]


async def test_what_is_listed_is_not_announced_again(fake: FakeContainerd) -> None:
    """An event that crossed with a list which has it already is dropped."""
    fake.add("known")
    async with watching(fake.path) as heard:
        await heard.wait(Synced)
        change = events_pb2.ContainerChange(id="known")
        fake.publish("k8s.io", "/containers/create", change)
        fake.add("last")
        await heard.wait(ContainerCreated)
    assert heard.story() == ["ContainerCreated last"]


async def test_a_slow_record_delays_only_its_container(fake: FakeContainerd) -> None:
    """Others pass a hanging Get, its own later events wait behind it."""
    fake.get_gates["slow"] = anyio.Event()
    pace = Pace(call_s=5.0)
    async with watching(fake.path, pace) as heard:
        await heard.wait(Synced)
        fake.add("slow")
        fake.run("slow", 1)
        fake.add("quick")
        fake.run("quick", 2)
        await heard.wait(TaskStarted)
        assert heard.story() == ["ContainerCreated quick", "TaskStarted quick"]
        fake.get_gates["slow"].set()
        await heard.wait(TaskStarted, 2)
    assert heard.story()[2:] == ["ContainerCreated slow", "TaskStarted slow"]


async def test_a_container_deleted_before_the_look_up_is_only_deleted(
    fake: FakeContainerd,
) -> None:
    """No record, no ContainerCreated; the deletion is still told."""
    fake.get_gates["brief"] = anyio.Event()
    async with watching(fake.path) as heard:
        await heard.wait(Synced)
        fake.add("brief")
        fake.remove("brief")
        fake.get_gates["brief"].set()
        await heard.wait(ContainerDeleted)
    assert heard.story() == ["ContainerDeleted brief"]


async def test_the_same_id_in_a_new_life(fake: FakeContainerd) -> None:
    """Docker's re-use of an id shows as deleted and created, with another creation time."""
    fake.add("c")
    async with watching(fake.path) as heard:
        (synced,) = await heard.wait(Synced)
        fake.remove("c")
        fake.add("c")
        (created,) = await heard.wait(ContainerCreated)
    assert heard.story() == ["ContainerDeleted c", "ContainerCreated c"]
    assert created.record.created_ns > synced.containers[0].created_ns


async def test_an_exec_that_ends_is_no_exit(fake: FakeContainerd) -> None:
    """Only the first process of a container counts."""
    fake.add("c")
    fake.run("c", 5)
    async with watching(fake.path) as heard:
        await heard.wait(Synced)
        fake.end("c", exec_id="e1")
        fake.end("c", status=137)
        (exited,) = await heard.wait(TaskExited)
    assert (exited.pid, exited.status) == (5, 137)


async def test_repeated_and_reordered_events_do_no_harm(fake: FakeContainerd) -> None:
    """Each creation is told once, whatever the wire does."""
    held: list[events_pb2.Envelope] = []

    def swap(envelope: events_pb2.Envelope) -> list[events_pb2.Envelope]:
        if not envelope.topic.startswith("/containers"):
            return [envelope]
        held.append(envelope)
        if len(held) < 2:
            return []
        both = [held[1], held[0], held[1], held[0]]
        held.clear()
        return both

    async with watching(fake.path) as heard:
        await heard.wait(Synced)
        fake.wire = swap
        fake.add("a")
        fake.add("b")
        fake.wire = lambda envelope: [envelope]
        fake.run("a", 1)
        fake.run("b", 2)
        await heard.wait(TaskStarted, 2)
    assert sorted(heard.story()[:2]) == ["ContainerCreated a", "ContainerCreated b"]
    assert len(heard.story()) == 4


async def test_overflow_is_answered_by_a_new_list(fake: FakeContainerd) -> None:
    """Too many waiting events are dropped, never silently: a new list follows."""
    async with watching(fake.path, Pace(queue=10, heartbeat_s=0.02)) as heard:
        await heard.wait(TasksListed)
        heard.hold = anyio.Event()
        for n in range(100):
            fake.add(f"c{n}")
            fake.run(f"c{n}", n + 1)
        # Heartbeats travel with the events: the second one from now was sent when all were read.
        await until_asked(fake, "Events.Publish", fake.asked.count("Events.Publish") + 3)
        heard.hold.set()
        _, again = await heard.wait(Synced, 2)
        await heard.wait(TasksListed, 2)
    assert len(again.containers) == 100
    assert not heard.all(Disconnected)


async def test_a_record_that_cannot_be_had_is_listed_instead(fake: FakeContainerd) -> None:
    """A Get that runs into its deadline leads to a new list, not to a lost container."""
    fake.get_gates["stuck"] = anyio.Event()
    async with watching(fake.path, Pace(call_s=0.3)) as heard:
        await heard.wait(Synced)
        fake.add("stuck")
        _, again = await heard.wait(Synced, 2)
        fake.get_gates["stuck"].set()
    assert ids(again.containers) == ["stuck"]


async def test_a_restart_is_one_loss_and_one_list(fake: FakeContainerd) -> None:
    """While containerd is away one Disconnected is told; then everything is listed again."""
    fake.add("before")
    async with watching(fake.path) as heard:
        await heard.wait(Synced)
        await fake.stop()
        await heard.wait(Disconnected)
        fake.remove("before")
        fake.add("meanwhile")
        await fake.start()
        _, again = await heard.wait(Synced, 2)
    assert ids(again.containers) == ["meanwhile"]
    assert len(heard.all(Disconnected)) == 1


async def test_a_socket_that_appears_later(path: Path) -> None:
    """An absent containerd is told once, then found as soon as it is there."""
    async with watching(path) as heard:
        (loss,) = await heard.wait(Disconnected)
        async with FakeContainerd(path):
            await heard.wait(Synced)
    assert loss.reason == "absent: no such socket"
    assert heard.events[0] == loss


async def test_another_trouble_is_told(path: Path) -> None:
    """No socket, then one that never answers, then containerd: each with its reason."""
    async with watching(path, Pace(call_s=0.2, retry_max_s=0.05)) as heard:
        await heard.wait(Disconnected)
        async with await anyio.create_unix_listener(path):
            await heard.wait(Disconnected, 2)
        await anyio.Path(path).unlink()
        async with FakeContainerd(path):
            await heard.wait(Synced)
    reasons = [e.reason.partition(":")[0] for e in heard.all(Disconnected)]
    assert reasons[:2] == ["absent", "silent"]


async def test_an_undecodable_event_is_a_reason(fake: FakeContainerd) -> None:
    """A payload that is not its topic's ends the session, and says so."""
    async with watching(fake.path) as heard:
        await heard.wait(Synced)
        fake.publish("k8s.io", "/containers/create", b"\xff\xff")
        (loss,) = await heard.wait(Disconnected)
        await heard.wait(Synced, 2)
    assert "undecodable event on /containers/create" in loss.reason


async def test_the_consumers_own_failure_comes_out(fake: FakeContainerd) -> None:
    """What emit raises is not taken for a trouble of containerd."""

    async def refuse(event: Event) -> None:
        raise KeyError("mine")

    with anyio.fail_after(5):
        with pytest.raises(ExceptionGroup) as caught:
            await watch(str(fake.path), refuse, pace=QUICK)
    assert caught.group_contains(KeyError)
