"""A driver nobody here wrote: NVIDIA's user-space packages of Debian non-free, unpacked.

What the packages do when installed (alternatives, ldconfig) is done here for the unpacked root
only; `tests.debian_pool` has where they come from.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests import debian_pool
from tests.debian_pool import NotObtainable, Release, unpacked
from tests.host_trees import Tree, plant

CACHE = debian_pool.CACHE / "debian-driver"
RELEASE = Release("bookworm", "main contrib non-free non-free-firmware", "amd64,i386")

# All that containers get, but OptiX (130 MB) and the firmware (40 MB), which are just more files.
PACKAGES = (
    *("libcuda1", "libnvidia-ml1", "nvidia-smi", "libnvidia-ptxjitcompiler1", "libnvidia-cfg1"),
    *("libnvidia-nvvm4", "libcudadebugger1", "nvidia-opencl-icd", "libnvidia-allocator1"),
    *("libnvidia-encode1", "libnvcuvid1", "libnvidia-opticalflow1", "nvidia-vdpau-driver"),
    *("libnvidia-glcore", "libnvidia-eglcore", "libglx-nvidia0", "libegl-nvidia0"),
    *("libnvidia-glvkspirv", "libnvidia-fbc1", "libgles-nvidia1", "libgles-nvidia2"),
    *("libnvidia-pkcs11-openssl3", "libnvidia-ngx1", "libnvidia-egl-gbm1", "libnvidia-rtcore"),
    *("nvidia-egl-common", "nvidia-vulkan-common", "nvidia-vulkan-icd", "nvidia-opencl-common"),
    *("nvidia-cuda-mps", "nvidia-alternative", "xserver-xorg-video-nvidia"),
    *("libcuda1:i386", "libnvidia-ml1:i386", "libnvidia-ptxjitcompiler1:i386"),
    *("libnvidia-glcore:i386", "libglx-nvidia0:i386"),
)
CURRENT = "nvidia/current"
LIB64, LIB32 = "usr/lib/x86_64-linux-gnu", "usr/lib/i386-linux-gnu"


@dataclass(frozen=True, slots=True)
class DebianDriver:
    """An unpacked driver: its root, its procfs below it, and the version of its files."""

    root: Path
    version: str


def debian_driver(cache: Path = CACHE) -> DebianDriver:
    """The driver's root, made on the first call. Raises NotObtainable."""
    root = unpacked(cache, RELEASE, PACKAGES, _finish)
    return DebianDriver(root, _version(root))


def _finish(root: Path) -> None:
    """What their installation would do: the loader's configuration and cache, and a module."""
    tree: Tree = {
        "etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
        "etc/ld.so.conf.d/nvidia.conf": f"/{LIB64}/{CURRENT}\n/{LIB32}/{CURRENT}\n",
        "etc/ld.so.conf.d/libc.conf": f"/{LIB64}\n/{LIB32}\n",
    }
    plant(root, tree)
    program = root / "usr/bin/nvidia-smi"
    alternative = root / "usr/lib" / CURRENT / "nvidia-smi"
    if alternative.exists() and not os.path.lexists(program):
        program.symlink_to(f"/usr/lib/{CURRENT}/nvidia-smi")
    subprocess.run(["ldconfig", "-r", str(root)], check=True, timeout=60)


def _version(root: Path) -> str:
    found = sorted((root / LIB64 / CURRENT).glob("libcuda.so.*.*"))
    if len(found) != 1:
        raise NotObtainable(f"{len(found)} files of libcuda in {LIB64}/{CURRENT}")
    return found[0].name.removeprefix("libcuda.so.")
