"""Facts to inventory: the driver's state, its files and the generation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.facts.values import DataFact, DriverFact, HostFacts, NvmlFact
from agent.inventory import GROUP_NOTE, DriverState, build
from tests.fact_values import DRIVER, HOST, NODES, VERSION, file, library, node, nvml, nvml_gpu


def without(target: str) -> HostFacts:
    """The host without one node."""
    return replace(HOST, nodes=tuple(n for n in NODES if n.target != target))


def test_ready() -> None:
    """A whole host is ready and says nothing more."""
    inventory = build(HOST)
    assert (inventory.state, inventory.reason, inventory.notes) == (DriverState.READY, None, ())
    assert (inventory.driver_version, inventory.user_version) == (VERSION, VERSION)
    assert inventory.cuda_version == (12, 4)


def test_ready_without_nvml() -> None:
    """procfs and files alone give the same state, and a note that NVML is missing."""
    inventory = build(replace(HOST, nvml=NvmlFact(reason="libnvidia-ml: no such file")))
    assert inventory.state is DriverState.READY
    assert inventory.notes == ("NVML: libnvidia-ml: no such file",)


def test_no_driver() -> None:
    """Without a loaded module the reader's reason is the inventory's."""
    driver = DriverFact(None, None, None, None, (), "driver: the module is not loaded")
    inventory = build(replace(HOST, driver=driver, gpus=()))
    assert inventory.state is DriverState.NO_DRIVER
    assert inventory.reason == "driver: the module is not loaded"


def test_nothing_at_all() -> None:
    """Empty facts give an inventory, not an error."""
    driver = DriverFact(None, None, None, None, ())
    empty = HostFacts(driver, (), (), (), (), (), (), (), NvmlFact())
    assert build(empty).state is DriverState.NO_DRIVER


def test_mismatch_names_both_versions() -> None:
    """Libraries of another version only: a state that names both, and no library (B025)."""
    newer = (library("libcuda", "550.54.15"), library("libnvidia-ml", "550.54.15"))
    inventory = build(replace(HOST, libraries=newer))
    assert inventory.state is DriverState.MISMATCH
    assert inventory.reason is not None
    assert "550.54.14" in inventory.reason
    assert "550.54.15" in inventory.reason
    assert (inventory.user_version, inventory.libraries) == ("550.54.15", ())


def test_half_an_upgrade_is_a_mismatch() -> None:
    """While only one of two libraries is already new, the host is not ready (B025)."""
    half = (library("libcuda", "550.54.15"), library("libnvidia-ml"))
    assert build(replace(HOST, libraries=half)).state is DriverState.MISMATCH


def test_second_driver_does_not_matter() -> None:
    """With the loaded version complete, another version beside it is left out."""
    both = (*HOST.libraries, library("libcuda", "560.1"), library("libnvidia-ml", "560.1"))
    inventory = build(replace(HOST, libraries=both))
    assert (inventory.state, inventory.libraries) == (DriverState.READY, HOST.libraries)


def test_gpu_that_is_let_go_is_noted() -> None:
    """A GPU without persistence mode has a note with the way out, and the same plans (B001)."""
    kept, unknown = replace(nvml_gpu(0), persistent=True), nvml_gpu(1)
    quiet = build(replace(HOST, nvml=nvml(kept, unknown)))
    let_go = build(replace(HOST, nvml=nvml(kept, replace(unknown, persistent=False))))
    note = "GPU 00000000:86:00.0: persistence mode is off: each first use initialises it"
    assert quiet.notes == ()
    assert let_go.notes == (f"{note} (run nvidia-smi -pm 1)",)
    assert let_go.generation == quiet.generation


def test_longer_version_is_another_version() -> None:
    """550.54 is not 550.54.14: the whole version counts."""
    driver = replace(DRIVER, version="550.54")
    assert build(replace(HOST, driver=driver)).state is DriverState.MISMATCH


def test_host_without_cuda() -> None:
    """A host where no libcuda of any version is installed serves the rest."""
    inventory = build(replace(HOST, libraries=(library("libnvidia-ml"),)))
    assert (inventory.state, inventory.user_version) == (DriverState.READY, VERSION)


def test_helpers_of_the_same_directory() -> None:
    """Helpers come with the libraries beside them, and not from another installation."""
    ours = library("libnvidia-egl-gbm", "1.1.2")
    theirs = library("libnvidia-egl-xcb", "1.0.1", folder="/opt/old")
    inventory = build(replace(HOST, libraries=(*HOST.libraries, ours, theirs)))
    assert ours in inventory.libraries
    assert theirs not in inventory.libraries


def test_unknown_library_is_noted_once() -> None:
    """A library the catalog does not know is kept, with one note for all its copies (B050)."""
    novel = (library("libnvidia-new"), library("libnvidia-new", machine="i386"))
    inventory = build(replace(HOST, libraries=(*HOST.libraries, *novel)))
    assert set(novel) <= set(inventory.libraries)
    assert [note for note in inventory.notes if "libnvidia-new" in note] == [
        "libraries: libnvidia-new: not in the catalog, taken as compute, video"
    ]


@pytest.mark.parametrize(
    ("target", "flags", "number"),
    [("/dev/nvidiactl", "-c 255", "195 255"), ("/dev/nvidia-uvm", "-u -c 0", "511 0")],
)
def test_starting_names_the_missing_node(target: str, flags: str, number: str) -> None:
    """Without a node that every CUDA program needs the host is starting and says how to get it."""
    inventory = build(without(target))
    by_hand = f"mknod -m 0666 {target} c {number}"
    assert (inventory.state, inventory.reason) == (
        DriverState.STARTING,
        f"nodes: {target}: missing (run nvidia-modprobe {flags}, or {by_hand})",
    )


def test_a_stale_node_is_to_be_removed_first() -> None:
    """A uvm node with the major of an earlier boot would be in the way of the new one."""
    host, stale = without("/dev/nvidia-uvm"), node("/dev/nvidia-uvm", 510, 0)
    reason = build(replace(host, nodes=(*host.nodes, stale))).reason
    assert "has major 510, /proc/devices has 511" in (reason or "")
    assert "(remove it and run nvidia-modprobe -u -c 0, or mknod" in (reason or "")


def test_starting_names_the_missing_module() -> None:
    """Where /proc/devices has no nvidia-uvm it is the module that is missing (B111)."""
    majors = tuple(m for m in DRIVER.majors if m[0] != "nvidia-uvm")
    host = replace(without("/dev/nvidia-uvm"), driver=replace(DRIVER, majors=majors))
    reason = "nodes: /dev/nvidia-uvm: the nvidia-uvm module is not loaded (run modprobe nvidia-uvm)"
    assert build(host).reason == reason


def test_node_with_an_old_major() -> None:
    """A node left from before a reload has another device's number and is never given out."""
    stale = node("/dev/nvidia-uvm", 510, 0)
    host = without("/dev/nvidia-uvm")
    inventory = build(replace(host, nodes=(*host.nodes, stale)))
    assert inventory.state is DriverState.STARTING
    assert "major 510, /proc/devices has 511 for nvidia-uvm" in (inventory.reason or "")
    assert stale not in inventory.control


