"""The device nodes that the driver should have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.facts.values import HostFacts, MigCap, MigManagement
from agent.missingnodes import NodeToMake, missing_nodes, way_out
from tests.fact_values import CAPS_MAJOR, DRIVER, HOST, node, proc_gpu

PARAMS = "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
BARE = replace(HOST, nodes=(), driver=replace(DRIVER, params=PARAMS))


def paths(facts: HostFacts) -> list[str]:
    """The paths of what is missing."""
    return [missing.path for missing in missing_nodes(facts)]


def test_nothing_is_missing() -> None:
    """A whole host lacks no node."""
    assert missing_nodes(HOST) == ()


def test_every_node_of_a_fresh_host() -> None:
    """After boot all are missing: number from /proc/devices, owner and mode from params (B111)."""
    assert missing_nodes(BARE) == (
        NodeToMake("/dev/nvidiactl", 195, 255, 0o660, 0, 44),
        NodeToMake("/dev/nvidia0", 195, 0, 0o660, 0, 44),
        NodeToMake("/dev/nvidia1", 195, 1, 0o660, 0, 44),
        NodeToMake("/dev/nvidia-uvm", 511, 0, 0o660, 0, 44),
        NodeToMake("/dev/nvidia-uvm-tools", 511, 1, 0o660, 0, 44),
    )


def test_majors_are_those_of_this_boot() -> None:
    """A dynamic major moves the node with it, and older drivers call the main one otherwise."""
    majors = (("nvidia-frontend", 195), ("nvidia-modeset", 195), ("nvidia-uvm", 239))
    found = missing_nodes(replace(BARE, driver=replace(BARE.driver, majors=majors)))
    numbers = {n.path: (n.major, n.minor) for n in found}
    assert numbers["/dev/nvidia-uvm"] == (239, 0)
    assert numbers["/dev/nvidia-modeset"] == (195, 254)
    assert numbers["/dev/nvidiactl"] == (195, 255)


def test_module_that_is_not_loaded() -> None:
    """Without a major in /proc/devices there is no node to make."""
    majors = (("nvidia", 195),)
    found = paths(replace(BARE, driver=replace(BARE.driver, majors=majors)))
    assert found == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"]


def test_node_with_an_old_number_is_missing() -> None:
    """A node left over from another boot does not count as there."""
    facts = replace(HOST, nodes=(*HOST.nodes[:4], node("/dev/nvidia-uvm", 510, 0), HOST.nodes[5]))
    assert paths(facts) == ["/dev/nvidia-uvm"]


def test_excluded_gpu_needs_no_node() -> None:
    """A GPU that the driver's configuration excludes, or without a minor, gets none."""
    no_minor = replace(proc_gpu(1), minor=None)
    facts = replace(BARE, gpus=(proc_gpu(0, excluded=True), no_minor))
    assert "/dev/nvidia0" not in paths(facts)
    assert len(paths(facts)) == 3


def test_nodes_of_mig_instances() -> None:
    """Each instance that exists needs two capability nodes, which anyone may read only."""
    caps = (MigCap(0, 1, 0, 12, 13), MigCap(0, 1, 1, 12, 14))
    found = [n for n in missing_nodes(replace(HOST, mig_caps=caps)) if "caps" in n.path]
    assert found == [
        NodeToMake(f"/dev/nvidia-caps/nvidia-cap{n}", CAPS_MAJOR, n, 0o444, 0, 0)
        for n in (12, 13, 14)
    ]


def test_nodes_of_mig_management() -> None:
    """The rights to configure and to monitor have the numbers and modes that procfs shows."""
    rights = (MigManagement("config", 1, 0o400), MigManagement("monitor", 2, 0o444))
    found = [n for n in missing_nodes(replace(HOST, mig_management=rights)) if "caps" in n.path]
    assert found == [
        NodeToMake("/dev/nvidia-caps/nvidia-cap1", CAPS_MAJOR, 1, 0o400, 0, 0),
        NodeToMake("/dev/nvidia-caps/nvidia-cap2", CAPS_MAJOR, 2, 0o444, 0, 0),
    ]


@pytest.mark.parametrize(("flag", "count"), [("0", 0), ("1", 1)])
def test_first_imex_channel(flag: str, count: int) -> None:
    """Channel 0 is made where the driver was told to; the others are a cluster's to give."""
    majors = (*DRIVER.majors, ("nvidia-caps-imex-channels", 242))
    params = f"{PARAMS}CreateImexChannel0: {flag}\n"
    facts = replace(HOST, driver=replace(DRIVER, majors=majors, params=params))
    channel = NodeToMake("/dev/nvidia-caps-imex-channels/channel0", 242, 0, 0o660, 0, 44)
    assert missing_nodes(facts) == (channel,) * count


@pytest.mark.parametrize("params", ["ModifyDeviceFiles: 0\n", "ModifyDeviceFiles:  0\nX: 1\n"])
def test_nodes_that_are_somebody_elses(params: str) -> None:
    """With ModifyDeviceFiles 0 the administrator makes the nodes, and nobody else."""
    assert missing_nodes(replace(BARE, driver=replace(DRIVER, params=params))) == ()


@pytest.mark.parametrize("params", [None, "", "DeviceFileMode: nonsense\n"])
def test_unknown_parameters(params: str | None) -> None:
    """Without usable parameters the driver's defaults hold: root's, for everyone."""
    found = missing_nodes(replace(BARE, driver=replace(DRIVER, params=params)))
    assert {(n.mode, n.uid, n.gid) for n in found} == {(0o666, 0, 0)}


def test_no_driver_no_nodes() -> None:
    """Without a loaded module no node is missing."""
    assert missing_nodes(replace(BARE, driver=replace(DRIVER, version=None))) == ()


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        ("/dev/nvidia3", "nvidia-modprobe -c 3, or "),
        ("/dev/nvidia-uvm-tools", "nvidia-modprobe -u -c 0, or "),
        ("/dev/nvidia-modeset", "nvidia-modprobe -m, or "),
        ("/dev/nvidia-caps/nvidia-cap3", ""),
    ],
)
def test_way_out(path: str, tool: str) -> None:
    """The driver's own tool comes first where it has an option for the node."""
    made = way_out(NodeToMake(path, 240, 3, 0o660, 0, 44))
    assert made == f"{tool}mknod -m 0660 {path} c 240 3 && chown 0:44 {path}"
