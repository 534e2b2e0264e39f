"""The hook socket: hooks get their answer, and no peer holds the agent up or makes it fall."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from agent import hooksocket
from agent.errors import RequestError, StageError, UnknownGpu
from hooks import slowpath
from hooks.errors import Unanswered

DIGEST = "ab" * 16
HEADER = b"ask missing 4\n"


class Agent:
    """What answers behind the socket; what it was asked, and how it behaves for some specs."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bool, str | None]] = []
        self.hanging = threading.Event()

    async def answer(self, spec: bytes, stale: bool, namespace: str | None) -> str:
        self.asked.append((spec, stale, namespace))
        match spec:
            case b"unknown":
                raise UnknownGpu(["7"], ["0"])
            case b"nonsense":
                raise RequestError("NVIDIA_VISIBLE_DEVICES", "\n", "all")
            case b"full":
                raise StageError("/run/x", "No space left on device")
            case b"defect":
                raise ZeroDivisionError("secret")
            case b"hang":
                self.hanging.set()
                await anyio.sleep_forever()
        return DIGEST


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A run directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ga-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def agent() -> Agent:
    return Agent()


@contextmanager
def serving(
    run_dir: Path, answer: hooksocket.Answer, deadline_s: float = 3.5
) -> Iterator[BlockingPortal]:
    """The real server in a thread of its own, listening."""

    @asynccontextmanager
    async def server() -> AsyncIterator[None]:
        listening = anyio.Event()
        serve = partial(
            hooksocket.serve, str(run_dir), answer, listening.set, deadline_s=deadline_s
        )
        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            await listening.wait()
            yield
            group.cancel_scope.cancel()

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(server()):
        yield portal


@pytest.fixture
def server(run_dir: Path, agent: Agent) -> Iterator[Path]:
    # The deadline is longer than the clients wait, so that it is not what ends a conversation.
    with serving(run_dir, agent.answer, deadline_s=60):
        yield run_dir


def ask(run_dir: Path, spec: bytes, reason: bytes = b"missing", namespace: bytes = b"") -> bytes:
    return slowpath.ask(bytes(run_dir), spec, reason, namespace)


@contextmanager
def connected(run_dir: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(str(run_dir / "hook.sock"))
        yield client


def answer_to(run_dir: Path, *parts: bytes) -> bytes:
    """Everything the server says to these bytes; nothing if it hangs up."""
    with connected(run_dir) as client:
        try:
            for part in parts:
                client.sendall(part)
            return b"".join(iter(lambda: client.recv(4096), b""))
        except (ConnectionResetError, BrokenPipeError):
            return b""


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (b"{}", b"staged " + DIGEST.encode()),
        (b"", b"staged " + DIGEST.encode()),
        (b"unknown", b"refuse no such GPU: 7: this host has 0"),
        (
            b"nonsense",
            b"refuse request: NVIDIA_VISIBLE_DEVICES='\\n': expected all",
        ),
        (b"full", b"unable stage: /run/x: No space left on device"),
    ],
)
def test_the_hook_gets_its_answer(server: Path, spec: bytes, line: bytes) -> None:
    """`staged`, `refuse` with the error's words, `unable` where the agent is at fault."""
    assert ask(server, spec) == line


def test_spec_and_reason_arrive(server: Path, agent: Agent) -> None:
    """A spec of many packets arrives whole, `stale` is told from `missing`, and a namespace is
    there if the hook knows one."""
    big = b"x" * 3_000_000
    ask(server, big)
    ask(server, b"{}", b"stale")
    ask(server, b"{}", b"missing", b"k8s.io")
    assert agent.asked == [(big, False, None), (b"{}", True, None), (b"{}", False, "k8s.io")]


@pytest.mark.parametrize(
    "question",
    [
        b"ask missing\n",
        b"ask missing 4 a b\nspec",
        b"ask missing 4 \nspec",
        b"ask missing 4 ../x\nspec",
        b"ask missing 4 \xff\nspec",
        b"ask missing 4 " + b"a" * 77 + b"\nspec",
        b"ask other 4\nspec",
        b"ask missing -4\nspec",
        b"ask missing 4x\nspec",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\n",
        b"\xff\x00\n",
        b"ask missing " + b"1" * 100 + b"\n",
        b"a" * 100_000,
        b"ask missing 16777217\n",
        b"ask missing 99999999999999999999\n",
    ],
)
def test_nonsense_is_hung_up_on(server: Path, agent: Agent, question: bytes) -> None:
    """What is no question, or announces too large a spec, gets no answer and asks nobody."""
    assert answer_to(server, question) == b""
    assert agent.asked == []
    assert ask(server, b"{}").startswith(b"staged")


def test_half_a_question_is_no_question(server: Path, agent: Agent) -> None:
    """A peer that closes in the middle of its spec is forgotten."""
    with connected(server) as client:
        client.sendall(HEADER + b"sp")
    assert ask(server, b"{}").startswith(b"staged")
    assert agent.asked == [(b"{}", False, None)]


def test_question_in_single_bytes(server: Path) -> None:
    """However the bytes are cut, the question is the same."""
    parts = [bytes([b]) for b in HEADER + b"spec"]
    assert answer_to(server, *parts) == b"staged " + DIGEST.encode() + b"\n"


