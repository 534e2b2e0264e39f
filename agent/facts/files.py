"""The driver's programs, firmware and daemon sockets.

Found by name from the catalog and by type: a program is an ELF file, never a script of its name.
Firmware and sockets are described, not read. Nothing under a world-writable directory is followed
through a link.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterable

from agent import catalog
from agent.facts.elf import NotElf, read_elf
from agent.facts.root import DriverRoot, identity, list_names, open_regular, read_text
from agent.facts.values import DataFact, IpcFact, ProgramFact

# From a library directory to the programs of the same installation.
_BESIDE = ("../bin", ".")


def read_programs(root: DriverRoot, library_dirs: Iterable[str]) -> tuple[ProgramFact, ...]:
    """The driver's programs, sorted by name: beside its libraries first, then the usual PATH.

    Beside the libraries first, because a second driver in PATH would have other programs.
    """
    table = catalog.load()
    beside = [os.path.join(d, step) for d in library_dirs for step in _BESIDE]
    directories = dict.fromkeys(root.resolve(d) for d in (*beside, *table.program_dirs))
    found: dict[str, ProgramFact] = {}
    for directory in directories:
        for name in table.programs:
            if directory is not None and name not in found:
                program = _read_program(root, f"{directory}/{name}", name)
                if program is not None:
                    found[name] = program
    return tuple(sorted(found.values(), key=lambda p: p.name))


def _read_program(root: DriverRoot, inside: str, name: str) -> ProgramFact | None:
    path = root.resolve(inside)
    if path is None:
        return None
    try:
        with open_regular(root.host(path)) as (fd, file):
            read_elf(fd, file.size)
    except (OSError, NotElf):
        return None
    return ProgramFact(name, file)


def read_firmware(root: DriverRoot, sys_root: str, version: str | None) -> tuple[DataFact, ...]:
    """The GSP firmware of the loaded module's version, from the first place that has any."""
    if version is None:
        return ()
    for place in _firmware_places(root, sys_root):
        folder = f"{place}/nvidia/{version}"
        real = root.resolve(folder)
        if real is None:
            continue
        names = fnmatch.filter(list_names(root.host(real)), "gsp*.bin")
        facts = [read_data(root, f"{folder}/{name}", f"{folder}/{name}") for name in names]
        if any(facts):
            return tuple(fact for fact in facts if fact is not None)
    return ()


def _firmware_places(root: DriverRoot, sys_root: str) -> list[str]:
    """The kernel's own search order for firmware."""
    release = os.uname().release
    configured = read_text(os.path.join(sys_root, "module/firmware_class/parameters/path")) or ""
    # The parameter is a host path, also where the driver root is a driver container's.
    own = root.inside(configured.strip()).rstrip("/")
    places = [f"/lib/firmware/{part}" for part in (f"updates/{release}", "updates", release)]
    return [*([own] if own.startswith("/") else []), *places, "/lib/firmware"]


def read_data(root: DriverRoot, inside: str, target: str) -> DataFact | None:
    """The file at `inside` for the container path `target`; None if absent, empty or no file."""
    path = root.resolve(inside)
    if path is None:
        return None
    try:
        found = os.lstat(root.host(path))
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return None
    return DataFact(os.path.normpath(target), identity(root.host(path), found))


def read_ipc(root: DriverRoot) -> tuple[IpcFact, ...]:
    """The sockets and directories of driver daemons that exist, sorted by container path."""
    found = []
    for entry in catalog.load().ipc:
        facts = (_read_ipc(root, path, entry.kind) for path in entry.paths)
        found += [fact for fact in facts if fact is not None][:1]
    return tuple(sorted(found, key=lambda f: f.target))


def _read_ipc(root: DriverRoot, inside: str, kind: str) -> IpcFact | None:
    # /tmp is anyone's: a link there would have the agent mount what its owner chose.
    if kind == "dir" and root.is_link(inside):
        return None
    path = root.resolve(inside)
    if path is None:
        return None
    try:
        mode = os.lstat(root.host(path)).st_mode
    except OSError:
        return None
    right = stat.S_ISSOCK(mode) if kind == "socket" else stat.S_ISDIR(mode)
    return IpcFact(inside, root.host(path), kind) if right else None
