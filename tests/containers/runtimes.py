"""The OCI runtimes that tests run containers with: the machine's, and those of other releases.

runc and crun come from PATH. Older and newer ones are Debian's of other releases, unpacked into
a cache with the C library that they were built for (`tests.debian_pool`). Each is asked for its
version, so that a table of what was tested needs no guess.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests import debian_pool
from tests.containers.cgroup2 import is_unified, pure_v1_prefix
from tests.debian_pool import NotObtainable, Release, unpacked

LIBRARIES = "usr/lib/x86_64-linux-gnu"
CACHE = debian_pool.CACHE / "runtimes"
PRELOAD = Path(__file__).with_name("memlock.c")
COMMON = ("libc6", "libseccomp2", "libsystemd0", "libcap2", "libjson-c5")
PACKAGES = {
    "trixie": ("runc", "crun", "containerd", *COMMON, "libyajl2"),
    "sid": ("runc", "crun", "containerd", *COMMON, "libblake3-0"),
}
PROGRAMS = ("usr/sbin/runc", "usr/bin/crun")
RUNTIMES = ("runc", "crun")
OTHER_RUNTIMES = tuple(f"{kind}-{codename}" for codename in PACKAGES for kind in RUNTIMES)


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime's `program`; `prefix` is the command that prepares what it wants to see."""

    program: str
    prefix: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """What to run in its place."""
        return (*self.prefix, self.program)


def find_runtime(name: str, work: Path) -> Runtime:
    """The runtime `runc` or `crun`, or of a release: `runc-sid`. Raises NotObtainable.

    `work` is a directory for what has to be built.
    """
    kind, _, codename = name.partition("-")
    if codename:
        program: str | None = str(other_release(codename) / PROGRAMS[RUNTIMES.index(kind)])
    else:
        program = shutil.which(kind)
    if program is None:
        raise NotObtainable(f"not installed: {kind}")
    return Runtime(program, _crun_prefix(work) if kind == "crun" else ())


def other_release(codename: str) -> Path:
    """The root with a release's runtimes and containerd. Raises NotObtainable."""
    home = CACHE / codename
    return unpacked(home, Release(codename), PACKAGES[codename], _bind_to_own_library)


def _crun_prefix(work: Path) -> tuple[str, ...]:
    if not is_unified():
        return tuple(pure_v1_prefix())
    raised = subprocess.run(["prlimit", "--memlock=unlimited:unlimited", "true"], check=False)
    if raised.returncode == 0:
        return ()
    library = work / "memlock.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(PRELOAD)]
    subprocess.run(command, check=True, timeout=60)
    return ("env", f"LD_PRELOAD={library}")


def _bind_to_own_library(root: Path) -> None:
    """Make the programs use the loader and libraries beside them: the machine's are older."""
    tools = unpacked(CACHE / "patchelf", Release("bookworm"), ("patchelf",), lambda _: None)
    own = root / LIBRARIES
    loader = ("--set-interpreter", str(own / "ld-linux-x86-64.so.2"))
    for name in PROGRAMS:
        # DT_RPATH, not RUNPATH: the libraries' own needs must be met here too.
        options = (*loader, "--force-rpath", "--set-rpath", str(own))
        patch = [str(tools / "usr/bin/patchelf"), *options, str((root / name).resolve())]
        subprocess.run(patch, check=True, timeout=60)
