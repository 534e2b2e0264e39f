"""Which device nodes a container has, and which devices the kernel lets it open."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from tests.containers.cgroup2 import CGROUPS, device_programs, in_cgroup2, is_unified
from tests.containers.runc import Container
from tests.kernel import device_filter
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, asking

pytestmark = NEEDS_CONTAINERS

# The recorded host: index 0 has minor 2, index 1 has minor 3.
CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}

WATCHED_STARTS = 10


def nodes(container: Container) -> set[str]:
    """Every node below the container's /dev that belongs to the driver."""
    return set(container.exec("find", "/dev", "-name", "nvidia*").stdout.split())


def opens(container: Container, *paths: str) -> dict[str, str]:
    """What the kernel answers to opening each path for reading and writing."""
    lines = container.exec("probe-open", *paths).stdout.splitlines()
    return dict(line.split(" ") for line in lines)


def open_by_number(starter: Starter, container: Container, target: str) -> str:
    """The answer to opening a node that the container makes itself, with `target`'s number."""
    node = starter.node.host.node(target)
    made = container.exec("mknod", "/tmp/made", "c", str(node.major), str(node.minor))
    assert made.status == 0, made.stderr
    try:
        return opens(container, "/tmp/made")["/tmp/made"]
    finally:
        container.exec("rm", "/tmp/made")


def assert_only_own(starter: Starter, container: Container, own: str, other: str) -> None:
    """Exactly the control nodes and `own` are there and open; `other` cannot be opened."""
    assert nodes(container) == {*CONTROL, own}
    assert set(opens(container, *CONTROL, own).values()) == {"ok"}
    assert open_by_number(starter, container, own) == "ok"
    assert open_by_number(starter, container, other) == "EPERM"


def test_only_granted_devices(either: Starter, root: Path) -> None:
    """A container sees and opens exactly what was granted; another GPU's number is EPERM."""
    with either.started(root, env=asking("0")) as container:
        assert_only_own(either, container, "/dev/nvidia2", "/dev/nvidia3")


@in_cgroup2
def test_only_granted_devices_in_v2(either: Starter, root: Path) -> None:
    """The same where the device rules are a BPF program."""
    assert is_unified()
    with either.started(root, env=asking("0")) as container:
        assert_only_own(either, container, "/dev/nvidia2", "/dev/nvidia3")


def test_every_runtime_in_v1(every: Starter, root: Path) -> None:
    """The same with every runtime whose device rules are a v1 cgroup's."""
    if is_unified():
        pytest.skip("needs a cgroup v1 hierarchy")
    with every.started(root, env=asking("0")) as container:
        assert_only_own(every, container, "/dev/nvidia2", "/dev/nvidia3")


@in_cgroup2
def test_every_runtime_in_v2(every: Starter, root: Path) -> None:
    """The same with every runtime where the device rules are a BPF program."""
    with every.started(root, env=asking("0")) as container:
        assert_only_own(every, container, "/dev/nvidia2", "/dev/nvidia3")


def test_two_containers_see_their_own(starter: Starter, work: Path, root: Path) -> None:
    """Two containers with different GPUs see their own and cannot open the other's."""
    with (
        starter.started(root, env=asking("0")) as one,
        starter.started(root, env=asking("1")) as other,
    ):
        assert_only_own(starter, one, "/dev/nvidia2", "/dev/nvidia3")
        assert_only_own(starter, other, "/dev/nvidia3", "/dev/nvidia2")


@in_cgroup2
def test_two_containers_see_their_own_in_v2(starter: Starter, root: Path) -> None:
    """The same where the device rules are a BPF program."""
    with (
        starter.started(root, env=asking("0")) as one,
        starter.started(root, env=asking("1")) as other,
    ):
        assert_only_own(starter, one, "/dev/nvidia2", "/dev/nvidia3")
        assert_only_own(starter, other, "/dev/nvidia3", "/dev/nvidia2")


def test_none_gives_driver_but_no_gpu(starter: Starter, root: Path) -> None:
    """`none` injects the driver's files and control nodes, and no GPU."""
    with starter.started(root, env=asking("none")) as container:
        assert nodes(container) == CONTROL
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
        assert open_by_number(starter, container, "/dev/nvidia2") == "EPERM"


