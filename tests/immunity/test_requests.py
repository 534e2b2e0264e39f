"""What images, pods, states and plans claim: nothing is granted that nobody granted."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import uuid
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from agent.errors import StageError
from agent.plan import DeviceRule, Link, Place, Step, Text
from hooks.devices import _open_below
from hooks.planfile import conflict
from hooks.syscalls import CGROUP2_SUPER_MAGIC
from tests.containers.cgroup2 import in_cgroup2
from tests.containers.runc import CGROUPS, Container, remove_cgroup
from tests.containers.spec import make_spec
from tests.containers.staging import GPU_ENV
from tests.immunity.oracles import SECRET, clean_refusal, host_untouched, some
from tests.immunity.races import cell
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, asking, config
from tests.kernel.test_devices import assert_only_own, opens

pytestmark = NEEDS_CONTAINERS

CLAIMS = {
    "cdi.k8s.io/evil": "nvidia.com/gpu=all",
    "nvidia.com/gpu": "all",
    "io.kubernetes.cri.container-name": "../../etc",
    "gpu-agent/plan": "/srv/plan",
    "gpu-agent/driver-root": "/proc/self/root",
    "org.opencontainers.image.env": "NVIDIA_VISIBLE_DEVICES=all",
}


def test_annotations_grant_nothing(starter: Starter, root: Path, canary: Path) -> None:
    """T-ANN: annotations that ask for GPUs and name paths give neither."""
    with (
        host_untouched(canary),
        starter.started(root, env=(), annotations=CLAIMS) as container,
    ):
        assert container.exec("find", "/dev", "-name", "nvidia*").stdout == ""
    assert starter.records()[-1][4] == "none"


def test_annotations_widen_nothing(starter: Starter, root: Path) -> None:
    """T-ANN: beside a request for one GPU they give no other one."""
    with starter.started(root, env=asking("0"), annotations=CLAIMS) as container:
        assert_only_own(starter, container, "/dev/nvidia2", "/dev/nvidia3")


HOSTILE_VALUES = ["/etc", "../../dev/sda", "0,../1", "0,/srv", "nvidia.com/gpu=../0", "0;id"]


@pytest.mark.parametrize("value", some(2, HOSTILE_VALUES))
def test_variable_names_no_path(starter: Starter, root: Path, canary: Path, value: str) -> None:
    """T-ANN: a device that is a path is none; the line shows that value alone, in one line."""
    env = (f"NVIDIA_VISIBLE_DEVICES={value}", f"TOKEN={SECRET}")
    hooks = starter.hooks(standalone=True)
    with (
        host_untouched(canary),
        starter.prepared(root, env=env, stage=False, hooks=hooks) as container,
    ):
        clean_refusal(starter, root, container)


@pytest.mark.parametrize("minor", some(1, [1, 255, 254]))
def test_node_that_the_container_makes(starter: Starter, root: Path, minor: int) -> None:
    """T-1056: nodes of a driver's number that the container makes itself do not open."""
    own = starter.node.host.node("/dev/nvidiactl")
    with starter.started(root, env=asking("0")) as container:
        made = container.exec("mknod", "/tmp/made", "c", str(own.major), str(minor))
        assert made.status == 0
        granted = {starter.node.host.node(n).minor for n in ("/dev/nvidia2", "/dev/nvidiactl")}
        assert minor not in granted
        assert opens(container, "/tmp/made") == {"/tmp/made": "EPERM"}


@pytest.mark.parametrize("field", some(2, ["*", "-1", "1.0", "0x1", ""]))
def test_rule_that_is_no_number(starter: Starter, root: Path, field: str) -> None:
    """T-1056: a plan whose device is no exact number is refused, whoever wrote it."""
    rule = DeviceRule(195, 0)
    object.__setattr__(rule, "minor", field)
    with starter.prepared(root) as container:
        starter.stage_more(config(container), rule)
        clean_refusal(starter, root, container)


def cgroup_with_colons(starter: Starter, root: Path) -> None:
    """A container whose cgroup has colons and a blank: only its own rules change."""
    top = f"gpu-agent-test-{uuid.uuid4().hex[:12]}"
    linux = make_spec(root, ["true"])["linux"] | {"cgroupsPath": f"/{top}/a:b:c d"}
    try:
        with (
            starter.started(root, env=asking("0"), changes={"linux": linux}) as container,
            starter.started(root, env=()) as plain,
        ):
            assert_only_own(starter, container, "/dev/nvidia2", "/dev/nvidia3")
            node = starter.node.host.node("/dev/nvidia2")
            plain.exec("mknod", "/tmp/made", "c", str(node.major), str(node.minor))
            assert opens(plain, "/tmp/made") == {"/tmp/made": "EPERM"}
            plain.exec("rm", "/tmp/made")
    finally:
        for directory in (CGROUPS, *CGROUPS.glob("*/")):
            if (directory / top).is_dir():
                remove_cgroup(directory / top)


def test_cgroup_with_colons(starter: Starter, root: Path) -> None:
    """T-CG, cgroup v1."""
    cgroup_with_colons(starter, root)


@in_cgroup2
def test_cgroup_with_colons_in_v2(starter: Starter, root: Path) -> None:
    """T-CG, cgroup v2."""
    cgroup_with_colons(starter, root)


