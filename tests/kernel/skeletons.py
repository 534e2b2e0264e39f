"""Image skeletons: how distributions lay a root out, each with a program that loads the driver.

Only the layout is theirs (directories, links, loader, what is missing); the files are the host's.
A skeleton is a directory; `probe` is the command that loads libraries by SONAME in it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.containers.image import DEBIAN, LIB64, SOURCES, build_image

MUSL_LOADER = "lib/ld-musl-x86_64.so.1"
NEWER = "999.10"


def debian(root: Path) -> Path:
    """Multiarch directories, merged /usr."""
    return build_image(root, DEBIAN)


def fedora(root: Path) -> Path:
    """Everything in lib64."""
    build_image(root, LIB64)
    (root / "etc/fedora-release").write_text("Fedora release 41\n")
    return root


def suse(root: Path) -> Path:
    """lib64 for 64 bit, lib for 32, and /lib64 not merged with /usr."""
    build_image(root, LIB64)
    (root / "etc/os-release").write_text("ID=opensuse-leap\n")
    (root / "lib64").unlink()
    (root / "lib64").mkdir()
    for path in (root / "usr/lib64").glob("ld-linux*"):
        shutil.move(path, root / "lib64" / path.name)
    return root


def arch(root: Path) -> Path:
    """One directory: /usr/lib64, /lib and /lib64 are links to /usr/lib."""
    build_image(root, LIB64)
    libraries = root / "usr/lib64"
    (root / "lib").unlink()
    (root / "lib64").unlink()
    (root / "usr/lib").rmdir()
    shutil.move(libraries, root / "usr/lib")
    for name, target in (("usr/lib64", "lib"), ("lib", "usr/lib"), ("lib64", "usr/lib")):
        (root / name).symlink_to(target)
    (root / "etc/ld.so.conf.d/image.conf").write_text("/usr/lib\n")
    subprocess.run(["ldconfig", "-r", str(root)], check=True, timeout=30)
    return root


def alpine(root: Path) -> Path:
    """musl: another loader, which knows no cache."""
    for directory in ("bin", "dev", "etc", "lib", "proc", "sys", "tmp", "usr/lib", "usr/bin"):
        (root / directory).mkdir(parents=True)
    (root / "etc/alpine-release").write_text("3.20.0\n")
    shutil.copy(f"/{MUSL_LOADER}", root / MUSL_LOADER)
    program = root / "usr/bin/probe-dlopen"
    source = str(SOURCES / "probe_dlopen.c")
    command = ["musl-gcc", "-O1", "-s", "-o", str(program), source]
    subprocess.run(command, check=True, timeout=60)
    return root


def distroless(root: Path) -> Path:
    """Debian's libraries and nothing else: no shell, no ldconfig, no loader cache."""
    build_image(root, DEBIAN)
    for path in (root / "usr/bin").iterdir():
        if not path.name.startswith("probe-"):
            path.unlink()
    shutil.rmtree(root / "usr/sbin")
    for name in ("ld.so.cache", "ld.so.conf"):
        (root / "etc" / name).unlink()
    shutil.rmtree(root / "etc/ld.so.conf.d")
    return root


def scratch(root: Path) -> Path:
    """One static program and no directory but its own."""
    root.mkdir()
    command = ["gcc", "-O1", "-s", "-static", "-o", str(root / "probe")]
    subprocess.run([*command, str(SOURCES / "probe_open.c")], check=True, timeout=60)
    return root


def own_driver(root: Path) -> Path:
    """A CUDA image with a newer driver's libraries of its own, links and cache included."""
    build_image(root, DEBIAN)
    libraries = root / DEBIAN.libraries
    for stem in ("libcuda", "libnvidia-ml"):
        target = libraries / f"{stem}.so.{NEWER}"
        soname = f"-Wl,-soname,{stem}.so.1"
        command = ["gcc", "-shared", "-nostdlib", soname, "-o", str(target)]
        subprocess.run([*command, str(SOURCES / "filler.c")], check=True, timeout=60)
        (libraries / f"{stem}.so.1").symlink_to(target.name)
    # What an earlier start with another tool leaves behind: an empty file under a driver's name.
    (libraries / "libnvidia-cfg.so.1").touch()
    subprocess.run(["ldconfig", "-r", str(root)], check=True, timeout=30, capture_output=True)
    return root


SKELETONS: dict[str, Callable[[Path], Path]] = {
    made.__name__: made
    for made in (debian, fedora, suse, arch, alpine, distroless, scratch, own_driver)
}
