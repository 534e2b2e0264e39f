"""Starts whose plan is not staged: the agent is asked, then the planner; else it is refused."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from agent.plan import digest
from tests.containers.runc import Container
from tests.containers.spec import Json
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, asking, config, refused
from tests.kernel.trees import contents

pytestmark = NEEDS_CONTAINERS


@contextmanager
def agent(starter: Starter, answer: Callable[[bytes], bytes]) -> Iterator[list[bytes]]:
    """Something on the hook socket that answers one question; gives the questions' first lines."""
    asked: list[bytes] = []

    def serve() -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with client, client.makefile("rb") as question:
            header = question.readline()
            asked.append(header)
            client.sendall(answer(question.read(int(header.split()[2]))))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(starter.node.run_dir / "hook.sock"))
        listener.listen()
        thread = Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            # Wakes a thread that nobody has asked.
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def program(path: Path, script: str) -> str:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def with_planner(starter: Starter, planner: str) -> Json:
    """The hooks of a spec with that program as standalone planner."""
    hooks = starter.hooks()
    hooks["createRuntime"][0]["args"].append(planner)
    return hooks


def shown(container: Container) -> tuple[set[str], str, str]:
    """What the container has: mount points, loader's choice, devices."""
    table = container.exec("cat", "/proc/self/mountinfo").stdout.splitlines()
    loader = container.exec("probe-dlopen", "libcuda.so.1", "libnvidia-ml.so.1", "libm.so.6")
    devices = container.exec("find", "/dev", "-name", "nvidia*", "-exec", "probe-open", "{}", ";")
    return {line.split(" ")[4] for line in table}, loader.stdout, devices.stdout


def test_planner_gives_the_same_container(starter: Starter, root: Path) -> None:
    """Without an agent the standalone planner's container is that of a staged plan."""
    with starter.started(root, env=asking("0")) as container:
        staged = shown(container), contents(root)
    hooks = starter.hooks(standalone=True)
    with starter.started(root, env=asking("0"), hooks=hooks, stage=False) as container:
        assert (shown(container), contents(root)) == staged
    assert [record[4] for record in starter.records()] == ["staged", "standalone"]


@pytest.mark.parametrize("listed", ["test", "moby"])
def test_planner_knows_the_namespace(starter: Starter, root: Path, listed: str) -> None:
    """Where policy lists containerd namespaces, an unprivileged container of a listed one gets its
    GPU without the agent too, and one of another starts without."""
    path = starter.node.config
    old = path.read_text()
    rules = f'[policy]\nenv_requests = "privileged"\nenv_containerd_namespaces = ["{listed}"]\n'
    path.write_text(old + rules)
    try:
        hooks = starter.hooks(standalone=True)
        with starter.started(root, env=asking("0"), hooks=hooks, stage=False) as container:
            seen = container.exec("find", "/dev", "-name", "nvidia2").stdout
    finally:
        path.write_text(old)
    assert seen == ("/dev/nvidia2\n" if listed == "test" else "")


def test_planner_without_run_directory(starter: Starter, root: Path) -> None:
    """Before the agent's first start there is no run directory; the planner does without."""
    starter.node.run_dir.rename(starter.work / "moved")
    hooks = starter.hooks(standalone=True)
    with starter.started(root, hooks=hooks, stage=False) as container:
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
    assert not starter.node.run_dir.exists()


def test_refused_with_neither(starter: Starter, root: Path) -> None:
    """A GPU container without plan, agent and planner is refused, and it says what was tried."""
    before = contents(root)
    line = starter.refusal(root, stage=False)
    assert contents(root) == before
    expected = "nothing staged; agent does not answer: No such file or directory; no standalone"
    assert expected in line


@pytest.mark.parametrize("run_dir", [True, False])
def test_nothing_asked_nothing_needed(starter: Starter, root: Path, run_dir: bool) -> None:
    """A container that asks for nothing starts with no agent, and with no run directory."""
    if not run_dir:
        starter.node.run_dir.rename(starter.work / "moved")
    before = contents(root)
    hooks = with_planner(starter, program(starter.work / "planner", f"touch {starter.work}/asked"))
    with starter.started(root, env=("A=1",), hooks=hooks, stage=False):
        assert contents(root) == before
    assert not (starter.work / "asked").exists()


