"""What a GPU container gets besides device nodes, by driver capability: files and names.

Pure: inventory and capabilities in, steps out. Which file belongs to which capability stands in
the catalog; here is only how a file, and every name under which programs look for it, become
steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

from agent import catalog
from agent.facts.busid import format_bus_id, parse_bus_id
from agent.facts.values import DataFact, LibraryFact, NodeFact
from agent.features import OptOut
from agent.inventory import Gpu, Inventory
from agent.plan import BindFile, BindIpc, CacheEntry, Link, Place, Step
from agent.request import Capability
from hooks.ldcache import FLAGS

PROGRAMS = "/usr/bin"
MACHINES_32 = ("i386", "armv7l")
BY_PATH = "/dev/dri/by-path"
DRAWING = frozenset({Capability.GRAPHICS, Capability.DISPLAY})

PROFILE = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
"""Where the driver's libraries look for the application profile of a container."""
PROFILE_NAME, PROFILE_SETTING = "_container_", "EGLVisibleDGPUDevices"
PROFILE_MINORS = 64
"""Minors that the profile's setting, a 64-bit mask, can name."""

# Names that programs open although no library has them as SONAME (injection.md A.7).
EXTRA_LINKS = {
    "libcuda": "libcuda.so",
    "libGLX_nvidia": "libGLX_indirect.so.0",
    "libnvidia-opticalflow": "libnvidia-opticalflow.so",
    "libnvidia-vulkan-producer": "libnvidia-vulkan-producer.so",
}
GBM_LIBRARY = "libnvidia-allocator"
GBM_BACKEND = "gbm/nvidia-drm_gbm.so"
"""The name by which libgbm loads the driver's backend, which is the allocator."""


def files(
    inventory: Inventory, wanted: frozenset[str], opt_out: Sequence[OptOut]
) -> Iterator[Step]:
    """The driver's files that the capabilities bring, less the opt-outs."""
    libraries = _libraries(inventory, wanted)
    for library, place in libraries:
        yield BindFile(place, _inside(library, library.name), library.file)
    for program in inventory.programs:
        if catalog.capabilities_of_program(program.name) & wanted:
            yield BindFile(Place.ABSOLUTE, f"{PROGRAMS}/{program.name}", program.file)
    for data in _data(inventory, wanted):
        yield BindFile(Place.ABSOLUTE, data.target, data.file)
    yield from _named_libraries(inventory, wanted, [library for library, _ in libraries])
    for data in () if OptOut.FIRMWARE in opt_out else inventory.firmware:
        yield BindFile(Place.ABSOLUTE, data.target, data.file)
    for ipc in () if OptOut.SOCKETS in opt_out else inventory.ipc:
        if catalog.capabilities_of_ipc(ipc.target) & wanted:
            yield BindIpc(ipc)


def links_and_cache(inventory: Inventory, wanted: frozenset[str]) -> Iterator[Step]:
    """The names that a linker or a program may use, and those the loader must know.

    A SONAME leads to the file and every other name to the SONAME, as ldconfig and the driver's
    installer have it.
    """
    for library, place in _libraries(inventory, wanted):
        soname = library.soname or library.name
        if soname != library.name:
            yield Link(place, _inside(library, soname), library.name)
        extra = EXTRA_LINKS.get(catalog.stem_of(library.name))
        for name in dict.fromkeys((*library.links, *([extra] if extra else []))):
            if name not in (soname, library.name):
                yield Link(place, _inside(library, name), soname)
        if catalog.stem_of(library.name) == GBM_LIBRARY and DRAWING & wanted:
            yield Link(place, GBM_BACKEND, f"../{soname}")
        if not library.subdir and library.machine in FLAGS:
            yield CacheEntry(place, soname, soname, FLAGS[library.machine])
    for module in _modules(inventory, wanted):
        folder, _, name = module.target.rpartition("/")
        yield from (Link(Place.ABSOLUTE, f"{folder}/{link}", name) for link in module.links)


def drm_nodes(gpu: Gpu, wanted: frozenset[str]) -> tuple[NodeFact, ...]:
    """The GPU's card and render node, where something is drawn. Parts of a GPU have none."""
    return gpu.drm if DRAWING & wanted and not gpu.mig_enabled else ()


def drm_links(gpus: Iterable[Gpu], wanted: frozenset[str]) -> Iterator[Step]:
    """The names of DRM nodes by PCI address, which tell a program which node is which GPU's."""
    for gpu in gpus:
        for node in drm_nodes(gpu, wanted):
            name = node.target.rpartition("/")[2]
            kind = "render" if name.startswith("render") else "card"
            yield Link(Place.ABSOLUTE, f"{BY_PATH}/pci-{_short(gpu.bus_id)}-{kind}", f"../{name}")


def application_profile(minors: Iterable[int]) -> str:
    """The text of the application profile that shows EGL the GPUs of these minors only."""
    mask = reduce(int.__or__, (1 << m for m in minors if 0 <= m < PROFILE_MINORS), 0)
    profile = {"name": PROFILE_NAME, "settings": [PROFILE_SETTING, mask]}
    # An empty pattern is every program.
    rule = {"pattern": [], "profile": PROFILE_NAME}
    return json.dumps({"profiles": [profile], "rules": [rule]}, indent=2) + "\n"


def _libraries(inventory: Inventory, wanted: frozenset[str]) -> list[tuple[LibraryFact, Place]]:
    found = []
    for library in inventory.libraries:
        if not catalog.capabilities_of_library(catalog.stem_of(library.name)) & wanted:
            continue
        if library.machine not in MACHINES_32:
            found.append((library, Place.LIBS))
        elif Capability.COMPAT32 in wanted:
            found.append((library, Place.LIBS32))
    return found


def _data(inventory: Inventory, wanted: frozenset[str]) -> Iterator[DataFact]:
    for data in inventory.data:
        if catalog.capabilities_of_data(data.target) & wanted:
            yield data
    yield from _modules(inventory, wanted)


def _modules(inventory: Inventory, wanted: frozenset[str]) -> tuple[DataFact, ...]:
    return inventory.modules if catalog.load().modules.capabilities & wanted else ()


def _named_libraries(
    inventory: Inventory, wanted: frozenset[str], libraries: Sequence[LibraryFact]
) -> Iterator[Step]:
    """A library once more, at the absolute path by which an injected manifest names it."""
    by_path = {library.file.path: library.file for library in libraries}
    for data in _data(inventory, wanted):
        if data.library is not None and data.library[1] in by_path:
            yield BindFile(Place.ABSOLUTE, data.library[0], by_path[data.library[1]])


def _inside(library: LibraryFact, name: str) -> str:
    return f"{library.subdir}/{name}" if library.subdir else name


def _short(bus_id: str) -> str:
    """A bus id as udev writes it: procfs of some drivers has four digits of domain more."""
    address = parse_bus_id(bus_id)
    return bus_id if address is None else format_bus_id(address)
