"""Packages of any Debian release, unpacked into a cache and never installed.

They are downloaded once, outside of version control, with apt's own verification and with lists
and configuration of their own: the machine's apt only says where its mirror is.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class NotObtainable(Exception):
    """The packages cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Release:
    """Where packages are looked for: a release by codename, its components, architectures."""

    codename: str
    components: str = "main"
    architectures: str = "amd64"


def unpacked(
    home: Path, release: Release, packages: Sequence[str], finish: Callable[[Path], None]
) -> Path:
    """A root with `packages` and nothing else, made below `home` on the first call.

    `finish` does to the root what the packages' installation would do. Raises NotObtainable.
    """
    if shutil.which("apt-get") is None or not Path(KEYRING).exists():
        raise NotObtainable("no apt with Debian's archive keys")
    root = home / "root"
    if not (root / ".complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        _unpack(_download(home, release, packages), root)
        finish(root)
        (root / ".complete").touch()
    return root


def _download(home: Path, release: Release, packages: Sequence[str]) -> Path:
    for name in ("lists/partial", "archives/partial", "debs"):
        (home / name).mkdir(parents=True, exist_ok=True)
    sources = home / "sources.list"
    place = f"{_mirror()} {release.codename} {release.components}"
    sources.write_text(f"deb [signed-by={KEYRING}] {place}\n")
    options = {
        "Dir::Etc::sourcelist": str(sources),
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": str(home / "lists"),
        "Dir::Cache": str(home),
        # What is installed here would else count as a version of the package.
        "Dir::State::status": "/dev/null",
        "APT::Architectures": release.architectures,
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]
    for command in (["update"], ["download", *packages]):
        done = subprocess.run(
            [*apt, *command], cwd=home / "debs", capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            said = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise NotObtainable(f"apt-get {command[0]}: {said}")
    return home / "debs"


def _mirror() -> str:
    """Where this machine's apt gets Debian's main archive from; every release is there."""
    command = ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(SITE)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    for line in done.stdout.splitlines():
        origin, label, site = line.split("|", 2)
        if (origin, label) == ("Debian", "Debian"):
            return site
    raise NotObtainable("apt has no source of Debian's archive")


def _unpack(debs: Path, root: Path) -> None:
    root.mkdir(parents=True)
    for package in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True, timeout=120)
