"""The control API: a real server and a real client on a real unix socket."""

from __future__ import annotations

import dataclasses
import os
import socket
import stat
import threading
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent import control, report
from agent._pb.agent.v1 import agent_pb2 as pb
from agent.cli.client import Client
from agent.cli.show import as_dict
from agent.errors import AgentError, StageError, Unreachable, UsageError
from tests.fake_source import CONTAINERS, SOCKET, STATUS, UUID, FakeSource, run_directory, running


@pytest.fixture
def run_dir() -> Iterator[str]:
    with run_directory() as path:
        yield path


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def client(run_dir: str, source: FakeSource) -> Iterator[Client]:
    with running(source, run_dir):
        yield Client(run_dir)


def drift(value: type, descriptor: typing.Any) -> list[str]:
    """Where a dataclass and a message differ in names or in what may be absent."""
    hints = typing.get_type_hints(value)
    if set(hints) != {f.name for f in descriptor.fields}:
        return [f"{descriptor.name}: {set(hints) ^ {f.name for f in descriptor.fields}}"]
    found = []
    for field in descriptor.fields:
        kinds = typing.get_args(hints[field.name])
        optional = types.NoneType in kinds
        if field.message_type is None and field.has_presence != optional:
            found.append(f"{descriptor.name}.{field.name}")
        inner = [k for k in (hints[field.name], *kinds) if dataclasses.is_dataclass(k)]
        if inner and field.message_type is not None:
            assert isinstance(inner[0], type)
            found += drift(inner[0], field.message_type)
    return found


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (report.StatusReport, pb.StatusReport),
        (report.InventoryReport, pb.InventoryReport),
        (report.ContainerReport, pb.ContainerReport),
        (report.PlanReport, pb.PlanReport),
    ],
)
def test_messages_are_the_reports(value: type, message: type[pb.StatusReport]) -> None:
    """No field of a report is missing in its message, and none may be absent in only one."""
    assert drift(value, message.DESCRIPTOR) == []


def test_drift_is_found() -> None:
    """The comparison above sees a message that belongs to another report."""
    assert drift(report.GpuReport, pb.MigReport.DESCRIPTOR)


def plain(value: object) -> object:
    """A report as JSON would have it: phases are pairs there and objects here."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        if len(value) == 2 and isinstance(value[1], float):
            return {"name": value[0], "ms": value[1]}
        return [plain(item) for item in value]
    return value


def test_status_arrives_whole(client: Client) -> None:
    """Every value of the status report reaches the client, absent ones as absent."""
    assert as_dict(client.status()) == plain(STATUS)


def test_containers_arrive_whole(client: Client) -> None:
    """Containers with and without a plan or a replay arrive as they are."""
    assert as_dict(client.containers()) == {"containers": plain(CONTAINERS)}


def test_inventory_survives_odd_file_names(client: Client) -> None:
    """A library whose name is not UTF-8 is shown escaped and does not spoil the answer."""
    answer = client.inventory()
    assert [f.name for f in answer.libraries] == ["libcuda.so.580.1", "libodd\\udcff.so.580.1"]
    assert [(g.index, g.minor, g.health) for g in answer.gpus] == [
        (0, 3, "ok"),
        (1, 0, "the GPU is lost"),
    ]
    assert answer.gpus[0].migs[0].name == "1g.18gb"


def test_plan_passes_what_was_asked(client: Client, source: FakeSource) -> None:
    """Devices and capabilities reach the source in their order."""
    answer = client.plan(pb.PlanRequest(devices=["1", UUID], capabilities=["video"]))
    assert source.asked == [(("1", UUID), ("video",))]
    assert len(answer.steps) == 2


def test_plan_of_a_container(client: Client, source: FakeSource) -> None:
    """A container's plan is that of its own request."""
    client.plan(pb.PlanRequest(container="default/one"))
    assert source.asked == [(("all",), ("compute", "utility"))]


def test_plan_of_both_is_refused(client: Client) -> None:
    """A question that names a container and devices has no single answer."""
    with pytest.raises(AgentError) as caught:
        client.plan(pb.PlanRequest(container="one", devices=["0"]))
    assert caught.value.exit_code == 2


def test_known_errors_keep_message_and_exit_code(client: Client) -> None:
    """An error of the agent is the same error at the caller: words, hint, exit code."""
    with pytest.raises(AgentError) as caught:
        client.plan(pb.PlanRequest(devices=["7"]))
    assert str(caught.value) == f"no such GPU: 7: this host has {UUID}"
    assert caught.value.exit_code == 3
    with pytest.raises(AgentError) as caught:
        client.explain("nobody")
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_ambiguous_container_lists_candidates(client: Client) -> None:
    """An id in two namespaces is not guessed at; the error names both."""
    with pytest.raises(AgentError) as caught:
        client.explain("one")
    assert f"{SOCKET}:default/one" in str(caught.value)
    assert f"{SOCKET}:k8s.io/one" in str(caught.value)
    assert client.explain("k8s.io/one").verdict == "none"


