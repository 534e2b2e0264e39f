"""Notice that the host may have changed: inotify where it works, a cheap poll where it does not.

It decides nothing about the change: it says that there was one and why, and somebody reads the
host again. More watchers (uevents, NVML events) stand beside this one with the same `emit`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import watchfiles

from agent.catalog import load
from agent.errors import one_line
from agent.facts.root import HostRoots
from agent.missingnodes import DRAFT

log = logging.getLogger(__name__)

Emit = Callable[[str], Awaitable[None]]
Present = list[tuple[str, int, int]]

POLL_S = 0.8
CONTENT_LIMIT = 1 << 16
STEP_MS = 180
"""A burst of changes ends when nothing happened for so long (ms). A thread wakes as often all the
time: each wake-up a second is 0.01 % of a core."""
DEBOUNCE_MS = 1600
"""And is reported after so long anyway (ms)."""
POLLING_S = 60.0
"""How long to go without inotify before it is tried again."""
PREFIX = "nvidia"


async def watch_files(directories: Callable[[], Iterable[str]], emit: Emit) -> None:
    """Report changes in the directories of the moment, until cancelled.

    `directories` is asked again and again, because driver directories come and go; those that
    do not exist are left out. When they have changed that is reported too, after the new ones
    are watched: what was put into a directory before may have gone unseen.
    """
    again = False
    while True:
        present = await anyio.to_thread.run_sync(_existing, directories)
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            if again:
                group.start_soon(_report_later, present, emit)
            group.start_soon(_stop_on_other_directories, directories, present, stop)
            if present:
                await _watch_until([path for path, *_ in present], stop, emit)
            await stop.wait()
            group.cancel_scope.cancel()
        again = True


async def watch_proc(
    proc_root: str,
    emit: Emit,
    interval_s: float = POLL_S,
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Report changes of the driver's procfs, until cancelled; procfs has no inotify.

    It has started when it has seen what it compares with.
    """
    seen = await anyio.to_thread.run_sync(fingerprint, proc_root)
    task_status.started()
    while True:
        await anyio.sleep(interval_s)
        now = await anyio.to_thread.run_sync(fingerprint, proc_root)
        if now != seen:
            seen = now
            await emit("the driver's procfs changed")


def fingerprint(proc_root: str) -> bytes:
    """A hash over what a driver change shows first: version, majors, GPUs, MIG instances.

    Synchronous; a few small reads and directory listings, about 0.2 ms on an 8-GPU host.
    """
    state = hashlib.blake2b(digest_size=16)
    driver = Path(proc_root) / "driver/nvidia"
    for file in (driver / "version", driver / "params", Path(proc_root) / "devices"):
        state.update(_content(file))
    for gpu in _names(driver / "gpus"):
        state.update(gpu.encode() + _content(driver / "gpus" / gpu / "information"))
    for gpu in _names(driver / "capabilities"):
        mig = driver / "capabilities" / gpu / "mig"
        for instance in _names(mig):
            state.update(f"{gpu}/{instance}:{_names(mig / instance)}".encode())
    return state.digest()


def watched_directories(
    roots: HostRoots, libraries: Callable[[], Iterable[str]]
) -> Callable[[], list[str]]:
    """What `watch_files` shall watch: loader cache, nodes, daemons, library directories.

    `libraries` gives the directories in which the current inventory found libraries.
    """
    root = roots.driver_root.rstrip("/")
    dev = roots.dev_root.rstrip("/") + "/dev"
    fixed = [
        f"{root}/etc",
        dev,
        *(f"{dev}/{name}" for name in ("nvidia-caps", "dri", "nvidia-caps-imex-channels")),
        *(f"{root}/run/nvidia-{daemon}" for daemon in ("persistenced", "fabricmanager")),
        # Without a driver nothing tells in which of them its libraries will appear.
        *(f"{root}{directory}" for directory in (*roots.library_dirs, *load().library_dirs)),
    ]
    return lambda: [*fixed, *libraries()]


def matters(change: watchfiles.Change, path: str) -> bool:
    """Whether a changed path can change an inventory; /etc, /dev and library dirs are busy."""
    folder, _, name = path.rpartition("/")
    parent = folder.rpartition("/")[2]
    if parent == "etc":
        return name == "ld.so.cache"
    if name.startswith(DRAFT):
        return False  # of our own; the finished node is another change
    named = PREFIX in name or parent.startswith(PREFIX)
    return named or name.startswith(("libcuda", "libnv", "card", "render")) or ".so" in name


async def _watch_until(paths: list[str], stop: anyio.Event, emit: Emit) -> None:
    """Watch until `stop`, or set it where a directory went away or cannot be watched."""
    try:
        async for changed in watchfiles.awatch(
            *paths,
            watch_filter=matters,
            debounce=DEBOUNCE_MS,
            step=STEP_MS,
            stop_event=stop,
            recursive=False,
            ignore_permission_denied=True,
        ):
            names = sorted(path for _, path in changed)
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            await emit(f"{names[0]} changed{more}")
    except FileNotFoundError:
        # Gone between the listing and the watch; the next round leaves it out.
        await anyio.sleep(POLL_S)
        stop.set()
    except (OSError, RuntimeError) as e:
        # Other programs may have taken all of the user's inotify instances or watches.
        log.warning("no inotify, polling", extra={"error": one_line(str(e))})
        await _poll_until(paths, stop, emit)


async def _poll_until(paths: list[str], stop: anyio.Event, emit: Emit) -> None:
    """The same without inotify: a directory's own time tells of names that come and go."""
    seen = await anyio.to_thread.run_sync(_times, paths)
    end = time.monotonic() + POLLING_S
    while not stop.is_set() and time.monotonic() < end:
        await anyio.sleep(2 * POLL_S)
        now = await anyio.to_thread.run_sync(_times, paths)
        if now != seen:
            seen = now
            await emit("a watched directory changed")
    stop.set()


async def _report_later(present: Present, emit: Emit) -> None:
    await anyio.sleep(POLL_S)
    await emit(f"the {len(present)} watched directories are others")


async def _stop_on_other_directories(
    directories: Callable[[], Iterable[str]], present: Present, stop: anyio.Event
) -> None:
    try:
        # A directory that does not exist yet can only be looked for again and again.
        while await anyio.to_thread.run_sync(_existing, directories) == present:  # noqa: ASYNC110
            await anyio.sleep(2 * POLL_S)
    finally:
        # Also when cancelled: watchfiles waits for events in a thread that only this wakes.
        stop.set()


def _existing(directories: Callable[[], Iterable[str]]) -> Present:
    """(path, device, inode) of each; one that was replaced is another one."""
    found = set()
    for directory in directories():
        try:
            info = os.stat(directory)
        except OSError:
            continue
        if stat.S_ISDIR(info.st_mode):
            found.add((directory, info.st_dev, info.st_ino))
    return sorted(found)


def _times(paths: Iterable[str]) -> list[int]:
    times = []
    for path in paths:
        try:
            times.append(os.stat(path).st_mtime_ns)
        except OSError:
            times.append(0)
    return times


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _content(path: Path) -> bytes:
    # Not read_bytes: this runs every second for ever, and a buffered file costs four more calls.
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b"absent"
    try:
        return os.read(fd, CONTENT_LIMIT)
    except OSError:
        return b"absent"
    finally:
        os.close(fd)
