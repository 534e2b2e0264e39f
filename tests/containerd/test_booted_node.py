"""A host right after boot, whole: no device node, agentd makes them, and containers start."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from contrib.localnode import LocalNode, RunningContainer
from tests.containerd.daemon import why_not
from tests.containers.image import missing_tools, session_image
from tests.containers.spec import make_spec
from tests.containers.workdir import overlay_root

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


@contextmanager
def as_user(node: LocalNode, name: str) -> Iterator[RunningContainer]:
    """A GPU container whose process is user 1000's; `ctr` takes a whole spec for that."""
    with overlay_root(session_image(), node.home / "layers" / name) as root:
        spec = make_spec(root, ["sleep", "600"], env=["NVIDIA_VISIBLE_DEVICES=4"])
        spec["process"]["user"] = {"uid": 1000, "gid": 1000}
        path = node.home / f"{name}.json"
        path.write_text(json.dumps(spec))
        options = ["--detach", "--null-io", "--runc-binary", str(node.wrapper)]
        try:
            node.containerd.ctr("run", *options, "--config", str(path), name)
            yield RunningContainer(node.containerd, name)
        finally:
            node.containerd.remove(name)


def test_user_gets_the_group_of_the_nodes(node: LocalNode) -> None:
    """Nodes of a group, made by the driver's parameters: a user is in it, and told so (B098)."""
    node.stop_agent()
    params = node.home / "host/proc/driver/nvidia/params"
    text = params.read_text().replace("DeviceFileGID: 0", "DeviceFileGID: 44")
    params.write_text(text.replace("DeviceFileMode: 438", "DeviceFileMode: 432"))
    for path in (node.home / "host/dev").glob("nvidia*"):
        if path.is_char_device():
            path.unlink()
    node.start_agent()
    with as_user(node, "user") as container:
        groups = container.sh("grep Groups: /proc/1/status").split()
        mode = container.sh("stat -c '%a %g' /dev/nvidia6").strip()
        why = node.answer("explain", "user")["why"]
    assert mode == "660 44"
    assert "44" in groups
    assert "nodes: only root and group 44 may open them" in why
