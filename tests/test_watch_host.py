"""The host watcher: real inotify and real polling on a small tree of a driver's places."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import pytest
import watchfiles

from agent.facts.root import HostRoots
from agent.watch import host as watch
from agent.watch.host import fingerprint, matters, watch_files, watch_proc, watched_directories
from tests.host_trees import LIB64, plant, version_text

WAIT_S = 20.0


@dataclass
class Heard:
    """What a watcher reported, and a way to wait for the next report."""

    reports: list[str] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)

    async def emit(self, why: str) -> None:
        self.reports.append(why)
        self.news.set()

    async def next(self) -> str:
        """The first report since the last call, within WAIT_S."""
        with anyio.fail_after(WAIT_S):
            await self.news.wait()
        self.news = anyio.Event()
        found, self.reports = self.reports, []
        return "; ".join(found)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant(
        tmp_path / "root",
        {
            "etc/ld.so.cache": "old",
            "etc/passwd": "",
            "dev/nvidiactl": "",
            f"{LIB64}/libcuda.so.1": "",
            "proc/driver/nvidia/version": version_text(),
            "proc/driver/nvidia/params": "ModifyDeviceFiles: 1\n",
            "proc/driver/nvidia/gpus/0000:3b:00.0/information": "Device Minor: 0\n",
            "proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access": "",
            "proc/devices": "195 nvidia\n",
        },
    )


def directories(root: Path) -> Callable[[], list[str]]:
    roots = HostRoots(str(root), str(root), f"{root}/proc", f"{root}/sys", ("/opt/driver",))
    return watched_directories(roots, lambda: [])


@asynccontextmanager
async def watching(root: Path) -> AsyncIterator[Heard]:
    """A watcher of the tree whose inotify is known to work, with nothing of its own on the way."""
    heard = Heard()
    async with anyio.create_task_group() as group:
        group.start_soon(watch_files, directories(root), heard.emit)
        with anyio.fail_after(WAIT_S):
            while not heard.reports:
                (root / "etc/ld.so.cache").touch()
                with anyio.move_on_after(0.2):
                    await heard.news.wait()
        (root / "dev/nvidia-probe").touch()
        while "nvidia-probe" not in await heard.next():
            pass
        yield heard
        group.cancel_scope.cancel()


def replaced(path: Path, content: str) -> None:
    """The file with new content, by rename, as ldconfig and package managers do it."""
    new = path.with_name(f"{path.name}~")
    new.write_text(content)
    new.rename(path)


CHANGES: tuple[tuple[str, Callable[[Path], object], str], ...] = (
    ("cache", lambda r: replaced(r / "etc/ld.so.cache", "new"), "etc/ld.so.cache"),
    (
        "library",
        lambda r: (r / LIB64 / "libnvidia-new.so.5").touch(),
        f"{LIB64}/libnvidia-new.so.5",
    ),
    ("library gone", lambda r: (r / LIB64 / "libcuda.so.1").unlink(), f"{LIB64}/libcuda.so.1"),
    ("node", lambda r: (r / "dev/nvidia0").touch(), "dev/nvidia0"),
    ("node gone", lambda r: (r / "dev/nvidiactl").unlink(), "dev/nvidiactl"),
    ("caps", lambda r: (r / "dev/nvidia-caps").mkdir(), "dev/nvidia-caps"),
)


@pytest.mark.parametrize(("what", "change", "path"), CHANGES, ids=[c[0] for c in CHANGES])
def test_change_is_reported(
    root: Path, what: str, change: Callable[[Path], object], path: str
) -> None:
    """What can change an inventory is reported by name."""

    async def body() -> None:
        async with watching(root) as heard:
            change(root)
            assert f"{root}/{path} changed" in await heard.next(), what

    anyio.run(body)


def test_unrelated_files_are_not_reported(root: Path) -> None:
    """/etc and /dev are busy with other things; the next report is of ours alone."""

    async def body() -> None:
        async with watching(root) as heard:
            for name in (
                "etc/passwd",
                "etc/resolv.conf",
                "etc/ld.so.cache~",
                "dev/null",
                "dev/sda",
            ):
                (root / name).write_text("new")
            replaced(root / "etc/passwd", "newer")
            (root / "dev/nvidia7").touch()
            assert await heard.next() == f"{root}/dev/nvidia7 changed"

    anyio.run(body)


def test_burst_is_few_reports(root: Path) -> None:
    """200 files replaced one after the other, as an upgrade does, are a handful of reports."""

    async def body() -> None:
        async with watching(root) as heard:
            for n in range(200):
                replaced(root / LIB64 / f"libnvidia-{n}.so.1", "new")
                await anyio.sleep(0.002)  # a burst has a length
            seen = [await heard.next()]
            (root / "dev/nvidia0").touch()
            while "dev/nvidia0" not in seen[-1]:
                seen.append(await heard.next())
            assert "; ".join(seen).count(" changed") <= 5

    anyio.run(body)


def test_directory_that_comes_later_is_watched(root: Path) -> None:
    """A driver directory that appears is reported, and so is what happens in it from then on."""

    async def body() -> None:
        async with watching(root) as heard:
            (root / "opt/driver").mkdir(parents=True)
            assert "watched directories are others" in await heard.next()
            (root / "opt/driver/libcuda.so.1").touch()
            assert "opt/driver/libcuda.so.1 changed" in await heard.next()

    anyio.run(body)


def test_directory_replaced_by_another_is_watched(root: Path) -> None:
    """A driver container that starts anew has the same paths and other directories."""

    async def body() -> None:
        async with watching(root) as heard:
            (root / LIB64).rename(root / "usr/lib/old")
            (root / LIB64).mkdir()
            assert "watched directories are others" in await heard.next()
            (root / LIB64 / "libcuda.so.1").touch()
            assert f"{LIB64}/libcuda.so.1 changed" in await heard.next()

    anyio.run(body)


def test_all_directories_come_later(tmp_path: Path) -> None:
    """With nothing to watch at all the watcher waits for it to come."""

    async def body() -> None:
        heard = Heard()
        async with anyio.create_task_group() as group:
            group.start_soon(watch_files, directories(tmp_path / "root"), heard.emit)
            await anyio.wait_all_tasks_blocked()
            (tmp_path / "root/dev").mkdir(parents=True)
            assert "the 1 watched directories are others" in await heard.next()
            shutil.rmtree(tmp_path / "root")
            await heard.next()
            group.cancel_scope.cancel()

    anyio.run(body)


def test_watcher_ends_at_once(root: Path) -> None:
    """A cancelled watcher does not wait for events in its thread; the agent ends in time."""

    async def body() -> float:
        async with watching(root):
            began = anyio.current_time()
        return anyio.current_time() - began

    assert anyio.run(body) < 0.5


def test_without_inotify_it_polls(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the user's inotify instances are used up, changes are still found, and it is said."""

    def exhausted(*_: object, **__: object) -> None:
        raise OSError("Too many open files (os error 24)")

    monkeypatch.setattr(watchfiles, "awatch", exhausted)

    async def body() -> None:
        heard = Heard()
        async with anyio.create_task_group() as group:
            group.start_soon(watch_files, directories(root), heard.emit)
            with anyio.fail_after(WAIT_S):
                while "no inotify, polling" not in caplog.messages:
                    await anyio.wait_all_tasks_blocked()
            (root / "dev/nvidia0").touch()
            assert await heard.next() == "a watched directory changed"
            group.cancel_scope.cancel()

    anyio.run(body)


