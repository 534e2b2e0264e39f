"""The whole path on a real driver: Debian's packages, the real ldconfig, a real container."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.inventory import DriverState
from agent.plan import BindFile, CacheEntry, Place
from agent.planner import plan
from agent.request import Capability, Request
from tests.containers.image import missing_tools, session_image
from tests.containers.runc import Container
from tests.containers.spec import make_spec
from tests.containers.staging import Node, real_node
from tests.containers.workdir import overlay_root, work_dir
from tests.debian_driver import DebianDriver, debian_driver
from tests.debian_pool import NotObtainable
from tests.host_trees import Tree, plant

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="nodes and containers need root"),
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "all there"),
    pytest.mark.timeout(600),
]

BUS = "0000:3b:00.0"
NODES = {"nvidiactl": (195, 255), "nvidia0": (195, 0), "nvidia-uvm": (510, 0)}
ALL = Request(("all",), tuple(sorted(Capability)), "test")


@pytest.fixture(scope="module")
def driver() -> DebianDriver:
    """The unpacked driver, downloaded once for all sessions."""
    try:
        return debian_driver()
    except NotObtainable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def node(driver: DebianDriver) -> Iterator[Node]:
    """A node with that driver's files, and the procfs and nodes of one GPU."""
    text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver.version}  Release Build\n"
    information = f"Model: \t\t NVIDIA A2\nGPU UUID: \t GPU-{'0' * 8}-0000-0000-0000-{'0' * 12}\n"
    tree: Tree = {
        "proc/devices": "Character devices:\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n",
        "proc/driver/nvidia/version": text,
        "proc/driver/nvidia/params": "ModifyDeviceFiles: 1\n",
        f"proc/driver/nvidia/gpus/{BUS}/information": f"{information}Device Minor: \t 0\n",
        "dev": None,
        "sys": None,
    }
    with work_dir() as work:
        plant(work, tree)
        for name, number in NODES.items():
            os.mknod(work / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(*number))
        table = f"""[host]
driver_root = "{driver.root}"
dev_root = "{work}"
proc_root = "{work}/proc"
sys_root = "{work}/sys"
proc_mask = "/proc/driver"
"""
        with real_node(work, table) as made:
            yield made


def test_every_library_of_the_packages_is_found(driver: DebianDriver, node: Node) -> None:
    """Wherever Debian keeps them, 64 and 32 bit, the libraries of this version are facts."""
    assert node.inventory.state is DriverState.READY, node.inventory.reason
    machines = {"x86_64-linux-gnu": "x86_64", "i386-linux-gnu": "i386"}
    shipped = {
        (machine, path.name)
        for directory, machine in machines.items()
        for path in (driver.root / "usr/lib" / directory).rglob(f"lib*.so.{driver.version}")
        if not path.is_symlink()
    }
    assert len(shipped) > 30
    assert {(f.machine, f.name) for f in node.inventory.libraries} >= shipped


def test_plan_names_what_the_loader_needs(node: Node) -> None:
    """Every injected library in the library directory can be found by its own SONAME."""
    made = plan(node.inventory, ALL, node.proc)
    files = {(s.place, s.target) for s in made.steps if isinstance(s, BindFile)}
    sonames = {s.soname for s in made.steps if isinstance(s, CacheEntry)}
    assert {"libcuda.so.1", "libnvidia-ml.so.1", "libGLX_nvidia.so.0"} <= sonames
    assert any(place is Place.LIBS32 and target.startswith("libcuda.so") for place, target in files)
    assert (Place.ABSOLUTE, "/usr/bin/nvidia-smi") in files


def test_programs_find_the_driver_in_a_container(node: Node, driver: DebianDriver) -> None:
    """A program in a container loads the real libcuda and libnvidia-ml by SONAME."""
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    probe = "probe-dlopen libcuda.so.1 libnvidia-ml.so.1 libnvidia-ptxjitcompiler.so.1"
    version = f"libcuda.so.{driver.version}"
    script = f"{probe}; readlink /usr/lib/x86_64-linux-gnu/libcuda.so.1; ls /dev | grep nvidia"
    with work_dir() as work, overlay_root(session_image(), work / "layer") as root:
        spec = make_spec(root, ["sh", "-c", script], env=env, hooks=node.hooks())
        with Container(work, spec) as container:
            node.stage_spec((container.bundle / "config.json").read_bytes())
            outcome = container.run()
    lines = outcome.stdout.split("\n")
    assert lines[:4] == [
        "libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "libnvidia-ml.so.1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "libnvidia-ptxjitcompiler.so.1 /usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.1",
        version,
    ], outcome
    assert sorted(lines[4:7]) == sorted(NODES)


def test_sources_are_the_drivers_own_files(node: Node, driver: DebianDriver) -> None:
    """Debian's alternatives are followed: what is mounted is the file, never a link."""
    made = plan(node.inventory, ALL, node.proc)
    for step in made.steps:
        if isinstance(step, BindFile):
            path = Path(step.file.path)
            assert path.is_relative_to(driver.root)
            assert not path.is_symlink()
