"""Host trees from a dict, for the readers of facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.elf_files import X86_64, elf

HOSTS = Path(__file__).parent / "hosts"
VERSION = "550.54.14"
LIB64 = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link with this text."""

    text: str


DIRECTORY = None
Content = bytes | str | Link | None
Tree = Mapping[str, Content]


def plant(root: Path, tree: Tree) -> Path:
    """Make the tree below `root`: file content, `Link` or `DIRECTORY` by relative path."""
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is DIRECTORY:
            path.mkdir(exist_ok=True)
        elif isinstance(content, Link):
            path.symlink_to(content.text)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def library(
    stem: str,
    soname_version: str = "1",
    *,
    version: str = VERSION,
    directory: str = LIB64,
    machine: tuple[int, int] = X86_64,
) -> dict[str, Content]:
    """One library of the driver with its SONAME link, as a driver package installs it."""
    name, soname = f"{stem}.so.{version}", f"{stem}.so.{soname_version}"
    return {
        f"{directory}/{name}": elf(soname, machine=machine, salt=stem.encode()),
        f"{directory}/{soname}": Link(name),
    }


def version_text(version: str = VERSION) -> str:
    """/proc/driver/nvidia/version of the closed kernel module."""
    return (
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Feb 22 01:44:30 UTC 2024\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
