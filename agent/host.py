"""The host of this agent: its roots from the config, and readings of it as inventories.

Files and procfs are read at any time, in milliseconds. NVML may take seconds, so it is asked
apart and its last answers are joined with each reading; answers of another driver version than
the loaded one are not believed (`agent.inventory`). It decides nothing about a change. The
daemon's own Host also makes the device nodes that a reading finds missing.
"""

from __future__ import annotations

import logging
import platform
import threading
from collections import deque
from dataclasses import replace

import anyio.to_thread

from agent.config import HostSettings
from agent.facts.nodes import read_nodes
from agent.facts.nvml import read_nvml
from agent.facts.read import read_host
from agent.facts.root import HostRoots
from agent.facts.values import HostFacts, NvmlFact
from agent.inventory import Inventory, build
from agent.missingnodes import missing_nodes
from agent.nodemaker import link_nodes, make_nodes
from agent.planner import ProcPaths

log = logging.getLogger(__name__)

NVML_LIBRARY = "libnvidia-ml"
TOLD = 64
"""How many of the nodes and links that were made the inventory tells; the log has them all."""


class Host:
    """One host and what NVML last said of it.

    With `makes_nodes` a reading first makes the device nodes that are missing, as far as the
    settings want that; without it the host is only read.
    """

    def __init__(self, settings: HostSettings, *, makes_nodes: bool = False) -> None:
        self._settings = settings
        self._makes_nodes = makes_nodes and settings.device_nodes != "leave"
        self._made: deque[str] = deque(maxlen=TOLD)
        self._failed: tuple[str, ...] = ()
        # Readings for plans and for NVML may come at once.
        self._making = threading.Lock()
        why = "not asked yet" if settings.nvml else "switched off in the config"
        self._nvml = NvmlFact(reason=why)

    async def read(self) -> Inventory:
        """The host as files and procfs show it now, with NVML's last answers."""
        return await anyio.to_thread.run_sync(lambda: build(self._facts()))

    async def ask_nvml(self) -> bool:
        """Ask NVML in a process of its own; True if it answers otherwise than last time."""
        if not self._settings.nvml:
            return False
        facts = await anyio.to_thread.run_sync(self._facts)
        answered = await read_nvml(nvml_library(facts), self._settings.nvml_timeout_s)
        changed = answered != self._nvml
        self._nvml = answered
        return changed

    def _facts(self) -> HostFacts:
        facts = read_host(host_roots(self._settings), self._nvml)
        if not self._makes_nodes or facts.driver.version is None:
            return facts
        with self._making:
            return self._with_nodes(facts)

    def _with_nodes(self, facts: HostFacts) -> HostFacts:
        root = self._settings.dev_root
        replaces = self._settings.device_nodes == "replace"
        made, failed = make_nodes(root, missing_nodes(facts), replace=replaces)
        nodes = read_nodes(root) if made else facts.nodes
        linked, unlinked = link_nodes(root, nodes)
        for line in (*made, *linked):
            log.info("device node", extra={"did": line})
        self._made.extend((*made, *linked))
        self._tell_failures((*failed, *unlinked))
        return replace(facts, nodes=nodes, node_work=(*self._made, *self._failed))

    def _tell_failures(self, failed: tuple[str, ...]) -> None:
        """Each failure once, not with every reading."""
        for line in failed:
            if line not in self._failed:
                log.warning("device node", extra={"error": line})
        self._failed = failed[:TOLD]


def host_roots(settings: HostSettings) -> HostRoots:
    """Where the readers look."""
    return HostRoots(
        driver_root=settings.driver_root,
        dev_root=settings.dev_root,
        proc_root=settings.proc_root,
        sys_root=settings.sys_root,
        library_dirs=settings.library_dirs,
    )


def proc_paths(settings: HostSettings) -> ProcPaths:
    """Where the planner's procfs steps point."""
    return ProcPaths(root=settings.proc_root, mask=settings.proc_mask)


async def read_inventory(settings: HostSettings, *, nvml: bool = True) -> Inventory:
    """One whole reading; without `nvml` of files and procfs only."""
    host = Host(settings)
    if nvml:
        await host.ask_nvml()
    return await host.read()


def nvml_library(facts: HostFacts) -> str | None:
    """The absolute path of the loaded driver's own libnvidia-ml."""
    version, machine = facts.driver.version, facts.driver.machine or platform.machine()
    for library in facts.libraries:
        if library.name == f"{NVML_LIBRARY}.so.{version}" and library.machine == machine:
            return library.file.path
    return None