@pytest.mark.parametrize("path", [b"/../../x", b"/..", b"/a/../../b"])
def test_cgroup_outside_of_the_namespace(path: bytes) -> None:
    """T-CG: a cgroup that lies above what the hook can see is not looked for elsewhere."""
    with pytest.raises(PermissionError, match="outside of this namespace"):
        _open_below((b"/sys/fs/cgroup",), path, CGROUP2_SUPER_MAGIC)


FILE = "/usr/bin/nvidia-smi"
DOUBLE: list[Step] = [
    Link(Place.ABSOLUTE, FILE, "elsewhere"),
    Link(Place.ABSOLUTE, f"{FILE}/below", "elsewhere"),
    Link(Place.LIBS, "libcuda.so.1", "elsewhere"),
    Link(Place.LIBS, "libcuda.so.1/a/b", "elsewhere"),
    Link(Place.ABSOLUTE, "/usr/bin", "elsewhere"),
    Text(FILE, "content"),
]


@pytest.mark.parametrize("step", some(3, DOUBLE), ids=lambda step: step.target)
def test_two_steps_for_one_place(starter: Starter, root: Path, step: Step) -> None:
    """T-DUP: a plan whose steps lie on or in one another is refused, at replay and by the agent."""
    with starter.prepared(root) as container:
        made = starter.node.stage_spec(config(container))
        assert made is not None
        with pytest.raises(StageError, match="two steps for"):
            starter.node.stage.put_plan(replace(made, steps=(*made.steps, step)))
        starter.stage_more(config(container), step)
        assert "plan: two steps for" in clean_refusal(starter, root, container)


def test_same_place_by_another_name(starter: Starter, root: Path) -> None:
    """T-DUP: what is one place in this image only is found at replay."""
    step = Link(Place.ABSOLUTE, "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "elsewhere")
    with starter.prepared(root) as container:
        starter.stage_more(config(container), step)
        assert "plan: two steps for" in clean_refusal(starter, root, container)


def test_conflicts_are_all_found() -> None:
    """T-DUP: neighbours whose names begin alike are no conflict."""
    assert conflict([b"/a/b", b"/a/bc", b"/a/b.d/e", b"/b"]) is None
    assert conflict([b"/a/b", b"/c", b"/a/b"]) == b"/a/b"
    assert conflict([b"/a/b/c/d", b"/a"]) == b"/a"


def test_pid_of_another_container(starter: Starter, root: Path, canary: Path) -> None:
    """T-STATE: a pid that meanwhile belongs to another container's process leads to no root."""
    attacked = cell(starter, root)
    with starter.started(root, env=()) as other, host_untouched(canary):
        table = Path(f"/proc/{other.pid}/mountinfo")
        before = table.read_text()
        line = run_with_pid(starter, attacked.bundle, other.pid)
        assert table.read_text() == before
    assert line.startswith("gpu-agent: state: no container root at")


def test_pid_that_ended(starter: Starter, root: Path) -> None:
    """T-STATE: so does one that nobody has any more."""
    attacked = cell(starter, root)
    with subprocess.Popen(["true"]) as ended:
        pass
    line = run_with_pid(starter, attacked.bundle, ended.pid)
    assert line == f"gpu-agent: state: no process {ended.pid}\n"


def run_with_pid(starter: Starter, bundle: Path, pid: int) -> str:
    """The hook's line for a state that names `pid`."""
    command = starter.hooks()["createRuntime"][0]["args"]
    state = json.dumps({"id": "c1", "pid": pid, "bundle": str(bundle)}).encode()
    done = subprocess.run(command, check=False, input=state, capture_output=True, timeout=20)
    assert done.returncode == 1
    return done.stderr.decode()


def test_agent_that_is_not_roots(starter: Starter, root: Path) -> None:
    """T-SOCK: whoever listens on the hook socket and is not root is told nothing."""
    heard: list[bytes] = []
    with ListeningAsNobody(starter.node.run_dir / "hook.sock", heard):
        with starter.prepared(root, stage=False, env=(*GPU_ENV, f"T={SECRET}")) as container:
            line = clean_refusal(starter, root, container)
    assert "owner is not root" in line
    assert heard == [b""]


class ListeningAsNobody:
    """A server whose credentials, as its clients see them, are nobody's."""

    def __init__(self, path: Path, heard: list[bytes]) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        # A listener's credentials are those of the moment of listen(2).
        os.seteuid(65534)
        try:
            self._listener.listen()
        finally:
            os.seteuid(0)
        self._thread = Thread(target=self._serve, args=(heard,))

    def _serve(self, heard: list[bytes]) -> None:
        client, _ = self._listener.accept()
        with client:
            client.settimeout(10)
            heard.append(client.recv(100))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *ignored: object) -> None:
        self._thread.join(20)
        self._listener.close()


def test_restarted_container_is_checked_again(starter: Starter, root: Path) -> None:
    """T-CR: what an earlier run was given says nothing: after the driver changed the same
    container, as a restore would start it, is refused until it is planned anew."""
    with starter.prepared(root) as container:
        container.create()
        container.delete()
        starter.node.stage.set_generation("f" * 32)
        again = Container(starter.work, container.spec, name=container.name, namespace="again")
        with again:
            assert config(again) == config(container)
            assert "older generation" in clean_refusal(starter, root, again)
