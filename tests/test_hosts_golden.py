"""Recorded hosts: what the agent makes of each of them, as a text beside the recording.

`REWRITE_GOLDENS=1 pytest tests/test_hosts_golden.py` writes the texts anew; read the difference
before committing it. What differs from one temporary tree to the next (inodes, times, the
generation made of them) is left out, and paths are those below the driver root.
"""

from __future__ import annotations

import difflib
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from agent.facts.nvml import read_nvml
from agent.facts.read import read_host
from agent.facts.root import HostRoots
from agent.facts.values import HostFacts, NodeFact, NvmlFact
from agent.inventory import DriverState, Gpu, Inventory, build
from contrib import simhost

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(p.name for p in HOSTS.iterdir() if (p / "tree.txt").is_file())
REWRITE = "REWRITE_GOLDENS"
TIMEOUT_S = 20.0

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorded hosts are x86_64"),
]

ReadHost = Callable[[str], HostFacts]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that has each built host under its name."""
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def facts_of(place: Path) -> Iterator[ReadHost]:
    """Build a recorded host with its real device numbers and read it, once per module."""
    built: dict[str, HostFacts] = {}

    def read(name: str) -> HostFacts:
        if name not in built:
            host = simhost.build(HOSTS / name, place / name, real_numbers=True)
            built[name] = read_host(host_roots(host), ask_nvml(host))
        return built[name]

    yield read
    for root in sorted(place.iterdir()):
        simhost.remove(root)


def host_roots(host: simhost.SimHost) -> HostRoots:
    root = str(host.root)
    return HostRoots(root, root, f"{root}/proc", f"{root}/sys")


def ask_nvml(host: simhost.SimHost) -> NvmlFact:
    """The host's NVML answers, through its own library and the real worker."""
    library = None if host.nvml_library is None else str(host.nvml_library)
    return anyio.run(read_nvml, library, TIMEOUT_S)


def describe(inventory: Inventory) -> Iterator[str]:
    """One line per fact of an inventory."""
    yield f"state {inventory.state}"
    yield f"reason {inventory.reason}"
    yield f"driver {inventory.driver_version}"
    yield f"user {inventory.user_version}"
    yield f"cuda {inventory.cuda_version}"
    for gpu in inventory.gpus:
        yield from describe_gpu(gpu)
    for node in inventory.control:
        yield f"control {describe_node(node)}"
    for node in inventory.feature_nodes:
        yield f"feature {describe_node(node)}"
    for lib in inventory.libraries:
        links = " ".join(lib.links) or "-"
        yield f"library {lib.machine} {lib.file.path} soname {lib.soname} links {links}"
        if lib.subdir:
            yield f"library {lib.machine} {lib.file.path} subdir {lib.subdir}"
    for program in inventory.programs:
        yield f"program {program.name} {program.file.path}"
    for kind in ("firmware", "data", "modules"):
        for data in getattr(inventory, kind):
            named = f" names {data.library[0]}" if data.library else ""
            links = f" links {' '.join(data.links)}" if data.links else ""
            yield f"{kind} {data.target} {data.file.path}{named}{links}"
    for ipc in inventory.ipc:
        yield f"ipc {ipc.kind} {ipc.target} {ipc.source}"
    for name, text in inventory.proc_files:
        for line in text.splitlines():
            yield f"proc {name} {line.rstrip()}"
    for note in inventory.notes:
        yield f"note {note}"


def describe_gpu(gpu: Gpu) -> Iterator[str]:
    """The lines of one GPU."""
    yield f"gpu {gpu.index} minor {gpu.minor} {gpu.uuid} {gpu.bus_id}"
    yield f"gpu {gpu.index} name {gpu.name} brand {gpu.brand} arch {gpu.compute_capability}"
    yield f"gpu {gpu.index} node {describe_node(gpu.node)}"
    yield f"gpu {gpu.index} mig {'on' if gpu.mig_enabled else 'off'}"
    for node in gpu.drm:
        yield f"gpu {gpu.index} drm {describe_node(node)}"
    for mig in gpu.migs:
        start = f"gpu {gpu.index}:{mig.ordinal}"
        yield f"{start} {mig.uuid} gi {mig.gi} ci {mig.ci} name {mig.name}"
        yield f"{start} gi-node {describe_node(mig.gi_node)}"
        yield f"{start} ci-node {describe_node(mig.ci_node)}"
    if gpu.problem is not None:
        yield f"gpu {gpu.index} problem {gpu.problem}"


def describe_node(node: NodeFact | None) -> str:
    if node is None:
        return "none"
    return f"{node.target} {node.major}:{node.minor} {node.mode & 0o7777:04o} {node.uid}:{node.gid}"


