"""A host right after boot, whole: no device node, agentd makes them, and containers start."""

from __future__ import annotations

import os
from collections.abc import Iterator

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


@pytest.fixture
def node() -> Iterator[LocalNode]:
    """A node whose simulated host had no device node when its agent started."""
    with LocalNode("a100x8-minors", image=session_image(), booted=True) as made:
        yield made


def test_containers_start_after_boot(node: LocalNode) -> None:
    """The first container finds its nodes and may open them, and no other GPU's (B111)."""
    dev = node.home / "host/dev"
    with node.container("first", ["NVIDIA_VISIBLE_DEVICES=4"]) as container:
        seen = container.sh("cd /dev && stat -c '%n %t:%T %a' nvidia*").splitlines()
        # No driver is behind the number: the kernel lets the container through to nothing.
        opened = container.sh("probe-open /dev/nvidia6 /dev/nvidiactl /dev/nvidia-uvm || true")
        other = container.sh("mknod /other c 195 5 && probe-open /other || true")
    assert [line.split()[0] for line in seen] == [
        *("nvidia-uvm", "nvidia-uvm-tools", "nvidia6", "nvidiactl"),
    ]
    assert {line.split()[1] for line in seen} >= {"c3:6", "c3:ff"}
    assert {line.split()[1] for line in opened.splitlines()} == {"ENXIO"}
    assert other.strip() == "/other EPERM"
    assert os.readlink(dev / "char/195:6") == "../nvidia6"
    notes = node.answer("inventory")["notes"]
    assert any(note.startswith("nodes: /dev/nvidia6: made as 195:6, mode 0666") for note in notes)


def test_nodes_that_go_while_the_agent_runs(node: LocalNode) -> None:
    """Whatever removed a node: the next container has it again."""
    (node.home / "host/dev/nvidia6").unlink()
    with node.container("next", ["NVIDIA_VISIBLE_DEVICES=4"]) as container:
        opened = container.sh("probe-open /dev/nvidia6 || true")
    assert opened.strip() == "/dev/nvidia6 ENXIO"
