"""A short directory for one test, with the mounts below it.

Removing a tree below which a bind mount of the host has leaked would remove the host's files:
here everything is unmounted first, and nothing is removed while a mount remains.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARENT = Path(tempfile.gettempdir())
PREFIX = "gpu-agent-"
OWN = f"{PREFIX}{os.getpid()}-"


def is_of_another_run(path: Path) -> bool:
    """Whether `path` is in the directory of a test of another process."""
    if not path.is_relative_to(PARENT) or path == PARENT:
        return False
    name = path.relative_to(PARENT).parts[0]
    return name.startswith(PREFIX) and not name.startswith(OWN)


@contextmanager
def work_dir() -> Iterator[Path]:
    """A new directory under /tmp that a mapped root may pass through; gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix=OWN))
    path.chmod(0o711)
    try:
        yield path
    finally:
        unmount_below(path)
        shutil.rmtree(path)


@contextmanager
def overlay_root(image: Path, home: Path) -> Iterator[Path]:
    """A writable root over the unchanged `image`, as a snapshotter mounts it; `home` is new."""
    upper, scratch, merged = (home / name for name in ("upper", "work", "merged"))
    for directory in (upper, scratch, merged):
        directory.mkdir(parents=True)
    options = f"lowerdir={image},upperdir={upper},workdir={scratch}"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(merged)]
    subprocess.run(command, check=True, timeout=30)
    try:
        yield merged
    finally:
        unmount_below(home)
        shutil.rmtree(home)


def mounts_below(directory: Path) -> list[str]:
    """The mount points at or below `directory` in this namespace, deepest first."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            # The kernel writes blanks as octal escapes; our own directories have none.
            point = line.split(" ")[4]
            if Path(point).is_relative_to(directory):
                found.append(point)
    return found[::-1]


def unmount_below(directory: Path) -> None:
    """Detach every mount at or below `directory`. Raises OSError if one remains."""
    for point in mounts_below(directory):
        subprocess.run(["umount", "--lazy", point], check=False, timeout=30)
    if left := mounts_below(directory):
        raise OSError(f"unmount: {left[0]}: still mounted")
