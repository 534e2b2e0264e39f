"""A tiny glibc image that programs really run in: a root directory, built from the host's files.

It has a shell, the C library, a loader cache made by the real `ldconfig`, and two probes
(`probe-dlopen`, `probe-open`) that say from inside what the loader and the kernel do. It is no
distribution: no package manager, no users beyond root.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from platform import machine

SOURCES = Path(__file__).parent
TRIPLET = f"{machine()}-linux-gnu"
APPLETS = (
    *("sh", "cat", "chmod", "cp", "date", "echo", "env", "false", "find", "grep", "head", "id"),
    *("kill", "ln", "ls", "mkdir", "mknod", "mount", "mv", "ps", "readlink", "rm", "sed"),
    *("sleep", "sort", "stat", "tail", "test", "touch", "true", "umount", "uname", "wc"),
)
# What the driver's libraries need besides the C library itself.
C_LIBRARIES = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
MERGED = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
FILLER_SONAME = "libfiller0000.so.1"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an image keeps its libraries, and whether it says that it is Debian."""

    libraries: str
    debian: bool


DEBIAN = Layout(f"usr/lib/{TRIPLET}", debian=True)
LIB64 = Layout("usr/lib64", debian=False)


def missing_tools() -> str:
    """Why no image can be built here, or an empty string."""
    absent = [t for t in ("gcc", "busybox", "ldconfig", "ldd", "runc") if shutil.which(t) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def build_image(root: Path, layout: Layout = DEBIAN, *, fillers: int = 0) -> Path:
    """Build an image in the new directory `root`; `fillers` more libraries fill its cache."""
    for directory in (
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
        layout.libraries,
        "etc",
        "dev",
    ):
        (root / directory).mkdir(parents=True, exist_ok=True)
    for directory in ("proc", "sys", "tmp", "run", "root", "var", "etc/ld.so.conf.d"):
        (root / directory).mkdir()
    for name, target in MERGED.items():
        (root / name).symlink_to(target)
    _write_etc(root, layout)
    _install_busybox(root)
    probe = _compile("probe_dlopen.c", root / "usr/bin/probe-dlopen")
    _compile("probe_open.c", root / "usr/bin/probe-open")
    _install_c_library(root, layout, probe)
    _install_fillers(root / layout.libraries, fillers)
    subprocess.run(["ldconfig", "-r", str(root)], check=True, timeout=30)
    return root


@functools.cache
def session_image(layout: Layout = DEBIAN) -> Path:
    """The image of this test session, built once. Read-only by agreement: copy or overlay it."""
    home = tempfile.mkdtemp(prefix="gpu-agent-image-")
    atexit.register(shutil.rmtree, home)
    os.chmod(home, 0o711)  # a container's mapped root must be able to pass through
    return build_image(Path(home) / "root", layout)


def copy_image(image: Path, root: Path, *, owner: int = 0) -> Path:
    """A private copy of `image` at the new directory `root`; all of it belongs to `owner`."""
    shutil.copytree(image, root, symlinks=True)
    if owner:
        for directory, names, files in os.walk(root):
            for path in (directory, *(os.path.join(directory, n) for n in names + files)):
                os.lchown(path, owner, owner)
    return root


def _write_etc(root: Path, layout: Layout) -> None:
    etc = root / "etc"
    if layout.debian:
        (etc / "debian_version").write_text("12.0\n")
    (etc / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (etc / "group").write_text("root:x:0:\n")
    (etc / "ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (etc / "ld.so.conf.d/image.conf").write_text(f"/{layout.libraries}\n")


def _install_busybox(root: Path) -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None, missing_tools()
    shutil.copy(busybox, root / "usr/bin/busybox")
    for applet in APPLETS:
        (root / "usr/bin" / applet).symlink_to("busybox")


def _compile(source: str, target: Path, *flags: str) -> Path:
    command = ["gcc", "-O1", "-s", *flags, "-o", str(target), str(SOURCES / source)]
    subprocess.run(command, check=True, timeout=60)
    return target


def _install_c_library(root: Path, layout: Layout, program: Path) -> None:
    answer = subprocess.run(["ldd", str(program)], check=True, capture_output=True, text=True)
    words = answer.stdout.split()
    host = Path(next(w for w in words if w.endswith("/libc.so.6"))).parent
    # The loader's path is written into every program, so it cannot follow the layout.
    loader = next(w for w in words if w.startswith("/") and "/ld-linux" in w)
    shutil.copy(loader, root / loader.lstrip("/"))
    for name in C_LIBRARIES:
        if (host / name).exists():
            shutil.copy(host / name, root / layout.libraries / name)
    # Where ldconfig is a shell script, the program stands beside it.
    for name in ("/sbin/ldconfig.real", "/sbin/ldconfig"):
        if os.path.exists(name):
            shutil.copy(name, root / "usr/sbin/ldconfig")
            break


def _install_fillers(directory: Path, count: int) -> None:
    if not count:
        return
    soname = f"-Wl,-soname,{FILLER_SONAME}"
    first = _compile("filler.c", directory / FILLER_SONAME, "-shared", "-nostdlib", soname)
    content = first.read_bytes()
    for number in range(1, count):
        name = f"libfiller{number:04}.so.1"
        (directory / name).write_bytes(content.replace(FILLER_SONAME.encode(), name.encode()))
