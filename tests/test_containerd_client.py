"""The client against a fake containerd on a real socket: answers, and what failures mean."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import grpc
import pytest

from agent.containerd.client import Containerd
from agent.containerd.decode import Envelope
from agent.containerd.status import MEANING, Trouble, translate
from agent.containerd.values import ContainerKey, TaskRecord
from agent.errors import ContainerdError
from tests.fake_containerd import FakeContainerd

pytestmark = pytest.mark.anyio


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


async def failure_of(path: Path, timeout_s: float = 2.0) -> ContainerdError:
    """The error of a first question to whatever is at `path`."""
    async with Containerd(str(path), timeout_s=timeout_s) as client:
        with pytest.raises(ContainerdError) as caught:
            await client.version()
    return caught.value


async def test_a_record_has_everything_a_plan_needs(fake: FakeContainerd) -> None:
    """Get returns the spec as it is stored, and the facts beside it."""
    fake.add("c1", spec=b'{"process": {}}')
    key = ContainerKey(str(fake.path), "k8s.io", "c1")
    async with Containerd(str(fake.path)) as client:
        record = await client.get(key)
    assert record is not None
    assert record.key == key
    assert record.spec == b'{"process": {}}'
    assert (record.image, record.runtime) == ("img", "io.containerd.runc.v2")
    assert record.labels == (("kind", "container"),)
    assert record.created_ns == 1_000 * 10**9


async def test_a_container_that_is_gone_is_none(fake: FakeContainerd) -> None:
    """NOT_FOUND is an answer, not an error."""
    async with Containerd(str(fake.path)) as client:
        assert await client.get(ContainerKey(str(fake.path), "k8s.io", "gone")) is None


async def test_listed_tasks_have_their_container_id(fake: FakeContainerd) -> None:
    """Listed tasks carry the container's id in the process id field."""
    fake.add("c1")
    fake.run("c1", 41)
    key = ContainerKey(str(fake.path), "k8s.io", "c1")
    async with Containerd(str(fake.path)) as client:
        assert await client.tasks("k8s.io") == (TaskRecord(key, 41, "running"),)
        assert await client.tasks("other") == ()


async def test_800_records_of_22_kb_are_listed(fake: FakeContainerd) -> None:
    """A node full of containers exceeds 16 MiB in one answer, and is listed all the same."""
    for n in range(800):
        fake.add(f"c{n}", spec=b"x" * 22_000)
    async with Containerd(str(fake.path)) as client:
        found = await client.containers("k8s.io")
    assert len(found) == 800
    assert sum(len(r.spec) for r in found) > 16 << 20


async def test_events_are_filtered_by_the_server(fake: FakeContainerd) -> None:
    """Only topics that were asked for come, of every namespace."""
    got: list[Envelope] = []
    both = anyio.Event()

    def keep(envelope: Envelope) -> None:
        got.append(envelope)
        if len(got) == 2:
            both.set()

    async with Containerd(str(fake.path)) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.subscribe, ['topic=="/containers/create"'], keep)
        await fake.subscribed.wait()
        fake.add("a", "k8s.io")
        fake.run("a", 1, "k8s.io")
        fake.add("b", "moby")
        with anyio.fail_after(5):
            await both.wait()
        tasks.cancel_scope.cancel()
    assert [(e.topic, e.namespace) for e in got] == [
        ("/containers/create", "k8s.io"),
        ("/containers/create", "moby"),
    ]


def test_every_status_code_has_a_meaning() -> None:
    """No gRPC status can come that is not translated."""
    assert set(MEANING) == set(grpc.StatusCode)


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
async def test_each_status_code_is_translated(fake: FakeContainerd, code: grpc.StatusCode) -> None:
    """A server's status arrives as our error with its kind and the socket's name."""
    fake.fail_with["Namespaces.List"] = code
    async with Containerd(str(fake.path)) as client:
        await client.version()
        with pytest.raises(ContainerdError) as caught:
            await client.namespaces()
    assert caught.value.kind == MEANING[code]
    assert str(fake.path) in str(caught.value)


async def test_a_stream_that_ends_well_is_a_loss(fake: FakeContainerd) -> None:
    """OK at the end of a subscription means that there is no subscription any more."""
    error = translate(str(fake.path), "Events.Subscribe", grpc.StatusCode.OK, "ended", True)
    assert error.kind == Trouble.ABSENT
    assert "connection lost" in error.reason


async def test_no_socket(path: Path) -> None:
    """An absent socket is named as such, at once."""
    error = await failure_of(path)
    assert (error.kind, error.reason) == (Trouble.ABSENT, "absent: no such socket")


async def test_a_socket_without_a_listener(path: Path) -> None:
    """What a killed containerd leaves behind is told from no socket at all."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    error = await failure_of(path)
    assert error.reason == "absent: nothing listens on this socket"


async def test_a_silent_socket(path: Path) -> None:
    """Something that accepts and never answers costs no more than the deadline."""
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen(8)
        with anyio.fail_after(5):
            error = await failure_of(path, timeout_s=0.2)
    assert error.kind == Trouble.SILENT
    assert "no answer" in error.reason


async def test_a_socket_that_speaks_something_else(path: Path) -> None:
    """An HTTP/1 server is reported as not being containerd."""

    async def greet(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    async with await anyio.create_unix_listener(path) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, greet)
            error = await failure_of(path)
            tasks.cancel_scope.cancel()
    assert error.kind == Trouble.NOT_CONTAINERD
    assert "does not speak gRPC" in error.reason


async def test_a_grpc_server_that_is_not_containerd(path: Path) -> None:
    """A server without containerd's methods is reported as such."""
    server = grpc.aio.server()
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    try:
        error = await failure_of(path)
    finally:
        await server.stop(None)
    assert error.kind == Trouble.NOT_CONTAINERD