@pytest.mark.parametrize("name", NAMES)
def test_inventory_is_as_recorded(name: str, facts_of: ReadHost, place: Path) -> None:
    """The inventory of the recorded host is, line by line, the text in its folder."""
    inventory = build(facts_of(name))
    lines = [line.replace(str(place / name), "") for line in describe(inventory)]
    golden = HOSTS / name / "inventory.txt"
    if os.environ.get(REWRITE):
        golden.write_text("".join(f"{line}\n" for line in lines))
    old = golden.read_text().splitlines() if golden.exists() else []
    diff = "\n".join(difflib.unified_diff(old, lines, "recorded", "now", lineterm="", n=1))
    assert not diff, f"{golden.name} of {name} differs ({REWRITE}=1 writes it anew):\n{diff}"


@pytest.mark.parametrize("name", NAMES)
def test_same_facts_same_generation(name: str, facts_of: ReadHost) -> None:
    """The generation depends on nothing but the facts."""
    facts = facts_of(name)
    assert build(facts).generation == build(facts).generation
    assert len(build(facts).generation) == 16


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("h200-580", DriverState.READY),
        ("a100x8-minors", DriverState.READY),
        ("a100-mig", DriverState.READY),
        ("l40s-lost", DriverState.READY),
        ("mid-upgrade", DriverState.MISMATCH),
        ("no-driver", DriverState.NO_DRIVER),
    ],
)
def test_state_of_each_host(name: str, state: DriverState, facts_of: ReadHost) -> None:
    """Each host is in the state it was recorded for, whatever its golden text says."""
    assert build(facts_of(name)).state is state


def test_stand_in_numbers_are_as_good(tmp_path: Path) -> None:
    """A host whose nodes have stand-in numbers is READY, with no node taken for a stale one."""
    host = simhost.build(HOSTS / "a100-mig", tmp_path / "root")
    try:
        inventory = build(read_host(host_roots(host), ask_nvml(host)))
    finally:
        simhost.remove(host.root)
    assert (inventory.state, inventory.notes) == (DriverState.READY, ())
    assert all(g.node and not g.problem and len(g.migs) in (0, 3) for g in inventory.gpus)
    stand_in = host.node("/dev/nvidia0")
    assert [(n.major, n.minor) for g in inventory.gpus if (n := g.node) and g.minor == 0] == [
        (stand_in.major, stand_in.minor)
    ]


def test_nodes_follow_minors_not_indices(facts_of: ReadHost) -> None:
    """NVML's order is the bus order, and each GPU's node is that of its minor."""
    gpus = build(facts_of("a100x8-minors")).gpus
    assert [g.minor for g in gpus] == [2, 3, 0, 1, 6, 7, 4, 5]
    assert [g.node.target for g in gpus if g.node] == [f"/dev/nvidia{g.minor}" for g in gpus]


def test_mig_devices_have_their_own_nodes(facts_of: ReadHost) -> None:
    """Each MIG device has the capability nodes of its GPU's minor, instance and part."""
    first, second = build(facts_of("a100-mig")).gpus
    found = [
        (m.gi, m.gi_node and m.gi_node.minor, m.ci_node and m.ci_node.minor) for m in first.migs
    ]
    assert found == [(1, 147, 148), (5, 183, 184), (13, 255, 256)]
    assert second.migs == ()


def test_a_lost_gpu_is_the_only_problem(facts_of: ReadHost) -> None:
    """The lost GPU is named with its reason, its neighbours stay usable."""
    problems = {g.index: g.problem for g in build(facts_of("l40s-lost")).gpus}
    assert [index for index, problem in problems.items() if problem] == [1]
    assert problems[1] is not None
    assert "lost" in problems[1]


def test_a_mismatch_names_both_versions(facts_of: ReadHost) -> None:
    """During an upgrade the reason has the module's and the libraries' version, and no plan."""
    reason = build(facts_of("mid-upgrade")).reason
    assert reason is not None
    assert "550.54.14" in reason
    assert "550.54.15" in reason


def test_a_script_is_no_program(facts_of: ReadHost) -> None:
    """nvidia-smi of the H200 host is the program behind the script in /usr/bin."""
    programs = {p.name: p.file.path for p in facts_of("h200-580").programs}
    assert programs["nvidia-smi"].endswith("/usr/local/nvidia/bin/nvidia-smi")


def test_the_32_bit_copies_are_told_apart(facts_of: ReadHost) -> None:
    """Both architectures of one name are in the inventory, each from its own directory."""
    libraries = build(facts_of("a100x8-minors")).libraries
    cuda = {f.machine: f.file.path for f in libraries if f.name == "libcuda.so.535.161.08"}
    assert sorted(cuda) == ["i386", "x86_64"]
    assert "/i386-linux-gnu/" in cuda["i386"]