def test_bug_in_the_source_ends_one_call_only(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """An unforeseen error is told by its class alone, is logged, and the next call works."""
    with pytest.raises(AgentError) as caught:
        client.plan(pb.PlanRequest(devices=["bug"]))
    assert str(caught.value) == "internal error: ZeroDivisionError"
    assert caught.value.exit_code == 1
    assert "secret" in caplog.text
    assert client.status().pid == 42


def test_source_that_never_answers_is_left(run_dir: str, source: FakeSource) -> None:
    """A call has a deadline: the caller gets `unreachable`, not a hang."""
    with running(source, run_dir), pytest.raises(Unreachable, match=r"no answer within 0\.2 s"):
        Client(run_dir, limit_s=0.2).plan(pb.PlanRequest(devices=["wait"]))


def test_huge_question_is_refused(client: Client) -> None:
    """A request far beyond any real one is not read, and the server lives on."""
    with pytest.raises(Unreachable):
        client.plan(pb.PlanRequest(devices=["0" * 1_000_000]))
    assert client.status().pid == 42


def test_socket_is_private_and_goes_away(run_dir: str, source: FakeSource) -> None:
    """The socket is 0600 while the server runs, and nothing is left after it."""
    with running(source, run_dir) as path:
        assert path == f"{run_dir}/control.sock"
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        assert os.listdir(run_dir) == ["control.sock"]
    assert os.listdir(run_dir) == []


def test_leftovers_of_a_killed_agent_are_replaced(run_dir: str, source: FakeSource) -> None:
    """Sockets that nobody listens on do not keep a new agent from starting."""
    for name in ("control.sock", "control.sock.new"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{run_dir}/{name}")
    with running(source, run_dir):
        assert Client(run_dir).status().pid == 42


def test_a_successors_socket_is_left_alone(run_dir: str, source: FakeSource) -> None:
    """An agent that ends after its successor began does not take the successor's socket away."""
    with running(source, run_dir) as path:
        os.unlink(path)
        Path(path).write_text("successor")
    assert Path(path).read_text() == "successor"


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o707])
def test_open_directory_is_refused(run_dir: str, source: FakeSource, mode: int) -> None:
    """Where others could reach the socket there is no socket."""
    os.chmod(run_dir, mode)
    with pytest.raises(StageError, match="others"), running(source, run_dir):
        pass
    assert os.listdir(run_dir) == []


def test_linked_and_absent_directories_are_refused(run_dir: str, source: FakeSource) -> None:
    """A symbolic link as run directory could be turned elsewhere later."""
    os.symlink(run_dir, f"{run_dir}/link")
    for path in (f"{run_dir}/link", f"{run_dir}/absent"):
        with pytest.raises(StageError), running(source, path):
            pass


def test_percent_in_the_path_is_itself(source: FakeSource) -> None:
    """gRPC's addresses are URIs; a path is not."""
    with run_directory() as top:
        odd = f"{top}/a%20b"
        os.mkdir(odd, 0o700)
        with running(source, odd):
            assert Client(odd).status().pid == 42


def test_absent_agent(run_dir: str) -> None:
    """No socket: said at once, exit code 4."""
    with pytest.raises(Unreachable, match="no such file") as caught:
        Client(run_dir).status()
    assert caught.value.exit_code == 4


def test_dead_socket(run_dir: str) -> None:
    """A socket that nobody listens on is an absent agent."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{run_dir}/control.sock")
    with pytest.raises(Unreachable, match="nothing answers"):
        Client(run_dir).status()


def test_silent_socket(run_dir: str) -> None:
    """A program that accepts and never speaks costs the caller its deadline, not more."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{run_dir}/control.sock")
        silent.listen()
        with pytest.raises(Unreachable):
            Client(run_dir, limit_s=0.3).status()


def test_other_file_in_the_sockets_place(run_dir: str) -> None:
    """Only a socket is spoken to."""
    Path(run_dir, "control.sock").write_text("")
    with pytest.raises(Unreachable, match="not a socket"):
        Client(run_dir).status()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a socket away")
def test_socket_of_another_user_is_not_trusted(run_dir: str) -> None:
    """A user who could put a socket there could answer as the agent."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{run_dir}/control.sock")
    os.chown(f"{run_dir}/control.sock", 1234, 1234)
    with pytest.raises(Unreachable, match="user 1234"):
        Client(run_dir).status()


def test_overlong_run_directory() -> None:
    """A path no socket can have is the caller's mistake."""
    with pytest.raises(UsageError):
        Client("/" + "a" * 120).status()


def test_unknown_method_is_another_version(client: Client) -> None:
    """A newer agentctl's verb does not look like a dead agent without a reason."""
    with grpc.insecure_channel(control.target(client.path)) as channel:
        call = channel.unary_unary(f"/{control.SERVICE}/Later", bytes, bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=5)
    assert "another version" in str(client._translated(caught.value))


def test_many_callers_at_once(client: Client) -> None:
    """More callers than the server serves at a time all get an answer or a clear refusal."""
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(client.status().pid)
        except Unreachable as e:
            answers.append(str(e))

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 24
    assert all(a == 42 or "too many calls" in str(a) for a in answers)
    assert answers.count(42) >= control.CONCURRENT_CALLS
