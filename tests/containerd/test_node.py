"""The main job, whole: real containerd and runc, agentd, the wrapper, and a simulated driver."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contrib.localnode import LocalNode
from tests.containerd.daemon import why_not
from tests.containers.image import missing_tools, session_image

MISSING = why_not() or missing_tools()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "all there"),
    pytest.mark.timeout(180),
]

HOST = "a100x8-minors"
MINORS = (2, 3, 0, 1, 6, 7, 4, 5)
"""Of the recorded host, by NVML index: the two differ, as they may."""
NODES = "ls /dev | grep nvidia"
CONTROL = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    """One node for all tests of this module."""
    with LocalNode(HOST, image=session_image()) as made:
        yield made


def asks(gpu: int | str) -> list[str]:
    """The environment of a container that asks for one GPU."""
    return [f"NVIDIA_VISIBLE_DEVICES={gpu}"]


def test_container_gets_exactly_its_gpu(node: LocalNode) -> None:
    """A GPU is named by index, and its node by the driver's minor; nothing else is there."""
    with node.container("exact", asks(4)) as container:
        seen = set(container.sh(NODES).split())
        opened = container.sh("probe-open /dev/nvidia6 /dev/nvidiactl /dev/nvidia-uvm")
    assert seen == CONTROL | {"nvidia6"}
    assert opened.split("\n")[:3] == [
        "/dev/nvidia6 ok",
        "/dev/nvidiactl ok",
        "/dev/nvidia-uvm ok",
    ]


def test_two_containers_see_only_their_own(node: LocalNode) -> None:
    """What one container may open, the other may not, even through a node it makes itself."""
    with node.container("one", asks(0)) as one, node.container("two", asks(1)) as two:
        assert "nvidia2" in one.sh(NODES).split()
        assert "nvidia2" not in two.sh(NODES).split()
        number = one.sh("stat -c '%t %T' /dev/nvidia2").split()
        major, minor = (int(n, 16) for n in number)
        made = two.sh(f"mknod /other c {major} {minor} && probe-open /other || true")
        assert made.strip() == "/other EPERM"


def test_container_without_request_gets_nothing(node: LocalNode) -> None:
    """No variable, no device, no file, no entry; and the agent can say why."""
    with node.container("nothing") as container:
        assert container.sh(f"{NODES} || echo none").strip() == "none"
        told = node.answer("explain", "nothing")
    assert told["verdict"] == "none"
    assert told["why"].startswith("not a GPU container")


def test_unknown_gpu_refuses_the_start_in_one_line(node: LocalNode) -> None:
    """The message that reaches the caller names what was asked and what exists."""
    with pytest.raises(AssertionError) as refusal, node.container("unknown", asks(9)):
        pass
    said = str(refusal.value)
    assert "no such GPU: 9: this host has 0 (GPU-a1008000-" in said


def test_thirty_containers_ten_at_a_time(node: LocalNode) -> None:
    """Each gets its own GPU, and at least 99 % of the hooks found their plan staged."""
    before = node.answer("status")["replays"]

    def start(number: int) -> set[str]:
        with node.container(f"many{number}", asks(number % 8)) as container:
            return set(container.sh(NODES).split())

    with ThreadPoolExecutor(10) as pool:
        seen = list(pool.map(start, range(30)))
    assert seen == [CONTROL | {f"nvidia{MINORS[n % 8]}"} for n in range(30)]
    after = node.answer("status")["replays"]
    assert after["failures"] == before["failures"]
    assert after["count"] - before["count"] == 30
    assert (after["staged"] - before["staged"]) / 30 >= 0.99


def test_agent_killed_and_back(node: LocalNode) -> None:
    """Without the agent containers start by the standalone planner; afterwards it knows them."""
    with node.container("before", asks(0)):
        node.stop_agent(signal.SIGKILL)
        with node.container("orphan", asks(5)) as container:
            assert set(container.sh(NODES).split()) == CONTROL | {"nvidia7"}
            with node.container("plain-orphan") as plain:
                assert plain.sh(f"{NODES} || echo none").strip() == "none"
            node.start_agent()
            known = {c["id"]: c for c in node.answer("containers")["containers"]}
            status = node.answer("status")
        assert known["before"]["verdict"] == known["orphan"]["verdict"] == "plan"
        assert known["orphan"]["replay"]["path"] == "standalone"
        assert status["containers_with_gpus"] == 2
    with node.container("again", asks(1)) as container:
        assert set(container.sh(NODES).split()) == CONTROL | {"nvidia3"}
        assert node.answer("explain", "again")["replay"]["path"] == "staged"


def test_nothing_is_left_of_deleted_containers(node: LocalNode) -> None:
    """When their containers are gone, no entry is staged, and only the usual plans stay."""
    with node.container("last", asks(3)):
        assert len(list(Path(node.run_dir, "staged").iterdir())) == 1
    assert node.answer("status")["entries_staged"] == 0
    assert list(Path(node.run_dir, "staged").iterdir()) == []