def test_starting_without_libraries() -> None:
    """Without any library the reader's reason tells where was searched."""
    inventory = build(replace(HOST, libraries=(), libraries_reason="libraries: none in 9"))
    assert (inventory.state, inventory.reason) == (DriverState.STARTING, "libraries: none in 9")


def test_starting_without_gpus() -> None:
    """No GPU at all is a state."""
    inventory = build(replace(HOST, gpus=(), nvml=NvmlFact(reason="no devices")))
    assert inventory.state is DriverState.STARTING
    assert "GPUs: none" in (inventory.reason or "")


def test_starting_without_any_gpu_node() -> None:
    """GPUs without a single node mean that the nodes are not made yet."""
    nodes = tuple(n for n in NODES if n.target[len("/dev/nvidia") :].isdigit() is False)
    inventory = build(replace(HOST, nodes=nodes))
    assert inventory.state is DriverState.STARTING
    assert "none of 2 GPUs" in (inventory.reason or "")


def test_starting_lists_all_that_is_missing() -> None:
    """Every missing part is named at once."""
    bare = replace(HOST, nodes=(), libraries=(), gpus=(), nvml=NvmlFact(reason="not asked"))
    reason = build(bare).reason or ""
    assert [part.partition(":")[0] for part in reason.split("; ")] == [
        "nodes",
        "nodes",
        "libraries",
        "GPUs",
    ]


