"""The driver's shared libraries, found on disk.

The host's loader cache only hints at directories. Every candidate is opened and its ELF header
read, so a stub, an empty file or half a copy is no library. All driver versions present are
reported, because the choice among them is the inventory's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from agent import catalog
from agent.facts.elf import NotElf, read_elf
from agent.facts.root import DriverRoot, list_names, open_regular, read_bytes
from agent.facts.values import LibraryFact
from hooks import ldcache

CACHE_LIMIT = 32 * 1024 * 1024
"""Bytes of a loader cache; a host with 10,000 libraries has about one megabyte."""

# One of these lies in every directory of driver libraries, the 32-bit ones included.
_ANCHOR = re.compile(r"lib(?:cuda|nvidia-ml|nvidia-glcore|nvidia-tls)\.so\.(\d{3,}\.\d+(?:\.\d+)?)")
_HINT = re.compile(rb"lib(?:cuda|nvidia-.*|(?:GLX|EGL|vdpau)_nvidia|nvcuvid|nvoptix)\.so(?:\..*)?")
_OWN_VERSION = re.compile(r"\d+(?:\.\d+)*")
# Directories below those of libraries, and the one in a container that their files belong into.
_SUBDIRS = {"": "", "vdpau": "vdpau", "tls": ""}

# Old drivers have two of these; one is for kernels without native thread-local storage.
_BY_ABI = "libnvidia-tls"
_MODERN_ABI = (2, 3, 99)

# A link to the driver's GLX library that has a stem of its own.
_FOREIGN_LINKS = ("libGLX_indirect",)


@dataclass(frozen=True, slots=True)
class LibraryScan:
    """The libraries and where they were found.

    `directories` hold the loaded module's version, as they were searched and as they are with
    links followed; programs are looked for beside them. `reason` is set when no library of the
    loaded version, or none at all, was found.
    """

    libraries: tuple[LibraryFact, ...]
    directories: tuple[str, ...]
    reason: str | None


@dataclass(frozen=True, slots=True)
class _Listing:
    """One directory of the search: the path with links followed, and the library-like names."""

    path: str
    subdir: str
    names: tuple[str, ...]


def read_libraries(root: DriverRoot, extra: Iterable[str], version: str | None) -> LibraryScan:
    """The driver libraries below `root`; `extra` directories first, `version` is the module's."""
    hinted, cache_problem = cache_directories(root)
    searched = [*extra, *hinted, *catalog.load().library_dirs]
    listings = _list_all(root, searched)
    versions = _versions(listings) | ({version} if version else set())
    # With the loaded version first, its helpers win over those of another installation.
    listings.sort(key=lambda at: not _holds(at, [version]))
    found = _one_each(fact for at in listings for fact in _read_listing(root, at, versions))
    own = [at for at in listings if not at.subdir and _holds(at, [version])]
    reason = None
    if not any(_version_of(fact.name) == version for fact in found):
        reason = f"libraries: lib*.so.{version or '<version>'}: none in {len(listings)} directories"
        reason += f" ({cache_problem})" if cache_problem else ""
    libraries = _with_links(root, listings, versions, found)
    directories = tuple(dict.fromkeys(d for at in own for d in _spellings(root, at, searched)))
    return LibraryScan(libraries, directories, reason)


def cache_directories(root: DriverRoot) -> tuple[tuple[str, ...], str | None]:
    """Directories where the loader cache knows driver libraries, and why there is no cache."""
    path = root.resolve("/etc/ld.so.cache")
    if path is None:
        return (), "no /etc/ld.so.cache"
    try:
        entries = ldcache.parse(read_bytes(root.host(path), CACHE_LIMIT))
    except OSError as e:
        return (), f"/etc/ld.so.cache: {e.strerror}"
    except ValueError as e:
        return (), f"/etc/ld.so.cache: {e}"
    found: dict[str, None] = {}
    for name, library, *_ in entries:
        if _HINT.fullmatch(name) and library.startswith(b"/"):
            inside = os.fsdecode(library)
            found[os.path.dirname(inside)] = None
            if (real := root.resolve(inside)) is not None:
                found[os.path.dirname(real)] = None
    return tuple(found), None if found else "no driver library in /etc/ld.so.cache"


