"""The host of this agent: its roots from the config, and one reading of it as an inventory."""

from __future__ import annotations

from functools import partial

import anyio.to_thread

from agent.config import HostSettings
from agent.facts.nvml import read_nvml
from agent.facts.read import read_host
from agent.facts.root import HostRoots
from agent.facts.values import HostFacts, NvmlFact
from agent.inventory import Inventory, build
from agent.planner import ProcPaths

NVML_LIBRARY = "libnvidia-ml"


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


async def read_inventory(settings: HostSettings) -> Inventory:
    """Read files and procfs in a thread, NVML in a process of its own, and judge.

    Without `nvml` in the settings, or without an answer, procfs alone gives the inventory.
    """
    roots = host_roots(settings)
    silent = NvmlFact(reason="nvml: switched off in the config")
    facts = await anyio.to_thread.run_sync(partial(read_host, roots, silent))
    if settings.nvml:
        nvml = await read_nvml(nvml_library(facts), settings.nvml_timeout_s)
        # The files are read again: NVML made nodes, or took so long that the host moved on.
        facts = await anyio.to_thread.run_sync(partial(read_host, roots, nvml))
    return build(facts)


def nvml_library(facts: HostFacts) -> str | None:
    """The absolute path of the loaded driver's own libnvidia-ml."""
    version = facts.driver.version
    for library in facts.libraries:
        if library.name == f"{NVML_LIBRARY}.so.{version}" and library.machine != "i386":
            return library.file.path
    return None
