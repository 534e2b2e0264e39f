"""Files of the graphics stack and of OpenCL: manifests, configuration, X server modules.

Found by name from the catalog: in `/etc` and the data directories below the driver root, then
beside the driver's libraries, where drivers outside of the distribution keep theirs. Of a
manifest it reads one thing, the library that it names by an absolute path, and it changes none.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator

from agent import catalog
from agent.facts.elf import NotElf, read_elf
from agent.facts.files import read_data
from agent.facts.root import DriverRoot, list_names, open_regular, read_text
from agent.facts.values import DataFact

MANIFEST_LIMIT = 64 * 1024
"""Bytes of a JSON manifest; they have a few hundred."""

_LIBRARY = re.compile(r'"library_path"\s*:\s*"(/[^"\\\x00-\x1f]{1,1024})"')


def read_graphics(root: DriverRoot, library_dirs: Iterable[str]) -> tuple[DataFact, ...]:
    """The catalog's data files that exist, each from its first place, sorted by container path."""
    table = catalog.load()
    dirs = tuple(library_dirs)
    own = [f"{d}/{step}" for d in dirs for step in table.data_beside]
    found = []
    for entry in table.data:
        places = [*table.data_dirs, *own, *(f"{d}/{b}" for d in dirs for b in entry.beside)]
        for name in entry.files:
            facts = (_read(root, f"{place}/{name}", f"{entry.target}/{name}") for place in places)
            found += [next((fact for fact in facts if fact is not None), None)]
    return tuple(sorted((f for f in found if f is not None), key=lambda f: f.target))


def _read(root: DriverRoot, inside: str, target: str) -> DataFact | None:
    fact = read_data(root, inside, target)
    if fact is None or not target.endswith(".json"):
        return fact
    named = _LIBRARY.search(read_text(fact.file.path, MANIFEST_LIMIT) or "")
    path = root.resolve(named.group(1)) if named else None
    if named is None or path is None:
        return fact
    return DataFact(fact.target, fact.file, library=(named.group(1), root.host(path)))


def read_modules(
    root: DriverRoot, library_dirs: Iterable[str], version: str | None
) -> tuple[DataFact, ...]:
    """The X server modules of the loaded driver, at the path where they are found.

    A file that several directories have is taken from the first one.
    """
    if version is None:
        return ()
    table = catalog.load()
    beside = [f"{d}/{step}" for d in library_dirs for step in table.modules_beside]
    found: dict[str, DataFact] = {}
    for directory in dict.fromkeys((*table.module_dirs, *beside)):
        for fact in _modules_in(root, os.path.normpath(directory), version):
            found.setdefault(os.path.basename(fact.target), fact)
    return tuple(sorted(found.values(), key=lambda f: f.target))


def _modules_in(root: DriverRoot, directory: str, version: str) -> Iterator[DataFact]:
    real = root.resolve(directory)
    if real is None:
        return
    names = list_names(root.host(real))
    for pattern in catalog.load().modules.files:
        name = pattern.replace("*", version)
        # With Debian's alternatives there is only a link without the version.
        alike = fnmatch.filter(names, f"{catalog.stem_of(name)}.so*")
        leads = [n for n in alike if _basename(root, f"{real}/{n}") == name]
        fact = read_data(root, f"{real}/{leads[0]}", f"{directory}/{name}") if leads else None
        if fact is not None and _is_library(fact.file.path):
            yield DataFact(fact.target, fact.file, tuple(n for n in leads if n != name))


def _basename(root: DriverRoot, inside: str) -> str | None:
    path = root.resolve(inside)
    return None if path is None else os.path.basename(path)


def _is_library(path: str) -> bool:
    try:
        with open_regular(path) as (fd, file):
            return read_elf(fd, file.size).dynamic
    except (OSError, NotElf):
        return False
