"""Cgroup v2 for one test or one command, on a host that still has v1.

In a private mount namespace the v2 tree is mounted alone at /sys/fs/cgroup; runc and containerd
then work in v2 mode, with the BPF device filter. Only the device filter can be tested so: the
other controllers stay with the host's v1 hierarchies. On a v2 host nothing is emulated.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

import pytest

Params = ParamSpec("Params")

REPOSITORY = Path(__file__).parents[2]
CGROUPS = Path("/sys/fs/cgroup")
BPF_CALL = {"x86_64": 321, "aarch64": 280}
BPF_PROG_QUERY = 16
BPF_CGROUP_DEVICE = 6
NAMESPACE = ("unshare", "--mount", "--propagation", "private")
UNIFIED = CGROUPS / "unified"
ENTER = """
umount --recursive /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
exec "$@"
"""
LEAVE = f'umount {UNIFIED}; exec "$@"'


class QueryAttributes(ctypes.Structure):
    """The part of `union bpf_attr` that BPF_PROG_QUERY reads and writes."""

    _fields_ = (
        ("target_fd", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("query_flags", ctypes.c_uint32),
        ("attach_flags", ctypes.c_uint32),
        ("prog_ids", ctypes.c_uint64),
        ("prog_cnt", ctypes.c_uint32),
    )


def is_unified() -> bool:
    """Whether this mount namespace has the v2 tree alone at /sys/fs/cgroup."""
    return (CGROUPS / "cgroup.controllers").exists()


def unified_command(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` in v2 mode; itself, on a v2 host."""
    if is_unified():
        return list(command)
    return [*NAMESPACE, "sh", "-e", "-c", ENTER, "sh", *command]


def pure_v1_prefix() -> list[str]:
    """What goes before a command that must not see the v2 tree beside v1's; often nothing.

    crun refuses to start on a hybrid host. The v2 tree is hidden in a private mount namespace.
    """
    if is_unified() or not UNIFIED.is_dir():
        return []
    return [*NAMESPACE, "sh", "-e", "-c", LEAVE, "sh"]


def in_cgroup2(test: Callable[Params, None]) -> Callable[Params, None]:
    """Run a (synchronous) test in v2 mode: where needed by a second pytest in the namespace."""

    @functools.wraps(test)
    def wrapper(*args: Params.args, **kwargs: Params.kwargs) -> None:
        if is_unified():
            test(*args, **kwargs)
        else:
            rerun_unified(os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0])

    return wrapper


def rerun_unified(node: str) -> None:
    """Run the one test `node` in v2 mode; fails or skips as that run does."""
    options = ("-q", "-rs", "-m", "", "-p", "no:cacheprovider")
    command = unified_command([sys.executable, "-m", "pytest", *options, node])
    done = subprocess.run(
        command, check=False, cwd=REPOSITORY, capture_output=True, text=True, timeout=300
    )
    if skipped := re.search(r"^SKIPPED \[1\] (.*)$", done.stdout, re.MULTILINE):
        pytest.skip(skipped[1])
    if done.returncode or not re.search(r"^1 passed", done.stdout, re.MULTILINE):
        pytest.fail(f"in cgroup v2 mode:\n{done.stdout}{done.stderr}", pytrace=False)


def device_programs(cgroup: Path) -> tuple[int, ...]:
    """The ids of the BPF device filters attached to a v2 cgroup. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    ids = (ctypes.c_uint32 * 64)()
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        asked = QueryAttributes(
            target_fd=directory,
            attach_type=BPF_CGROUP_DEVICE,
            prog_ids=ctypes.addressof(ids),
            prog_cnt=len(ids),
        )
        number = BPF_CALL[platform.machine()]
        if libc.syscall(number, BPF_PROG_QUERY, ctypes.byref(asked), ctypes.sizeof(asked)):
            code = ctypes.get_errno()
            raise OSError(code, f"bpf: {os.strerror(code)}", str(cgroup))
    finally:
        os.close(directory)
    return tuple(ids[: asked.prog_cnt])