def test_utility_alone_has_no_uvm(starter: Starter, root: Path) -> None:
    """A container that asks for `utility` only can neither see nor open the uvm device."""
    with starter.started(root, env=asking("0", "utility")) as container:
        assert nodes(container) == {"/dev/nvidiactl", "/dev/nvidia2"}
        assert open_by_number(starter, container, "/dev/nvidia-uvm") == "EPERM"


def test_v1_rules_are_exact(starter: Starter, root: Path) -> None:
    """The cgroup's list names each granted number with `rw`: no `m`, no wildcard."""
    if is_unified():
        pytest.skip("needs a cgroup v1 hierarchy")
    with starter.started(root, env=asking("0", "utility")) as container:
        cgroup = next(c for c in container.cgroups() if "/devices/" in str(c))
        rules = (cgroup / "devices.list").read_text().splitlines()
    granted = [starter.node.host.node(n) for n in ("/dev/nvidiactl", "/dev/nvidia2")]
    numbers = {f"c {n.major}:{n.minor} " for n in granted}
    assert {r for r in rules if r.startswith(tuple(numbers))} == {f"{n}rw" for n in numbers}
    majors = tuple(f"c {n.major}:* " for n in granted)
    assert not [r for r in rules if r.startswith(majors)]


@in_cgroup2
def test_v2_program_is_replaced(starter: Starter, root: Path) -> None:
    """There is one device program before and after the hook, and it is another one."""
    notes = starter.work / "notes"
    note = device_filter.entry("note", str(notes))
    hooks = {"createRuntime": [note, *starter.hooks()["createRuntime"], note]}
    with starter.started(root, hooks=hooks) as container:
        before, after = (line.split() for line in notes.read_text().splitlines())
        assert len(before) == len(after) == 1
        assert before != after
        assert device_programs(container.cgroups()[0]) == (int(after[0]),)


@in_cgroup2
def test_v2_is_never_without_a_program(starter: Starter, root: Path) -> None:
    """Whoever looks while the hook works sees one program at every moment, the old or the new."""
    for _ in range(WATCHED_STARTS):
        attached = programs_during_create(starter, root)
        assert {len(programs) for programs in attached} == {1}
        if len(set(attached)) == 2:
            return
    pytest.fail(f"in {WATCHED_STARTS} starts the watcher never came in time to see both programs")


def programs_during_create(starter: Starter, root: Path) -> list[tuple[int, ...]]:
    """What a watcher saw attached, from the first program on, while a container was created."""
    with starter.prepared(root) as container:
        cgroup = CGROUPS / container.spec["linux"]["cgroupsPath"].lstrip("/")
        seen: list[tuple[int, ...]] = []
        watcher = Thread(target=watch, args=(cgroup, container.bundle, seen))
        watcher.start()
        try:
            container.create()
        finally:
            (container.bundle / "created").touch()
            watcher.join()
    return seen[seen.index(next(filter(None, seen))) :]


def watch(cgroup: Path, bundle: Path, seen: list[tuple[int, ...]]) -> None:
    """Note the programs of `cgroup` as they change, until `bundle` says that it is created."""
    while not (bundle / "created").exists():
        if not cgroup.exists():
            continue
        programs = device_programs(cgroup)
        if not seen or programs != seen[-1]:
            seen.append(programs)


@in_cgroup2
def test_v2_several_programs(starter: Starter, root: Path) -> None:
    """Where two programs must both allow, both are replaced; `mknod` is granted by neither."""
    notes = starter.work / "notes"
    before = [device_filter.entry("add"), device_filter.entry("note", str(notes))]
    hooks = {"createRuntime": [*before, *starter.hooks()["createRuntime"]]}
    with starter.started(root, hooks=hooks, env=asking("0")) as container:
        old = {int(number) for number in notes.read_text().split()}
        new = set(device_programs(container.cgroups()[0]))
        assert (len(old), len(new), old & new) == (2, 2, set())
        assert set(opens(container, *CONTROL, "/dev/nvidia2").values()) == {"ok"}
        own = starter.node.host.node("/dev/nvidia2")
        made = container.exec("mknod", "/tmp/made", "c", str(own.major), str(own.minor))
        assert "Operation not permitted" in made.stderr
