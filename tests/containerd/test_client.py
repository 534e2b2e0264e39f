"""The client and watch() against a real containerd with real containers."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from agent.containerd.client import Containerd
from agent.containerd.stream import Pace, watch
from agent.containerd.values import (
    Connected,
    ContainerCreated,
    ContainerDeleted,
    ContainerKey,
    ContainerUpdated,
    Disconnected,
    Synced,
    TaskExited,
    TasksListed,
    TaskStarted,
)
from tests.containerd.daemon import Daemon
from tests.containerd.heard import Heard
from tests.containers.spec import create_hook, make_spec

pytestmark = [pytest.mark.anyio, pytest.mark.root]

SLEEP = ("/bin/busybox", "sleep", "1000")


@asynccontextmanager
async def watching(daemon: Daemon) -> AsyncIterator[Heard]:
    """watch() in the background, in step from the start."""
    heard = Heard()

    async def run() -> None:
        await watch(str(daemon.socket), heard.emit, pace=Pace(retry_max_s=0.1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await heard.wait(Synced)
        yield heard
        tasks.cancel_scope.cancel()


async def test_answers_of_the_real_server(daemon: Daemon, name: str, rootfs: Path) -> None:
    """Version, uuid, namespaces, the record with its spec, and None for what is not there."""
    spec = make_spec(rootfs, SLEEP, env=["NVIDIA_VISIBLE_DEVICES=0"])
    await anyio.to_thread.run_sync(daemon.create, name, spec, "k8s.io")
    key = ContainerKey(str(daemon.socket), "k8s.io", name)
    async with Containerd(str(daemon.socket)) as client:
        assert (await client.version())[0].isdecimal()
        assert await client.server_uuid()
        assert "k8s.io" in await client.namespaces()
        record = await client.get(key)
        assert record is not None
        assert record in await client.containers("k8s.io")
        assert await client.get(ContainerKey(key.address, "k8s.io", "absent")) is None
        assert await client.tasks("no-such-namespace") == ()
    assert "NVIDIA_VISIBLE_DEVICES=0" in json.loads(record.spec)["process"]["env"]
    assert record.created_ns > 0
    assert record.runtime.startswith("io.containerd.runc")


async def test_the_life_of_a_container(daemon: Daemon, name: str, rootfs: Path) -> None:
    """Created, started, relabelled, ended, deleted: each is told once and in this order."""
    async with watching(daemon) as heard:
        await anyio.to_thread.run_sync(daemon.run, name, make_spec(rootfs, SLEEP))
        (started,) = await heard.wait(TaskStarted)
        os.kill(started.pid, signal.SIGKILL)
        (exited,) = await heard.wait(TaskExited)
        await anyio.to_thread.run_sync(daemon.ctr, "container", "label", name, "a=b")
        (updated,) = await heard.wait(ContainerUpdated)
        await anyio.to_thread.run_sync(daemon.remove, name)
        await heard.wait(ContainerDeleted)
    kinds = [ContainerCreated, TaskStarted, TaskExited, ContainerUpdated, ContainerDeleted]
    told = [type(e) for e in heard.events if type(e) in kinds]
    assert told == kinds
    assert (exited.pid, exited.status) == (started.pid, 137)
    assert ("a", "b") in updated.record.labels


async def test_containerd_is_killed_and_comes_back(daemon: Daemon, name: str, rootfs: Path) -> None:
    """One Disconnected; then a list that has the container, whose process lived on."""
    await anyio.to_thread.run_sync(daemon.run, name, make_spec(rootfs, SLEEP))
    async with watching(daemon) as heard:
        await heard.wait(TasksListed)
        await anyio.to_thread.run_sync(daemon.stop, signal.SIGKILL)
        await heard.wait(Disconnected)
        await anyio.to_thread.run_sync(daemon.start)
        first, again = await heard.wait(Synced, 2)
        _, tasks = await heard.wait(TasksListed, 2)
    assert name in [c.key.id for c in again.containers]
    assert first.containers == again.containers
    assert name in [t.key.id for t in tasks.tasks if t.status == "running"]
    before, after = heard.all(Connected)
    assert before.server_uuid == after.server_uuid
    assert [e.reason.partition(":")[0] for e in heard.all(Disconnected)] == ["absent"]


@contextmanager
def creating(daemon: Daemon, name: str, rootfs: Path) -> Iterator[int]:
    """A container inside `runc create`, held by its hook until the yielded fd is closed."""
    gate = daemon.home / f"{name}.gate"
    os.mkfifo(gate)
    hook = create_hook("/bin/sh", "-c", f"read line < {gate} || true")
    spec = daemon.home / f"{name}.held.json"
    spec.write_text(json.dumps(make_spec(rootfs, SLEEP, hooks=hook)))
    command = ["ctr", "--address", str(daemon.socket), "run", "--detach", "--null-io"]
    with subprocess.Popen([*command, "--config", str(spec), name]) as process:
        try:
            yield open_when_read(gate, process)
        finally:
            assert process.wait(30) == 0


def open_when_read(gate: Path, process: subprocess.Popen[bytes]) -> int:
    """The writing end of a fifo, once somebody reads it; fails if `process` ends before."""
    while True:
        try:
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as e:
            if e.errno != errno.ENXIO:
                raise
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"ended with {process.wait(0.02)} before its hook ran")


async def test_no_waiting_for_a_container_in_its_hook(
    daemon: Daemon, name: str, rootfs: Path
) -> None:
    """A container whose create hook waits is listed at once; the tasks come when they can."""
    with creating(daemon, name, rootfs) as gate:
        async with watching(daemon) as heard:
            (synced,) = heard.all(Synced)
            assert name in [c.key.id for c in synced.containers]
            assert heard.all(TasksListed) == []
            os.close(gate)
            await heard.wait(TasksListed)
            await heard.wait(TaskStarted)