PROC_CHANGES: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("version", lambda p: (p / "driver/nvidia/version").write_text(version_text("550.54.15"))),
    ("driver gone", lambda p: shutil.rmtree(p / "driver")),
    ("majors", lambda p: (p / "devices").write_text("195 nvidia\n511 nvidia-uvm\n")),
    ("GPU", lambda p: (p / "driver/nvidia/gpus/0000:af:00.0").mkdir()),
    ("uuid", lambda p: (p / "driver/nvidia/gpus/0000:3b:00.0/information").write_text("x")),
    ("GPU instance", lambda p: (p / "driver/nvidia/capabilities/gpu0/mig/gi2").mkdir()),
    ("compute instance", lambda p: (p / "driver/nvidia/capabilities/gpu0/mig/gi1/ci1").mkdir()),
    ("params", lambda p: (p / "driver/nvidia/params").write_text("ModifyDeviceFiles: 0\n")),
)


@pytest.mark.parametrize(("what", "change"), PROC_CHANGES, ids=[c[0] for c in PROC_CHANGES])
def test_procfs_change_is_reported(root: Path, what: str, change: Callable[[Path], object]) -> None:
    """What the driver's procfs shows first of a change is found by polling, once."""

    async def body() -> None:
        heard = Heard()
        async with anyio.create_task_group() as group:
            await group.start(partial(watch_proc, str(root / "proc"), heard.emit, 0.01))
            change(root / "proc")
            assert await heard.next() == "the driver's procfs changed", what
            plant(root, {"proc/driver/nvidia/gpus/0000:d8:00.0/information": ""})
            assert await heard.next() == "the driver's procfs changed"
            group.cancel_scope.cancel()

    anyio.run(body)


