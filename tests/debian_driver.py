"""A driver nobody here wrote: NVIDIA's user-space packages of Debian non-free, unpacked.

They are downloaded once into a cache directory outside of version control, with apt's own
verification, lists and configuration of their own; nothing is installed on the machine. What the
packages do when installed (alternatives, ldconfig) is done here for the unpacked root only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.host_trees import Tree, plant

CACHE = Path(__file__).parents[1] / ".cache" / "debian-driver"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITE = "bookworm"
COMPONENTS = "main contrib non-free non-free-firmware"

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


class NoDriver(Exception):
    """The packages cannot be had here; the message says why."""


def debian_driver(cache: Path = CACHE) -> DebianDriver:
    """The driver's root, made on the first call. Raises NoDriver."""
    if shutil.which("apt-get") is None or not Path(KEYRING).exists():
        raise NoDriver("no apt with Debian's archive keys")
    root = cache / "root"
    if not (root / ".complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        _unpack(_download(cache), root)
        _finish(root)
        (root / ".complete").touch()
    return DebianDriver(root, _version(root))


def _download(cache: Path) -> Path:
    for name in ("lists/partial", "archives/partial", "debs"):
        (cache / name).mkdir(parents=True, exist_ok=True)
    sources = cache / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {_archive()} {SUITE} {COMPONENTS}\n")
    options = {
        "Dir::Etc::sourcelist": str(sources),
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": str(cache / "lists"),
        "Dir::Cache": str(cache),
        "APT::Architectures": "amd64,i386",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    for command in (["update"], ["download", *PACKAGES]):
        done = subprocess.run(
            [*apt, *command], cwd=cache / "debs", capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            said = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise NoDriver(f"apt-get {command[0]}: {said}")
    return cache / "debs"


def _archive() -> str:
    """Where this machine's apt gets the suite from."""
    command = ["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    for line in done.stdout.splitlines():
        site, _, suite = line.rpartition(" ")
        if suite == SUITE:
            return site
    raise NoDriver(f"apt has no source of Debian {SUITE}")


def _unpack(debs: Path, root: Path) -> None:
    root.mkdir(parents=True)
    for package in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True, timeout=120)


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
        raise NoDriver(f"{len(found)} files of libcuda in {LIB64}/{CURRENT}")
    return found[0].name.removeprefix("libcuda.so.")
