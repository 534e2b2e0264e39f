"""Fixtures: a private containerd, and a root for its containers."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containerd.daemon import Daemon, why_not


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """grpc.aio runs on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_loop(anyio_backend: str) -> None:
    """One event loop to the end: gRPC's poller thread wakes the loop of calls long cancelled."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A containerd without CRI, one for each test file."""
    if reason := why_not():
        pytest.skip(reason)
    with Daemon() as running:
        yield running


@pytest.fixture
def name(daemon: Daemon) -> str:
    """An id that no other container on this machine has."""
    return f"gpu-agent-test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def rootfs(daemon: Daemon) -> Path:
    """A container root with nothing but busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("not installed: busybox")
    root = daemon.home / "rootfs"
    for directory in ("bin", "dev", "proc", "sys", "run"):
        (root / directory).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    return root
