"""Time, CPU and memory of a process, as the kernel counts them. Nothing is sampled."""

from __future__ import annotations

import os
import select
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_S = os.sysconf("SC_CLK_TCK")
CPUCLOCK_SCHED = 2


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used so far: CPU with that of its ended children, resident memory."""

    cpu_s: float
    rss_mib: float


def usage(pid: int) -> Usage:
    """The usage of a running process. Raises OSError if it is gone."""
    # The kernel's number for the CPU clock of all threads of another process: /proc has only
    # hundredths of a second, which is too coarse for an agent at rest.
    own_s = time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)
    # The name in parentheses may hold blanks; what follows the last parenthesis does not.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children_s = (int(fields[13]) + int(fields[14])) / TICKS_S
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return Usage(own_s + children_s, kib / 1024)


def run_ms(*command: str) -> float:
    """Milliseconds of a program from its start to its end. Raises CalledProcessError."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    # Popen.wait with a timeout would poll with growing sleeps.
    ended = os.pidfd_open(process.pid)
    try:
        select.select([ended], [], [])
        took = (time.perf_counter() - start) * 1000
    finally:
        os.close(ended)
        process.wait()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return took
