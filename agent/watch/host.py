"""Notice that the host may have changed: inotify where it works, a cheap poll where it does not.

It decides nothing about the change: it says that there was one and why, and somebody reads the
host again. More watchers (uevents, NVML events) stand beside this one with the same `emit`.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import anyio
import anyio.to_thread
import watchfiles

from agent.facts.root import HostRoots

log = logging.getLogger(__name__)

Emit = Callable[[str], Awaitable[None]]

POLL_S = 0.5
STEP_MS = 100
"""A burst of changes ends when nothing happened for so long (ms)."""
DEBOUNCE_MS = 1600
"""And is reported after so long anyway (ms)."""
PREFIX = "nvidia"


async def watch_files(directories: Callable[[], Iterable[str]], emit: Emit) -> None:
    """Report changes in the directories of the moment, until cancelled.

    `directories` is asked again after every change and every few seconds, because driver
    directories come and go; those that do not exist are left out.
    """
    while True:
        present = await anyio.to_thread.run_sync(_existing, directories)
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_on_other_directories, directories, present, stop)
            if present:
                await _watch_until(present, stop, emit)
            else:
                await stop.wait()
            group.cancel_scope.cancel()


async def watch_proc(proc_root: str, emit: Emit, interval_s: float = POLL_S) -> None:
    """Report changes of the driver's procfs, until cancelled; procfs has no inotify."""
    seen = await anyio.to_thread.run_sync(fingerprint, proc_root)
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
        *(f"{root}{directory}" for directory in roots.library_dirs),
    ]
    return lambda: [*fixed, *libraries()]


def matters(_: watchfiles.Change, path: str) -> bool:
    """Whether a changed path can change an inventory; /etc, /dev and library dirs are busy."""
    name = path.rpartition("/")[2]
    if "/etc/" in path:
        return name == "ld.so.cache"
    return (
        PREFIX in path or name.startswith(("libcuda", "libnv", "card", "render")) or ".so" in name
    )


async def _watch_until(present: list[str], stop: anyio.Event, emit: Emit) -> None:
    changes = watchfiles.awatch(
        *present,
        watch_filter=matters,
        debounce=DEBOUNCE_MS,
        step=STEP_MS,
        stop_event=stop,
        recursive=False,
        ignore_permission_denied=True,
    )
    try:
        async for changed in changes:
            paths = sorted(path for _, path in changed)
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            await emit(f"{paths[0]} changed{more}")
    except FileNotFoundError as e:
        # A directory went away between the listing and the watch; the next round leaves it out.
        log.info("watch restarted", extra={"error": str(e)})


async def _stop_on_other_directories(
    directories: Callable[[], Iterable[str]], present: list[str], stop: anyio.Event
) -> None:
    # A directory that does not exist yet can only be looked for again and again.
    while await anyio.to_thread.run_sync(_existing, directories) == present:  # noqa: ASYNC110
        await anyio.sleep(2 * POLL_S)
    stop.set()


def _existing(directories: Callable[[], Iterable[str]]) -> list[str]:
    return sorted({d for d in directories() if os.path.isdir(d)})


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b"absent"