def test_busy_parts_of_procfs_do_not_count(root: Path) -> None:
    """Files that change all the time are in no fingerprint."""
    before = fingerprint(str(root / "proc"))
    plant(root, {"proc/driver/nvidia/gpus/0000:3b:00.0/power": "on", "proc/uptime": "1"})
    assert fingerprint(str(root / "proc")) == before
    assert fingerprint(str(root / "absent")) != before


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc/ld.so.cache", True),
        ("/etc/ld.so.conf", False),
        ("/etc/nvidia-something", False),
        ("/dev/nvidia0", True),
        ("/dev/nvidia-caps/nvidia-cap1", True),
        ("/dev/nvidia-caps-imex-channels/channel0", True),
        ("/dev/dri/renderD128", True),
        ("/dev/null", False),
        ("/dev/tty1", False),
        ("/run/nvidia-persistenced/socket", True),
        ("/usr/lib/libcuda.so.1", True),
        ("/usr/lib/libfoo.so.580.1", True),
        ("/usr/lib/readme", False),
        ("/run/nvidia/driver/dev/null", False),
        ("/run/nvidia/driver/dev/nvidia0", True),
        ("/run/nvidia/driver/etc/passwd", False),
        ("/run/nvidia/driver/etc/ld.so.cache", True),
    ],
)
def test_what_matters(path: str, expected: bool) -> None:
    """Names decide, not where the driver root lies."""
    assert matters(watchfiles.Change.added, path) is expected


def test_directories_of_the_usual_places_are_watched() -> None:
    """Cache, nodes, daemons, configured and usual library directories, below their roots."""
    roots = HostRoots("/drv", "/", "/proc", "/sys", ("/opt/lib",))
    listed = watched_directories(roots, lambda: ["/where/found"])()
    for path in (
        *("/drv/etc", "/dev", "/dev/nvidia-caps", "/dev/dri", "/drv/run/nvidia-persistenced"),
        *("/drv/opt/lib", "/drv/usr/lib64", "/where/found"),
    ):
        assert path in listed
    assert "/dev" in watched_directories(HostRoots(), lambda: [])()


def test_waiting_is_short_enough() -> None:
    """A burst's end and the poll leave time for a new generation within a second or so."""
    assert watch.STEP_MS / 1000 + watch.POLL_S < 1
    assert watch.DEBOUNCE_MS < 2000
