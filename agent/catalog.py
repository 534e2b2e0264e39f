"""The catalog: which driver file belongs to which driver capability.

Reads `catalog.toml`, the table beside this module, into frozen values once. It knows names and
nothing of any host, and it refuses a table with a capability that does not exist.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

CAPABILITIES = ("compute", "utility", "video", "graphics", "display", "ngx", "compat32")
"""Every driver capability; `compat32` means the 32-bit copies of what the others choose."""

ANY = "any"
"""Stands for a container that gets any GPU support at all."""

NEVER = "never"
"""Key of the libraries that no capability brings."""


@dataclass(frozen=True, slots=True)
class Ipc:
    """A daemon's socket or directory: the `paths` it may have, best first."""

    paths: tuple[str, ...]
    kind: str
    capabilities: frozenset[str]


@dataclass(frozen=True, slots=True)
class Data:
    """Files that are found by name and injected below `target`; `beside` is where else to look."""

    target: str
    files: tuple[str, ...]
    beside: tuple[str, ...]
    capabilities: frozenset[str]


@dataclass(frozen=True, slots=True)
class Modules:
    """Modules of the X server, injected where they are found; `*` is the driver's version."""

    files: tuple[str, ...]
    capabilities: frozenset[str]


@dataclass(frozen=True, slots=True)
class Catalog:
    """The whole table. A name that is missing from `libraries` has the `default` class.

    A library of `front_ends` is the driver's only if it needs one of `front_end_needs`. The
    `..._dirs` are below the driver root, the `..._beside` relative to driver libraries.
    """

    default: frozenset[str]
    libraries: Mapping[str, frozenset[str]]
    helpers: frozenset[str]
    front_ends: frozenset[str]
    front_end_needs: frozenset[str]
    programs: Mapping[str, frozenset[str]]
    ipc: tuple[Ipc, ...]
    data: tuple[Data, ...]
    modules: Modules
    nodes: Mapping[str, frozenset[str]]
    library_dirs: tuple[str, ...]
    program_dirs: tuple[str, ...]
    data_dirs: tuple[str, ...]
    data_beside: tuple[str, ...]
    module_dirs: tuple[str, ...]
    modules_beside: tuple[str, ...]


def stem_of(name: str) -> str:
    """The stem of a library's file name: `libcuda.so.580.10` is `libcuda`."""
    return name.partition(".so")[0]


def parse(text: str) -> Catalog:
    """The table of a TOML text; `ValueError` names what it has wrong."""
    doc = tomllib.loads(text)
    includes: dict[str, list[str]] = doc["includes"]
    search: dict[str, list[str]] = doc["search"]
    return Catalog(
        default=_closure([doc["default"]], includes),
        libraries=_invert(doc["libraries"], includes, extra=NEVER),
        helpers=frozenset(doc["helpers"]["stems"]),
        front_ends=frozenset(doc["front_ends"]["stems"]),
        front_end_needs=frozenset(doc["front_ends"]["need"]),
        programs=_invert(doc["programs"], {}),
        ipc=tuple(_ipc(entry) for entry in doc["ipc"]),
        data=tuple(_data(entry, includes) for entry in doc["data"]),
        modules=Modules(
            tuple(doc["modules"]["files"]), _closure(doc["modules"]["capabilities"], includes)
        ),
        nodes=_invert(doc["nodes"], {}, extra=ANY),
        library_dirs=tuple(search["libraries"]),
        program_dirs=tuple(search["programs"]),
        data_dirs=tuple(search["data"]),
        data_beside=tuple(search["data_beside"]),
        module_dirs=tuple(search["modules"]),
        modules_beside=tuple(search["modules_beside"]),
    )


@functools.cache
def load() -> Catalog:
    """The catalog of this installation, read once."""
    return parse(resources.files("agent").joinpath("catalog.toml").read_text("utf-8"))


def knows_library(stem: str) -> bool:
    """Whether a list of the catalog has this stem."""
    return stem in load().libraries


def capabilities_of_library(stem: str) -> frozenset[str]:
    """Capabilities that bring the library; the default class if unknown, empty for never."""
    catalog = load()
    return catalog.libraries.get(stem, catalog.default)


def capabilities_of_program(name: str) -> frozenset[str]:
    """Capabilities that bring the program; empty if it is not the driver's."""
    return load().programs.get(name, frozenset())


def capabilities_of_ipc(target: str) -> frozenset[str]:
    """Capabilities that bring the socket or directory with this container path."""
    return next((i.capabilities for i in load().ipc if target in i.paths), frozenset())


def capabilities_of_data(target: str) -> frozenset[str]:
    """Capabilities that bring the data file with this container path; empty if none does."""
    return next(
        (d.capabilities for d in load().data for name in d.files if f"{d.target}/{name}" == target),
        frozenset(),
    )


def is_front_end(stem: str) -> bool:
    """Whether a library of this stem is the driver's own only on hosts without GLVND."""
    return stem in load().front_ends


def capabilities_of_node(target: str) -> frozenset[str]:
    """Capabilities (or `ANY`) that bring the node with this container path."""
    return load().nodes.get(target, frozenset())


def _ipc(entry: Mapping[str, Any]) -> Ipc:
    if entry["kind"] not in ("socket", "dir"):
        raise ValueError(f"catalog: ipc: kind {entry['kind']!r} is neither socket nor dir")
    return Ipc(tuple(entry["paths"]), entry["kind"], _checked(entry["capabilities"], ()))


def _data(entry: Mapping[str, Any], includes: Mapping[str, list[str]]) -> Data:
    wanted = _closure(entry["capabilities"], includes)
    return Data(entry["target"], tuple(entry["files"]), tuple(entry.get("beside", ())), wanted)


def _checked(names: Iterable[str], extra: Iterable[str]) -> frozenset[str]:
    found = frozenset(names)
    if unknown := sorted(found - set(CAPABILITIES) - set(extra)):
        raise ValueError(f"catalog: no such capability: {', '.join(unknown)}")
    return found


def _closure(names: Iterable[str], includes: Mapping[str, list[str]]) -> frozenset[str]:
    """`names` and every capability that includes one of them."""
    own = set(names)
    return _checked(own | {c for c, also in includes.items() if own & set(also)}, ())


def _invert(
    classes: Mapping[str, list[str]], includes: Mapping[str, list[str]], extra: str = ""
) -> Mapping[str, frozenset[str]]:
    """Lists by capability to capabilities by name."""
    _checked(classes, (extra,))
    by_name: dict[str, set[str]] = {}
    for capability, names in classes.items():
        for name in names:
            by_name.setdefault(name, set()).add(capability)
    return MappingProxyType(
        {
            name: frozenset() if NEVER in own else _closure(own - {ANY}, includes) | (own & {ANY})
            for name, own in by_name.items()
        }
    )
