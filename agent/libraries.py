"""Which of the driver's libraries on disk belong to the loaded driver.

Pure. Of several versions, architectures and copies it chooses those that one container can have
together; it reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent import catalog
from agent.facts.values import LibraryFact

# Machine of the kernel module -> machines whose programs run on that host.
_RUN_ON = {"x86_64": ("x86_64", "i386"), "aarch64": ("aarch64", "armv7l")}


def choose_libraries(
    libraries: tuple[LibraryFact, ...], version: str | None, machine: str | None
) -> tuple[LibraryFact, ...]:
    """The libraries of exactly this version, and the helpers from the same directories.

    `machine` is the host's, None if it is not known.
    """
    suffix = f".so.{version}"
    runs = _RUN_ON.get(machine or "")
    usable = [lib for lib in libraries if runs is None or lib.machine in runs]
    folders = {_folder(lib) for lib in usable if lib.name.endswith(suffix)}
    own = {lib for lib in usable if lib.name.endswith(suffix) and _is_own(lib)}
    helpers = _newest(
        lib
        for lib in usable
        if catalog.stem_of(lib.name) in catalog.load().helpers
        and lib not in own
        and _folder(lib) in folders
    )
    return tuple(lib for lib in usable if lib in own or lib in helpers)


def version_key(version: str) -> tuple[int, ...]:
    """A version as what sorts by number."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _folder(library: LibraryFact) -> str:
    return library.directory or library.file.path.rpartition("/")[0]


def _is_own(library: LibraryFact) -> bool:
    """Not a GL front end of someone else that happens to have the version."""
    if not catalog.is_front_end(catalog.stem_of(library.name)):
        return True
    needs = {catalog.stem_of(name) for name in library.needs}
    return bool(needs & catalog.load().front_end_needs)


def _newest(helpers: Iterable[LibraryFact]) -> set[LibraryFact]:
    """One helper of each name and machine: that of the SONAME link, or the highest version.

    Two would want the same SONAME link in the container.
    """
    best: dict[tuple[str, str, str | None], LibraryFact] = {}
    for lib in helpers:
        key = (catalog.stem_of(lib.name), lib.machine, lib.soname)
        if key not in best or _rank(lib) > _rank(best[key]):
            best[key] = lib
    return set(best.values())


def _rank(library: LibraryFact) -> tuple[bool, tuple[int, ...]]:
    linked = library.soname in (*library.links, library.name)
    return linked, version_key(library.name.rpartition(".so.")[2])