def _one_each(candidates: Iterable[tuple[LibraryFact, bool]]) -> list[LibraryFact]:
    """Each file once, and of one name and machine the first file, unless a later one fits better.

    A candidate comes with whether it is a modern one.
    """
    found: dict[tuple[str, str], tuple[LibraryFact, bool]] = {}
    files: set[tuple[int, int]] = set()
    for fact, modern in candidates:
        key = (fact.machine, fact.name)
        identity = (fact.file.dev, fact.file.ino)
        if key not in found and identity in files:
            continue
        files.add(identity)
        if key not in found or (modern and not found[key][1]):
            found[key] = (fact, modern)
    return [fact for fact, _ in found.values()]


def _list_all(root: DriverRoot, directories: Iterable[str]) -> list[_Listing]:
    """The directories that exist, each once however many names lead to it."""
    listings: dict[str, _Listing] = {}
    for directory in directories:
        for below, subdir in _SUBDIRS.items():
            path = root.resolve(f"{directory}/{below}")
            if path is None or path in listings:
                continue
            names = list_names(root.host(path))
            libraries = tuple(n for n in names if n.startswith("lib") and ".so" in n)
            listings[path] = _Listing(path, subdir, libraries)
    return list(listings.values())


def _versions(listings: Iterable[_Listing]) -> set[str]:
    """Every driver version of which a directory has an anchor."""
    matches = (_ANCHOR.fullmatch(name) for at in listings for name in at.names)
    return {m.group(1) for m in matches if m}


def _version_of(name: str) -> str:
    return name.rpartition(".so.")[2]


def _holds(at: _Listing, versions: Collection[str | None]) -> bool:
    return any(_version_of(name) in versions for name in at.names)


def _read_listing(
    root: DriverRoot, at: _Listing, versions: Collection[str]
) -> Iterator[tuple[LibraryFact, bool]]:
    """The driver libraries of one directory, and the helpers if it has any of those."""
    if not _holds(at, versions):
        return
    helpers = catalog.load().helpers
    for name in at.names:
        stem, _, version = name.partition(".so.")
        helper = stem in helpers and _OWN_VERSION.fullmatch(version)
        if version in versions or helper:
            candidate = _read_library(root, at, name)
            if candidate is not None:
                yield candidate


def _read_library(root: DriverRoot, at: _Listing, name: str) -> tuple[LibraryFact, bool] | None:
    """One candidate; None if it is no whole shared library with this very name."""
    path = root.resolve(f"{at.path}/{name}")
    if path is None or os.path.basename(path) != name:
        return None
    try:
        with open_regular(root.host(path)) as (fd, file):
            elf = read_elf(fd, file.size)
    except (OSError, NotElf):
        return None
    if not elf.dynamic:
        return None
    needs = tuple(sorted(n for n in elf.needed if n.startswith("libnvidia-")))
    fact = LibraryFact(
        name, elf.soname, elf.machine, file, subdir=at.subdir, needs=needs, directory=at.path
    )
    modern = catalog.stem_of(name) != _BY_ABI or (elf.abi or ()) >= _MODERN_ABI
    return fact, modern


def _with_links(
    root: DriverRoot,
    listings: Iterable[_Listing],
    versions: Collection[str],
    libraries: Collection[LibraryFact],
) -> tuple[LibraryFact, ...]:
    """The libraries with the links to each of them from any driver directory, sorted."""
    stems = {catalog.stem_of(fact.name) for fact in libraries}.union(_FOREIGN_LINKS)
    links: dict[str, set[str]] = {fact.file.path: set() for fact in libraries}
    for at in listings:
        if not _holds(at, versions):
            continue
        for name in at.names:
            inside = f"{at.path}/{name}"
            if catalog.stem_of(name) in stems and root.is_link(inside):
                real = root.resolve(inside)
                if real is not None and root.host(real) in links:
                    links[root.host(real)].add(name)
    facts = (
        replace(fact, links=tuple(sorted(links[fact.file.path] - {fact.name})))
        for fact in libraries
    )
    return tuple(sorted(facts, key=lambda f: (f.name, f.machine, f.file.path)))


def _spellings(root: DriverRoot, at: _Listing, searched: Iterable[str]) -> list[str]:
    """A directory's names: those it was searched by, then the one without links."""
    return [*(d for d in searched if root.resolve(d) == at.path), at.path]