def test_word_alone_is_not_a_request(starter: Starter, root: Path) -> None:
    """A container that only looks like a GPU container starts when the planner says so."""
    hooks = starter.hooks(standalone=True)
    env = ("NVIDIA_VISIBLE_DEVICES=void",)
    with starter.started(root, env=env, hooks=hooks, stage=False) as container:
        assert container.exec("find", "/dev", "-name", "nvidia*").stdout == ""


def test_agent_is_asked(starter: Starter, root: Path) -> None:
    """What is not staged is asked for, and then replayed."""

    def answer(spec: bytes) -> bytes:
        starter.node.stage_spec(spec)
        return b"staged " + digest(spec).encode() + b"\n"

    with (
        agent(starter, answer) as asked,
        starter.started(root, stage=False) as container,
    ):
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
        # The bundle lies where containerd lays it, so its namespace is known.
        assert asked == [b"ask missing %d test\n" % len(config(container))]
    assert starter.records()[-1][4:6] == ["asked", "ok"]


def test_agent_refuses(starter: Starter, root: Path) -> None:
    """The agent's refusal is the hook's line, without its control characters."""
    with (
        agent(starter, lambda _: b"refuse no such GPU: \x1b[31m7\n") as asked,
        starter.prepared(root, stage=False, hooks=starter.hooks(standalone=True)) as container,
    ):
        assert refused(container.create(check=False)) == "no such GPU:  [31m7"
        assert len(asked) == 1


@pytest.mark.parametrize(
    "answer", [b"unable no room\n", b"", b"staged " + b"0" * 32 + b"\n", b"staged"]
)
def test_agent_cannot(starter: Starter, root: Path, answer: bytes) -> None:
    """An agent that cannot plan, or staged nothing, or goes away, is as good as none."""
    hooks = starter.hooks(standalone=True)
    with (
        agent(starter, lambda _: answer),
        starter.started(root, stage=False, hooks=hooks) as container,
    ):
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
    assert starter.records()[-1][4:6] == ["standalone", "ok"]


def test_answer_that_means_nothing(starter: Starter, root: Path) -> None:
    """An answer in no known words refuses the start."""
    with agent(starter, lambda _: b"perhaps\n"):
        assert "answer cannot be understood" in starter.refusal(root, stage=False)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 0", "exit status 0, no plan"),
        ("exit 7", "exit status 7, no plan"),
        ("echo nonsense", "exit status 0, no plan"),
        ("echo 5 5; echo short", "answer cut short"),
        ("echo 4 0; echo abc", "truncated: no end line"),
        ("yes | head -c 5000000", "answer too long"),
        ("kill -9 $$", "exit status -9, no plan"),
    ],
)
def test_planner_gives_no_plan(starter: Starter, root: Path, script: str, why: str) -> None:
    """A planner that fails, or answers what no planner answers, refuses the start."""
    before = contents(root)
    hooks = with_planner(starter, program(starter.work / "planner", script))
    assert why in starter.refusal(root, stage=False, hooks=hooks)
    assert contents(root) == before


def test_planner_with_a_verdict_but_no_plan(starter: Starter, root: Path) -> None:
    """A GPU container never starts without its GPU because half an answer is missing."""
    with starter.prepared(root) as container:
        entry = starter.node.run_dir / "staged" / digest(config(container))
        content = entry.rename(starter.work / "entry")
        size = content.stat().st_size
        script = f"echo {size} 0; cat {content}"
        hooks = with_planner(starter, program(starter.work / "planner", script))
        line = starter.refusal(root, stage=False, hooks=hooks)
    assert "verdict and plan do not fit together" in line


def test_planner_is_missing(starter: Starter, root: Path) -> None:
    """A planner that is not installed is named."""
    line = starter.refusal(root, stage=False, hooks=with_planner(starter, "/nowhere/python3"))
    assert "standalone planner: /nowhere/python3: No such file or directory" in line


def test_refusal_does_not_wait(starter: Starter, root: Path) -> None:
    """With nobody to ask, the answer comes at once and not after a deadline."""
    start = time.monotonic()
    starter.refusal(root, stage=False)
    assert time.monotonic() - start < 3
