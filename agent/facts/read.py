"""All readers in one call: the host as it is at one moment.

Synchronous, without any package from outside the standard library, so that a standalone program
can call it too; the daemon calls it in a thread. It decides nothing and raises nothing that a
broken host can cause: what is missing is missing in the facts, with its reason. NVML's answers
come as an argument, because asking NVML is slow and belongs in a process of its own.
"""

from __future__ import annotations

from agent.facts.driver import read_driver
from agent.facts.files import read_firmware, read_ipc, read_programs
from agent.facts.gpus import read_gpus, read_mig_caps, read_mig_management
from agent.facts.graphics import read_graphics, read_modules
from agent.facts.libraries import read_libraries
from agent.facts.nodes import read_nodes
from agent.facts.pci import read_pci
from agent.facts.root import DriverRoot, HostRoots
from agent.facts.values import HostFacts, NvmlFact


def read_host(roots: HostRoots, nvml: NvmlFact) -> HostFacts:
    """Every fact of the host below `roots`, with NVML's answers as given; takes milliseconds."""
    driver = read_driver(roots.proc_root)
    root = DriverRoot(roots.driver_root)
    scan = read_libraries(root, roots.library_dirs, driver.version)
    return HostFacts(
        driver=driver,
        gpus=read_gpus(roots.proc_root),
        mig_caps=read_mig_caps(roots.proc_root),
        libraries=scan.libraries,
        programs=read_programs(root, scan.directories),
        firmware=read_firmware(root, roots.sys_root, driver.version),
        ipc=read_ipc(root),
        nodes=read_nodes(roots.dev_root),
        nvml=nvml,
        libraries_reason=scan.reason,
        data=read_graphics(root, scan.directories),
        modules=read_modules(root, scan.directories, driver.version),
        pci=read_pci(roots.sys_root),
        mig_management=read_mig_management(roots.proc_root),
    )
