"""Hooks that stand before and after ours in cgroup v2: note the device programs, or add one.

    python -m tests.kernel.device_filter note FILE    append the attached programs' ids
    python -m tests.kernel.device_filter add          attach a program of another owner

The added program refuses every character device but those of majors 1, 5 and 136, `mknod`
included, so that it refuses the stand-ins of a simulated host.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from pathlib import Path

from hooks import syscalls
from hooks.cfunction import buffer
from tests.containers.cgroup2 import CGROUPS, device_programs
from tests.containers.spec import Json

REPOSITORY = Path(__file__).parents[2]
PROG_LOAD, PROG_ATTACH = 5, 8
CGROUP_DEVICE_PROGRAM, CGROUP_DEVICE = 15, 6
ALLOW_MULTI = 2
LOAD_MAJOR = (0x61, 0x12, 4, 0)  # r2 = context.major
RETURN = (0x95, 0, 0, 0)


def entry(*arguments: str) -> Json:
    """The hook entry that runs this module with `arguments`."""
    args = [sys.executable, "-m", "tests.kernel.device_filter", *arguments]
    return {"path": sys.executable, "args": args, "env": [f"PYTHONPATH={REPOSITORY}"]}


def strict() -> bytes:
    """The program: r0 = 1 for the three majors, else 0."""
    majors = (1, 5, 136)
    code = [LOAD_MAJOR]
    # From each comparison over the rest and over "refuse" to "allow".
    code += [(0x15, 2, len(majors) - i + 1, m) for i, m in enumerate(majors)]
    code += [(0xB7, 0, 0, 0), RETURN, (0xB7, 0, 0, 1), RETURN]
    return b"".join(struct.pack("<BBhi", *instruction) for instruction in code)


def add(cgroup: Path) -> None:
    """Attach the strict program beside those that are there."""
    code = ctypes.create_string_buffer(strict())
    licence = ctypes.create_string_buffer(b"Apache")
    attributes = buffer(128)
    count = (len(code) - 1) // 8
    addresses = (ctypes.addressof(code), ctypes.addressof(licence))
    struct.pack_into("IIQQ", attributes, 0, CGROUP_DEVICE_PROGRAM, count, *addresses)
    program = syscalls.bpf(PROG_LOAD, attributes)
    directory = os.open(cgroup, os.O_RDONLY)
    attributes = buffer(128)
    struct.pack_into("IIII", attributes, 0, directory, program, CGROUP_DEVICE, ALLOW_MULTI)
    syscalls.bpf(PROG_ATTACH, attributes)


def cgroup_of(pid: int) -> Path:
    """The v2 cgroup of a process."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    relative = next(line for line in lines if line.startswith("0::")).removeprefix("0::/")
    return CGROUPS / relative


def main(arguments: list[str]) -> None:
    """Do what the arguments say for the container whose state comes on stdin."""
    cgroup = cgroup_of(json.load(sys.stdin)["pid"])
    if arguments[0] == "add":
        add(cgroup)
    else:
        with open(arguments[1], "a") as file:
            print(*device_programs(cgroup), file=file)


if __name__ == "__main__":
    main(sys.argv[1:])
