"""Asking the agent and the planner: real sockets, real processes, bounded waits."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from hooks import slowpath
from hooks.errors import Unanswered

TASKS = slowpath.TASKS.decode()


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A directory with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="ga-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def listener(run_dir: Path) -> Iterator[socket.socket]:
    """The agent's socket, with nobody behind it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(run_dir / "hook.sock"))
        server.listen()
        yield server


def planner(path: Path, script: str) -> str:
    """A program that stands for the planner's interpreter."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def ask(run_dir: Path, spec: bytes = b"{}", namespace: bytes = b"") -> bytes:
    """Ask as the hook does."""
    return slowpath.ask(str(run_dir).encode(), spec, b"missing", namespace)


def test_no_socket(run_dir: Path) -> None:
    """An agent that never ran: said at once."""
    with pytest.raises(Unanswered, match="agent does not answer: No such file or directory"):
        ask(run_dir)


def test_dead_socket(run_dir: Path, listener: socket.socket) -> None:
    """An agent that has ended: its socket file is there, nobody listens."""
    listener.close()
    with pytest.raises(Unanswered, match="agent does not answer: Connection refused"):
        ask(run_dir)


def test_silent_agent(
    run_dir: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that takes the question and says nothing is given up in time."""
    assert listener.fileno() > 0
    monkeypatch.setattr(slowpath, "ASK_TIMEOUT_S", 0.1)
    start = time.monotonic()
    with pytest.raises(Unanswered, match="agent does not answer: timed out"):
        ask(run_dir)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("answer", "expected", "namespace"),
    [
        (b"staged ab\n", b"staged ab", b""),
        (b"\n", b"", b"k8s.io"),
        (b"refuse \xff\n", b"refuse \xff", b""),
    ],
)
def test_answer(
    run_dir: Path, listener: socket.socket, answer: bytes, expected: bytes, namespace: bytes
) -> None:
    """The question has the spec's length and all of it, however long, and the namespace if it is
    known; the answer is one line."""
    spec = b"x" * 300_000
    heard: list[bytes] = []

    def serve() -> None:
        client, _ = listener.accept()
        with client, client.makefile("rb") as question:
            heard.append(question.readline())
            heard.append(question.read(len(spec)))
            client.sendall(answer)

    thread = Thread(target=serve)
    thread.start()
    try:
        assert ask(run_dir, spec, namespace) == expected
    finally:
        thread.join()
    assert heard == [b"ask missing 300000" + (b" " + namespace if namespace else b"") + b"\n", spec]


@pytest.mark.parametrize("answer", [b"", b"staged ab", b"x" * 10_000])
def test_half_an_answer(run_dir: Path, listener: socket.socket, answer: bytes) -> None:
    """An answer without its end, or without an end, is none."""

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(100)
            client.sendall(answer)

    thread = Thread(target=serve)
    thread.start()
    try:
        with pytest.raises(Unanswered, match="agent"):
            ask(run_dir)
    finally:
        thread.join()


def bundle(home: Path, *names: str) -> Path:
    """A directory of root's that only root can change, with as many below it as there are names."""
    home.chmod(0o755)
    made = home.joinpath(*names)
    made.mkdir(parents=True)
    return made


@pytest.mark.skipif(os.geteuid() != 0, reason="bundles are root's")
@pytest.mark.parametrize("namespace", ["k8s.io", "moby", "a_b-1", "x" * 76])
def test_namespace_of_a_bundle(run_dir: Path, namespace: str) -> None:
    """A bundle where containerd lays it out proves the namespace of its container."""
    made = bundle(run_dir, "state", TASKS, namespace, "c1")
    assert slowpath.namespace_of(bytes(made), "c1") == namespace.encode()


@pytest.mark.skipif(os.geteuid() != 0, reason="bundles are root's")
@pytest.mark.parametrize(
    "names",
    [
        ("state", "io.containerd.runtime.v1.linux", "moby", "c1"),
        ("state", TASKS, "moby", "c2"),
        ("state", TASKS, "moby", "c1", "userdata"),
        (TASKS, "c1"),
        ("state", TASKS, "mo by", "c1"),
        ("state", TASKS, "x" * 77, "c1"),
    ],
)
def test_bundle_elsewhere_proves_nothing(run_dir: Path, names: tuple[str, ...]) -> None:
    """Another layout, another container's name and what is no namespace count for nothing."""
    assert slowpath.namespace_of(bytes(bundle(run_dir, *names)), "c1") == b""
    assert slowpath.namespace_of(b"/absent/%s/moby/c1" % TASKS.encode(), "c1") == b""
    assert slowpath.namespace_of(b"/", "c1") == slowpath.namespace_of(b"/c1", "c1") == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="bundles are root's")
@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("fault", ["owner", "group", "others", "link"])
def test_bundle_that_others_can_make(run_dir: Path, fault: str, level: int) -> None:
    """A directory on the way that another user could change, or a link, proves nothing."""
    made = bundle(run_dir, "state", TASKS, "moby", "c1")
    at = [made, *made.parents][4 - level]
    match fault:
        case "owner":
            os.chown(at, 1000, 0)
        case "group":
            at.chmod(0o775)
        case "others":
            at.chmod(0o757)
        case _:
            at.rename(run_dir / "moved")
            at.symlink_to(run_dir / "moved")
    assert slowpath.namespace_of(bytes(made), "c1") == b""


def test_planner_gets_the_spec_and_its_answer_is_split(tmp_path: Path) -> None:
    """The spec comes on the planner's stdin, whole; its two parts come back apart."""
    # The answer is the spec's size, so that all of it must have come.
    program = planner(tmp_path / "p", 'n=$(wc -c); printf "%d 3\\n%sabc" ${#n} "$n"')
    assert slowpath.standalone(program, [], b"x" * 300_000) == (b"300000", b"abc")


def test_planner_that_does_not_read(tmp_path: Path) -> None:
    """A planner that answers without reading its question is answered for all the same."""
    program = planner(tmp_path / "p", "echo 1 0; printf a")
    assert slowpath.standalone(program, [], b"x" * 300_000) == (b"a", b"")


def test_planner_arguments_and_environment(tmp_path: Path) -> None:
    """The planner runs isolated, with our arguments and an environment of ours alone."""
    script = f'echo "$@" >{tmp_path}/args; env >{tmp_path}/env; echo 0 0'
    slowpath.standalone(planner(tmp_path / "p", script), ["--config=/c"], b"")
    args = (tmp_path / "args").read_text()
    assert args == "-I -m agent.standalone --config=/c\n"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names <= {"PATH", "LC_ALL", "PWD", "OLDPWD", "SHLVL", "_"}


def test_hanging_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that does not end is killed, and the wait for it ends too."""
    monkeypatch.setattr(slowpath, "STANDALONE_TIMEOUT_S", 0.2)
    program = planner(tmp_path / "p", f"echo $$ >{tmp_path}/pid; exec sleep 60")
    with pytest.raises(Unanswered, match=r"no answer in 0\.2 s"):
        slowpath.standalone(program, [], b"{}")
    pid = (tmp_path / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}/exe").exists()