def test_defect_behind_the_socket_ends_one_conversation(
    server: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody foresaw is logged, tells the peer nothing, and the next is answered."""
    assert answer_to(server, b"ask missing 6\ndefect") == b""
    assert ask(server, b"{}").startswith(b"staged")
    assert [r.exc_info[0] for r in caplog.records if r.exc_info] == [ZeroDivisionError]


def test_slow_peer_is_cut_off(run_dir: Path, agent: Agent) -> None:
    """Who sends a byte now and then, or nothing, loses the connection at the deadline."""
    with serving(run_dir, agent.answer, deadline_s=0.3):
        began = time.monotonic()
        with connected(run_dir) as silent, connected(run_dir) as half:
            half.sendall(b"ask missing 1000\nx")
            assert silent.recv(1) == b""
            assert half.recv(1) == b""
        assert 0.2 < time.monotonic() - began < 5
        assert ask(run_dir, b"{}").startswith(b"staged")


def test_slow_answer_is_cut_off(run_dir: Path, agent: Agent) -> None:
    """A hook whose answer takes too long hears nothing at the deadline and plans alone."""
    with (
        serving(run_dir, agent.answer, deadline_s=0.2),
        pytest.raises(Unanswered, match="without an answer"),
    ):
        ask(run_dir, b"hang")


def test_silent_agent_meets_the_hooks_own_timeout(
    run_dir: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even an agent that never answers holds a hook for a bounded time only."""
    monkeypatch.setattr(slowpath, "ASK_TIMEOUT_S", 0.3)
    with serving(run_dir, agent.answer, deadline_s=60):
        with pytest.raises(Unanswered, match="agent does not answer: timed out"):
            ask(run_dir, b"hang")
        assert agent.hanging.is_set()


def test_deadlines_fit_together() -> None:
    """The agent gives up before the hook does, and waits for NVML less than both."""
    from agent.reconcile import HEAL_S

    assert HEAL_S < hooksocket.DEADLINE_S < slowpath.ASK_TIMEOUT_S


def test_a_hundred_hooks_at_once(server: Path, agent: Agent) -> None:
    """More hooks than are served at a time are all answered."""
    specs = [b"spec %d" % n for n in range(100)]
    with ThreadPoolExecutor(100) as pool:
        lines = list(pool.map(partial(ask, server), specs))
    assert set(lines) == {b"staged " + DIGEST.encode()}
    assert sorted(spec for spec, *_ in agent.asked) == sorted(specs)


def test_hooks_wait_for_a_busy_agent(run_dir: Path, agent: Agent) -> None:
    """While the loop is busy 200 hooks find room to wait instead of being turned away."""
    with serving(run_dir, agent.answer) as portal, ThreadPoolExecutor(200) as pool:
        busy, free = threading.Event(), threading.Event()

        def block() -> None:
            busy.set()
            assert free.wait(20)

        portal.start_task_soon(block)
        assert busy.wait(20)
        waiting = [pool.submit(ask, run_dir, b"%d" % n) for n in range(200)]
        while len(connections(run_dir)) < 200 and not any(w.done() for w in waiting):
            os.sched_yield()
        free.set()
        assert {w.result() for w in waiting} == {b"staged " + DIGEST.encode()}


def connections(run_dir: Path) -> list[str]:
    """Connections to the socket that wait to be accepted, as the kernel lists them."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [x for x in lines if x.endswith(f"{run_dir}/hook.sock") and " 00010000 " not in x]


AS_NOBODY = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
client = socket.socket(socket.AF_UNIX)
client.settimeout(10)
try:
    client.connect(sys.argv[1])
    client.sendall(b"ask missing 2\\n{}")
    print(repr(client.recv(100)))
except ConnectionError as e:
    print("hung up")
except OSError as e:
    print(e.strerror)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_only_root_is_answered(server: Path, agent: Agent) -> None:
    """Another user cannot connect, and even if he could he would be hung up on."""
    said = []
    server.chmod(0o755)
    for mode in (0o600, 0o666):
        (server / "hook.sock").chmod(mode)
        command = [sys.executable, "-I", "-S", "-c", AS_NOBODY, str(server / "hook.sock")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        said.append(done.stdout.strip())
    assert said[0] == "Permission denied"
    assert said[1] in ("b''", "hung up")
    assert agent.asked == []


def test_socket_is_closed_to_others(server: Path) -> None:
    """The socket is 0600 whatever the umask."""
    assert (server / "hook.sock").stat().st_mode & 0o777 == 0o600


def test_dead_agents_socket_is_replaced(run_dir: Path, agent: Agent) -> None:
    """A socket that a killed agent left does not keep the next one from listening."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(run_dir / "hook.sock"))
    with pytest.raises(Unanswered, match="Connection refused"):
        ask(run_dir, b"{}")
    with serving(run_dir, agent.answer):
        assert ask(run_dir, b"{}").startswith(b"staged")


def test_no_socket_is_an_error_of_ours(run_dir: Path, agent: Agent) -> None:
    """Where no socket can be made the agent says which and why."""

    async def body() -> None:
        await hooksocket.serve(str(run_dir / "absent"), agent.answer, lambda: None)

    with pytest.raises(StageError, match=r"absent/hook\.sock: no hook socket: No such file"):
        anyio.run(body)
