"""States that no runtime would send: the hook refuses them in one clean line and does nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.containers.spec import make_spec
from tests.containers.staging import GPU_ENV, PYTHON, SimulatedNode, simulated_node
from tests.containers.workdir import work_dir
from tests.kernel.starts import LINE_LIMIT, NEEDS_CONTAINERS
from tests.kernel.trees import host_mounts, snapshot

pytestmark = NEEDS_CONTAINERS

NO_PID = (1 << 22) - 1


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose container is staged; no runtime has created it."""

    node: SimulatedNode
    path: Path
    root: Path

    def write(self, root_path: str) -> None:
        """Write and stage the spec."""
        spec = make_spec(self.root, ["true"], env=GPU_ENV)
        spec["root"]["path"] = root_path
        content = json.dumps(spec).encode()
        (self.path / "config.json").write_bytes(content)
        self.node.stage_spec(content)

    def state(self, **changes: object) -> bytes:
        """A right state but for `changes`; a value of `...` leaves its key out."""
        state = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": NO_PID}
        state |= {"bundle": str(self.path)} | changes
        return json.dumps({k: v for k, v in state.items() if v is not ...}).encode()


@pytest.fixture(scope="module")
def bundle() -> Iterator[Bundle]:
    """One bundle for all tests: nothing that they do may change it."""
    with work_dir() as work, simulated_node(work) as node:
        made = Bundle(node, work / "task/test/c1", work / "root")
        made.path.mkdir(parents=True)
        (made.root / "etc").mkdir(parents=True)
        made.write(str(made.root))
        yield made


def refusal(bundle: Bundle, state: bytes) -> str:
    """The line of a refusing hook; neither the root nor the host's mounts have changed."""
    command = [PYTHON, "-I", "-S", "-B", str(bundle.node.hook), str(bundle.node.run_dir)]
    before = snapshot(bundle.root), host_mounts()
    done = subprocess.run(command, check=False, input=state, capture_output=True, timeout=20)
    assert (snapshot(bundle.root), host_mounts()) == before
    assert (done.returncode, done.stdout) == (1, b"")
    assert len(done.stderr) <= LINE_LIMIT
    line = done.stderr.decode()
    assert line.startswith("gpu-agent: ")
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    return line.removeprefix("gpu-agent: ")[:-1]


@contextmanager
def another_namespace() -> Iterator[int]:
    """The pid of a process with a mount namespace of its own, whose root is the host's."""
    command = ["unshare", "--mount", "sh", "-c", "echo there; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"there\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (b"", "state: empty"),
        (b" ", "state: not a JSON object"),
        (b"\xff\xfe", "state: not a JSON object"),
        (b"nonsense", "state: not a JSON object"),
        (b"[]", "state: not a JSON object"),
        (b'{"id": "c1"', "state: not a JSON object"),
        (b'{"id": "c1"} {}', "state: not a JSON object"),
        (b"[" * 500_000, "state: not a JSON object"),
        (b'{"id":' * 100_000, "state: not a JSON object"),
        (b'{"pid": ' + b"9" * 10_000 + b"}", "state: not a JSON object"),
        (b" " * (1 << 20) + b"{}", "state: more than 1 MiB"),
    ],
    ids=lambda value: value[:12].decode("ascii", "replace") if isinstance(value, bytes) else "",
)
def test_not_a_state(bundle: Bundle, state: bytes, why: str) -> None:
    """What is not one JSON object of reasonable size is named as that."""
    assert refusal(bundle, state) == why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"id": ...}, "state: id: missing or too long"),
        ({"id": 7}, "state: id: missing or too long"),
        ({"id": ""}, "state: id: missing or too long"),
        ({"id": "a" * 129}, "state: id: missing or too long"),
        ({"id": "../c1"}, "state: id: character that no container id has"),
        ({"id": "c1\n"}, "state: id: character that no container id has"),
        ({"id": "c\0"}, "state: id: character that no container id has"),
        ({"id": "\ud800"}, "state: id: character that no container id has"),
        ({"pid": ...}, "state: pid: no process of a container"),
        ({"pid": "2"}, "state: pid: no process of a container"),
        ({"pid": True}, "state: pid: no process of a container"),
        ({"pid": 2.5}, "state: pid: no process of a container"),
        ({"pid": 0}, "state: pid: no process of a container"),
        ({"pid": 1}, "state: pid: no process of a container"),
        ({"pid": -2}, "state: pid: no process of a container"),
        ({"pid": 1 << 40}, "state: pid: no process of a container"),
        ({"bundle": ...}, "state: bundle: not an absolute path"),
        ({"bundle": 3}, "state: bundle: not an absolute path"),
        ({"bundle": "task/test/c1"}, "state: bundle: not an absolute path"),
        ({"bundle": "/a\0b"}, "state: bundle: not an absolute path"),
        ({"bundle": "/"}, "bundle: //config.json: No such file or directory"),
        ({"bundle": "/nowhere"}, "bundle: /nowhere/config.json: No such file or directory"),
        ({"bundle": "/\x1b[31m\n"}, "bundle: / [31m /config.json: No such file or directory"),
        ({"bundle": "/" + "é" * 600}, f"bundle: /{'é' * 485}"),
    ],
    ids=str,
)
def test_wrong_value(bundle: Bundle, changes: dict[str, object], why: str) -> None:
    """Each used key is checked before it is used; others do not matter."""
    line = refusal(bundle, bundle.state(**changes))
    assert line.replace("File name too long", "") == why or (len(why) > 400 and why[:400] in line)


def test_no_such_process(bundle: Bundle) -> None:
    """A process that is gone is named."""
    assert refusal(bundle, bundle.state()) == f"state: no process {NO_PID}"


def test_process_of_the_host(bundle: Bundle) -> None:
    """A process in the hook's own mount namespace is no container's."""
    pid = os.getpid()
    line = refusal(bundle, bundle.state(pid=pid))
    assert line == f"state: pid {pid} is in the host's mount namespace"


@pytest.mark.parametrize(
    ("root", "why"),
    [
        ("/", "state: the container root is the host's"),
        ("/nowhere", "state: no container root at /nowhere"),
        ("/etc/passwd", "state: no container root at /etc/passwd"),
        ("/proc/self/root", "Too many levels of symbolic links"),
    ],
)
def test_root_is_none(bundle: Bundle, root: str, why: str) -> None:
    """A root that is the host's own, absent, no directory or behind a magic link is refused."""
    bundle.write(root)
    try:
        with another_namespace() as pid:
            assert why in refusal(bundle, bundle.state(pid=pid))
    finally:
        bundle.write(str(bundle.root))


def link_spec(config: Path) -> None:
    """A link to the spec."""
    config.rename(config.with_name("elsewhere"))
    config.symlink_to("elsewhere")


def huge_spec(config: Path) -> None:
    """More than any spec is."""
    os.truncate(config, (16 << 20) + 1)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (link_spec, "Too many levels of symbolic links"),
        (huge_spec, "bundle: config.json: more than 16 MiB"),
    ],
)
def test_spec_is_no_spec(bundle: Bundle, spoil: Callable[[Path], None], why: str) -> None:
    """A spec that is a link or too big is not read."""
    spoil(bundle.path / "config.json")
    try:
        assert why in refusal(bundle, bundle.state())
    finally:
        (bundle.path / "config.json").unlink()
        bundle.write(str(bundle.root))
