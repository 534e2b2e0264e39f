"""The binaries of a simulated host: gcc once per kind, then each file is a patched copy.

A compiled template holds placeholders for its SONAME, name and version; writing over them gives
every library its own identity without a compiler run. Refuses to go on without gcc or ldconfig.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from contrib.simhost.record import SimHostError

HERE = Path(__file__).parent
LIBRARY_SOURCE = HERE / "library.c"
PROGRAM_SOURCE = HERE / "program.c"
NVML_SOURCE = HERE.parents[1] / "tests" / "nvml_stub" / "nvml_stub.c"

SONAME = "lib-simhost-" + "soname-" * 12 + ".so"
TOOL_TIMEOUT_S = 60
SMALL = ("-Os", "-s", "-Wl,-z,noseparate-code", "-Wl,--build-id=none")
SHARED = ("-shared", "-fPIC", f"-Wl,-soname,{SONAME}", *SMALL)


@dataclass(frozen=True, slots=True)
class Identity:
    """What is written into a copy of a template."""

    name: str
    version: str
    soname: str = ""
    answers: str = ""


def library(identity: Identity, *, bits: int = 64) -> bytes:
    """A shared library without dependencies; `bits` is 64 or 32."""
    flags = ("-m32",) if bits == 32 else ()
    return patched(compiled(LIBRARY_SOURCE, (*SHARED, "-nostdlib", *flags)), identity)


def nvml_library(identity: Identity) -> bytes:
    """The NVML stub under that identity; `answers` is the file that it reads by default."""
    return patched(compiled(NVML_SOURCE, SHARED), identity)


def program(identity: Identity) -> bytes:
    """A program; static where the static libc is installed, so that any image can run it."""
    try:
        template = compiled(PROGRAM_SOURCE, ("-static", *SMALL))
    except SimHostError:
        template = compiled(PROGRAM_SOURCE, SMALL)
    return patched(template, identity)


@cache
def compiled(source: Path, flags: tuple[str, ...]) -> bytes:
    """The file that gcc makes of `source`; raises SimHostError with gcc's first complaint."""
    with tempfile.TemporaryDirectory(prefix="simhost-") as scratch:
        out = Path(scratch) / "out"
        run_tool("gcc", *flags, "-o", str(out), str(source))
        return out.read_bytes()


def patched(template: bytes, identity: Identity) -> bytes:
    """`template` with its placeholders overwritten, its size unchanged."""
    data = template
    for old, new in (
        (SONAME, identity.soname),
        ("@NAME@" + "\0" * 90, identity.name),
        ("@VERSION@" + "\0" * 90, identity.version),
        ("@ANSWERS@" + "\0" * 900, identity.answers),
    ):
        if len(new.encode()) > len(old):
            raise SimHostError(identity.name, f"too long for its place: {new[:80]}")
        data = data.replace(old.encode(), new.encode().ljust(len(old), b"\0"))
    return data


def loader_cache(root: Path) -> None:
    """Make `root`/etc/ld.so.cache with the real ldconfig, leaving links as recorded."""
    run_tool("ldconfig", "-r", str(root), "-X")


def run_tool(name: str, *arguments: str) -> None:
    """Run a tool; raises SimHostError when it is missing or fails."""
    path = shutil.which(name, path="/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin")
    if path is None:
        raise SimHostError(name, "not installed, needed to build a simulated host")
    done = subprocess.run(
        [path, *arguments], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise SimHostError(name, done.stderr.strip().partition("\n")[0] or "failed")
