"""What a directory tree and the host's mount table hold, to compare before and after."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from agent.plan import BindFile, BindIpc, BindNode, Place, Plan, Step
from tests.containers.workdir import is_of_another_run

Seen = tuple[int, int, int, int, int, bytes]


def snapshot(root: Path) -> dict[str, Seen]:
    """Every path below `root`: inode, mode, owner, number or size, mtime, content or target.

    The root itself is in it: an entry that was made and removed again shows in its time.
    """
    found = {}
    for directory, names, files in os.walk(root):
        for name in (".", *names, *files):
            path = os.path.join(directory, name)
            found[os.path.relpath(path, root)] = _seen(path)
    return found


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """The same without inodes and times: what a program in the container could tell apart."""
    return {path: (seen[1], seen[5]) for path, seen in snapshot(root).items()}


def host_mounts() -> list[str]:
    """The mount table of this namespace, less what other test runs have in their directories."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if not is_of_another_run(Path(line.split(" ")[4]))]


def placed(plan: Plan, libs: str) -> dict[str, tuple[str, str]]:
    """Container path to (source, options) of every bind of `plan`, with `libs` as its place."""
    return dict(found for step in plan.steps for found in _bind(step, libs))


def _bind(step: Step, libs: str) -> list[tuple[str, tuple[str, str]]]:
    match step:
        case BindFile(place=Place.ABSOLUTE):
            return [(step.target, (step.file.path, step.options))]
        case BindFile(place=Place.LIBS):
            return [(f"/{libs}/{step.target}", (step.file.path, step.options))]
        case BindNode():
            return [(step.node.target, (step.node.source, "ro,nosuid,noexec"))]
        case BindIpc():
            return [(step.ipc.target, (step.ipc.source, "nosuid,nodev,noexec"))]
        case _:
            return []


def _seen(path: str) -> Seen:
    found = os.lstat(path)
    content = b""
    if stat.S_ISLNK(found.st_mode):
        content = os.readlink(os.fsencode(path))
    elif stat.S_ISREG(found.st_mode):
        content = Path(path).read_bytes()
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return found.st_ino, found.st_mode, found.st_uid, size, found.st_mtime_ns, content
