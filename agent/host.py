"""The host of this agent: its roots from the config, and readings of it as inventories.

Files and procfs are read at any time, in milliseconds. NVML may take seconds, so it is asked
apart and its last answers are joined with each reading; answers of another driver version than
the loaded one are not believed (`agent.inventory`). It decides nothing about a change.
"""

from __future__ import annotations

import platform

import anyio.to_thread

from agent.config import HostSettings
from agent.facts.nvml import read_nvml
from agent.facts.read import read_host
from agent.facts.root import HostRoots
from agent.facts.values import HostFacts, NvmlFact
from agent.inventory import Inventory, build
from agent.planner import ProcPaths

NVML_LIBRARY = "libnvidia-ml"


class Host:
    """One host and what NVML last said of it."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
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
        return read_host(host_roots(self._settings), self._nvml)


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