def test_params_lose_modify_device_files() -> None:
    """The container's params say 0, so that libraries make no nodes; the rest is unchanged."""
    files = dict(build(HOST).proc_files)
    assert files["params"] == "EnableMSI: 1\nModifyDeviceFiles: 0\nDeviceFileMode: 438\n"
    assert files["version"] == DRIVER.version_text
    assert files["registry"] == DRIVER.registry


def test_absent_proc_file_stays_absent() -> None:
    """A file that the driver does not have is not made up."""
    host = replace(HOST, driver=replace(DRIVER, registry=None))
    assert [name for name, _ in build(host).proc_files] == ["params", "version"]


def test_nodes_of_capabilities_and_of_features() -> None:
    """Nodes that need an explicit request are kept apart; DRM nodes may be another vendor's."""
    more = (
        node("/dev/nvidia-caps/nvidia-cap1", 241, 1),
        node("/dev/dri/card0", 226, 0),
        node("/dev/nvidia-modeset", 195, 254),
    )
    inventory = build(replace(HOST, nodes=(*NODES, *more)))
    assert [n.target for n in inventory.control] == [
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidiactl",
    ]
    assert [n.target for n in inventory.feature_nodes] == ["/dev/nvidia-caps/nvidia-cap1"]


def test_nvml_of_another_driver_is_not_believed() -> None:
    """Answers from before a driver change give no CUDA version and no names, but a note."""
    old = replace(HOST.nvml, driver_version="535.1")
    inventory = build(replace(HOST, nvml=old))
    assert (inventory.state, inventory.cuda_version) == (DriverState.READY, None)
    assert inventory.notes == (f"NVML: answers are of driver 535.1, {VERSION} is loaded",)


def test_generation_is_sixteen_digits() -> None:
    """The generation is 16 hex digits."""
    generation = build(HOST).generation
    assert len(generation) == 16
    assert int(generation, 16) >= 0


def test_generation_ignores_order_and_notes() -> None:
    """The order in which facts were read, and what is only said, change nothing."""
    shuffled = replace(HOST, libraries=HOST.libraries[::-1], nodes=HOST.nodes[::-1])
    noted = replace(HOST, nodes=(*NODES, node("/dev/nvidia-nvswitch0", 7, 0)))
    assert build(shuffled).generation == build(noted).generation == build(HOST).generation
    assert build(shuffled) == build(HOST)


CHANGES = {
    "version text": {"driver": replace(DRIVER, version_text="NVRM version: rebuilt\n")},
    "params": {"driver": replace(DRIVER, params="x")},
    "library inode": {
        "libraries": (
            HOST.libraries[0],
            replace(HOST.libraries[1], file=file(HOST.libraries[1].file.path, ino=2)),
        )
    },
    "library link": {"libraries": (replace(HOST.libraries[0], links=("a",)), HOST.libraries[1])},
    "program": {"programs": ()},
    "firmware": {"firmware": (DataFact("/f", file("/f")),)},
    "socket": {"ipc": ()},
    "GPU": {"gpus": HOST.gpus[:1], "nvml": nvml(nvml_gpu(0))},
    "node mode": {"nodes": (replace(NODES[0], mode=0o660), *NODES[1:])},
    "control node": {"nodes": NODES[:-1]},
    "CUDA version": {"nvml": replace(HOST.nvml, cuda_version=(12, 5))},
    "state": {"nodes": NODES[:-2]},
}


@pytest.mark.parametrize("what", CHANGES)
def test_generation_moves_with_any_part_of_a_plan(what: str) -> None:
    """Whatever a plan could contain moves the generation when it changes."""
    changed: HostFacts = replace(HOST, **CHANGES[what])  # type: ignore[arg-type]  # mixed kinds
    assert build(changed).generation != build(HOST).generation


def test_nodes_that_a_group_may_open_are_noted() -> None:
    """Users other than root need that group, which a hook cannot give (B098)."""
    closed = tuple(replace(n, mode=0o660, gid=44) for n in HOST.nodes)
    notes = [n for n in build(replace(HOST, nodes=closed)).notes if n.startswith(GROUP_NOTE)]
    assert len(notes) == 1
    assert notes[0].startswith("nodes: only root and group 44 may open them: the runtime wrapper")
    assert not [n for n in build(HOST).notes if n.startswith(GROUP_NOTE)]
