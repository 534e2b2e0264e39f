"""agentd as a process on simulated hosts: start, status, changes of the driver, end, recovery."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent import logs, readiness
from agent.plan import digest
from contrib import simhost
from hooks import planfile, slowpath
from tests.fake_host import spec

HOSTS = Path(__file__).parent / "hosts"
HOST = "a100x8-minors"
WAIT_S = 30.0
needs_host = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorded hosts are x86_64"),
]


@dataclass
class Agentd:
    """A node in a short directory: a simulated host, a config file, and agentd when started."""

    home: Path
    process: subprocess.Popen[str] | None = None

    @property
    def root(self) -> Path:
        return self.home / "host"

    @property
    def run_dir(self) -> Path:
        return self.home / "run"

    def configure(self, *, host: str = "", more: str = "") -> None:
        """Write the config file; without a host table that of the simulated one."""
        if not host:
            values = {"driver_root": self.root, "dev_root": self.root}
            values |= {"proc_root": self.root / "proc", "sys_root": self.root / "sys"}
            lines = [f'{key} = "{value}"' for key, value in values.items()]
            lines += ['proc_mask = "/proc/driver"', 'device_nodes = "leave"']
            host = "\n".join(["[host]", *lines, ""])
        agent = f'[agent]\nrun_dir = "{self.run_dir}"\nlog_level = "debug"\n'
        more = more or f'[[containerd]]\naddress = "{self.home}/absent.sock"\n'
        (self.home / "config.toml").write_text(host + agent + more)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "agent.daemon", "--config", str(self.home / "config.toml")]

    def start(self) -> None:
        """Start agentd; back when it says that it is ready."""
        with self.manager() as manager:
            process = self.spawn()
            manager.settimeout(0.5)
            for _ in range(int(WAIT_S / 0.5)):
                with suppress(TimeoutError):
                    assert manager.recv(64) == b"READY=1", self.log()
                    return
                assert process.poll() is None, self.log()
            raise AssertionError(f"not ready: {self.log()}")

    @contextmanager
    def manager(self) -> Iterator[socket.socket]:
        path = self.home / "notify.sock"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.settimeout(WAIT_S)
            manager.bind(str(path))
            yield manager

    def spawn(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "NOTIFY_SOCKET": str(self.home / "notify.sock")}
        with (self.home / "log").open("a") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, text=True, env=environment
            )
        return self.process

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; gives the exit status and how long it took."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(WAIT_S)
        self.process = None
        return status, time.monotonic() - began

    def log(self) -> str:
        return (self.home / "log").read_text()

    def ctl(self, *words: str) -> Any:
        """agentctl's answer as JSON."""
        program = [
            sys.executable,
            "-c",
            "from agent.cli.main import main; raise SystemExit(main())",
        ]
        command = [*program, "--run-dir", str(self.run_dir), *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def generation(self) -> str:
        """The generation in force, "" for none."""
        try:
            return (self.run_dir / "generation").read_text().strip()
        except FileNotFoundError:
            return ""

    def wait_for(self, what: Callable[[], bool], limit_s: float = WAIT_S) -> float:
        """How long it takes until `what` holds."""
        began = time.monotonic()
        while not what():
            assert time.monotonic() - began < limit_s, self.log()
            time.sleep(0.01)  # another process writes files; it gives no other signal
        return time.monotonic() - began

    def ask(self, content: bytes) -> tuple[planfile.Entry, planfile.Plan | None]:
        """What a hook that asks is answered, as it finds it staged."""
        answer = slowpath.ask(bytes(self.run_dir), content, b"missing")
        assert answer == b"staged " + digest(content).encode()
        return self.staged(content)

    def staged(self, content: bytes) -> tuple[planfile.Entry, planfile.Plan | None]:
        """The entry in force for a spec, and its plan."""
        entry = planfile.parse_entry((self.run_dir / "staged" / digest(content)).read_bytes())
        assert entry.generation.decode() == self.generation()
        if entry.verdict != b"plan":
            return entry, None
        content = (self.run_dir / "plans" / entry.detail.decode()).read_bytes()
        return entry, planfile.parse_plan(content)


@contextmanager
def node(host: str | None) -> Iterator[Agentd]:
    """A node with that recorded host; agentd, if it was started, is ended by force at last."""
    with tempfile.TemporaryDirectory(prefix="ga-", dir="/tmp") as home:
        made = Agentd(Path(home))
        try:
            if host is not None:
                simhost.build(HOSTS / host, made.root)
            made.configure()
            yield made
        finally:
            if made.process is not None:
                made.process.kill()
                made.process.wait()
            if host is not None:
                simhost.remove(made.root)


@contextmanager
def stranger(path: Path, answer: bytes) -> Iterator[None]:
    """A listener that is no containerd: it says `answer` to everyone, or nothing at all."""

    def talk() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                with client, suppress(OSError):
                    client.sendall(answer)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(100)
        talker = threading.Thread(target=talk)
        if answer:
            talker.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            if answer:
                talker.join()


@pytest.fixture
def agentd() -> Iterator[Agentd]:
    """A node whose agentd is ready."""
    with node(HOST) as made:
        made.start()
        yield made


class TestOnAHost:
    """With a driver."""

    pytestmark = needs_host

    def test_status_of_a_ready_agent(self, agentd: Agentd) -> None:
        """Ready means: the host is read, plans are staged, and both sockets answer."""
        status = agentd.ctl("status")
        assert status["driver"]["state"] == "ready"
        assert [g["minor"] for g in status["gpus"]] == [2, 3, 0, 1, 6, 7, 4, 5]
        assert status["generation"]["id"] == agentd.generation()
        assert status["plans_staged"] == 9
        assert agentd.process is not None
        assert status["pid"] == agentd.process.pid
        entry, plan = agentd.ask(spec("all"))
        assert (entry.verdict, plan is not None) == (b"plan", True)

    def test_absent_containerd_is_in_the_status(self, agentd: Agentd) -> None:
        """A socket that is not there does not keep the agent from working, and is named."""

        def told() -> bool:
            (containerd,) = agentd.ctl("status")["containerds"]
            return not containerd["connected"] and "no such" in (containerd["last_error"] or "")

        agentd.wait_for(told)

    def test_plan_stages_nothing(self, agentd: Agentd) -> None:
        """`agentctl plan` shows what a request would get, under the name it would have."""
        before = sorted(agentd.run_dir.rglob("*"))
        asked = agentd.ctl("plan", "--device", "3,5", "--capabilities", "video")
        assert sorted(agentd.run_dir.rglob("*")) == before
        entry, _ = agentd.ask(spec("3,5").replace(b"compute,utility", b"video"))
        assert entry.detail.decode() == asked["plan"]

    def test_sigterm_ends_it_at_once(self, agentd: Agentd) -> None:
        """SIGTERM ends the agent within a second, with status 0, and leaves what is staged."""
        agentd.ask(spec("0"))
        with agentd.manager() as manager:
            status, took_s = agentd.end()
            assert manager.recv(64) == b"STOPPING=1"
        assert (status, took_s < 1.0) == (0, True), (took_s, agentd.log())
        _, plan = agentd.staged(spec("0"))
        assert plan is not None
        assert "Traceback" not in agentd.log()

    def test_sigint_ends_it_too(self, agentd: Agentd) -> None:
        """As does SIGINT in a terminal."""
        assert agentd.end(signal.SIGINT)[0] == 0

    def test_second_agentd_says_one_line(self, agentd: Agentd) -> None:
        """Only one agent works in a run directory; another one says who does and leaves."""
        done = subprocess.run(
            agentd.command(), capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert agentd.process is not None
        pid = agentd.process.pid
        line = f"agentd: stage: {agentd.run_dir}: another agent holds it (pid {pid})\n"
        assert (done.returncode, done.stderr) == (1, line)
        assert agentd.ctl("status")["pid"] == pid

    def test_driver_change_is_a_new_generation(self, agentd: Agentd) -> None:
        """Another driver version is published within a second or two, without a restart."""
        agentd.ask(spec("0"))
        old = agentd.generation()
        version = "535.999.01"
        path = agentd.root / "proc/driver/nvidia/version"
        path.write_text(path.read_text().replace("535.161.08", version))
        took_s = agentd.wait_for(lambda: agentd.generation() not in ("", old))
        assert took_s < 2.0
        # The libraries are still the old ones: a named state, and nobody gets a mixed plan.
        agentd.wait_for(lambda: agentd.ctl("status")["driver"]["state"] == "driver-mismatch")
        mismatch = agentd.generation()
        libraries = agentd.root / "usr/lib"
        for library in list(libraries.rglob("*.so.535.161.08")):
            shutil.copy2(library, str(library).replace("535.161.08", version))
        agentd.wait_for(lambda: agentd.ctl("status")["driver"]["state"] == "ready")
        assert agentd.generation() != mismatch
        _, plan = agentd.ask(spec("0"))
        assert plan is not None
        assert plan.driver.decode() == version

    def test_killed_agent_recovers(self, agentd: Agentd) -> None:
        """After SIGKILL what is staged stays, and the next agent has the same generation."""
        agentd.ask(spec("0"))
        generation = agentd.generation()
        assert agentd.end(signal.SIGKILL)[0] == -signal.SIGKILL
        assert agentd.staged(spec("0"))[1] is not None
        (agentd.run_dir / "staged" / ".draft.new").write_bytes(b"half")
        agentd.start()
        assert agentd.generation() == generation
        assert agentd.staged(spec("0"))[1] is not None
        agentd.ask(spec("1"))
        assert agentd.ctl("status")["driver"]["state"] == "ready"

    def test_nvml_that_hangs(self) -> None:
        """With an NVML that never answers the agent is ready soon, answers, and ends at once."""
        with node(HOST) as agentd:
            answers = agentd.root / "nvml.answers"
            answers.write_text(f"delay_ms nvmlInitWithFlags -1\n{answers.read_text()}")
            began = time.monotonic()
            agentd.start()
            assert time.monotonic() - began < 6.0
            assert agentd.ask(spec("0"))[1] is not None
            status, took_s = agentd.end()
            assert (status, took_s < 1.0) == (0, True), (took_s, agentd.log())

    def test_debug_log_is_the_agents_own(self, agentd: Agentd) -> None:
        """At log level debug the libraries' own chatter is still left out."""
        lines = [line.split(" ") for line in agentd.log().splitlines()]
        assert ["ready" in words for words in lines].count(True) == 1
        names = {words[2] for words in lines if words[1] in ("debug", "info")}
        assert names <= {"daemon", "reconcile", "hooksocket", "containerd.stream"}


class TestAnywhere:
    """Without a driver, or without any start at all."""

    def test_no_driver_is_a_state(self) -> None:
        """An agent on a node without a driver is ready, and refuses with the reason."""
        with node(None) as agentd:
            agentd.start()
            assert agentd.ctl("status")["driver"]["state"] == "no-driver"
            line = slowpath.ask(bytes(agentd.run_dir), spec("0"), b"missing")
            assert line.startswith(b"refuse driver not ready: no-driver")
            assert agentd.end()[0] == 0

    @pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
    @pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorded hosts are x86_64")
    def test_driver_that_arrives_in_steps(self) -> None:
        """A driver that is installed while the agent runs is ready after the last of its steps."""
        with node(HOST) as agentd:
            parts = [agentd.root / "proc/driver", agentd.root / "dev", agentd.root / "usr"]
            for part in parts:
                part.rename(agentd.home / part.name)
            agentd.start()
            for part in (parts[2], parts[0], parts[1]):
                assert agentd.ctl("status")["driver"]["state"] != "ready"
                (agentd.home / part.name).rename(part)
            agentd.wait_for(lambda: agentd.ctl("status")["driver"]["state"] == "ready")
            assert agentd.ask(spec("all"))[1] is not None

    @pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
    def test_strange_containerd_is_in_the_status(self, answer: bytes) -> None:
        """A socket that says nothing, or not gRPC, is an error of that containerd and no more."""
        with node(None) as agentd, stranger(agentd.home / "absent.sock", answer):
            agentd.start()

            def told() -> bool:
                (containerd,) = agentd.ctl("status")["containerds"]
                assert not containerd["connected"]
                return containerd["last_error"] is not None

            agentd.wait_for(told)

    def test_malformed_config_names_all_mistakes(self, tmp_path: Path) -> None:
        """A config with mistakes ends the agent with status 2 and one line that has them all."""
        path = tmp_path / "config.toml"
        path.write_text('[agent]\nrun_dir = "run"\n[host]\nnvml = 1\n[hooks]\n')
        command = [sys.executable, "-m", "agent.daemon", "--config", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        for mistake in ("agent.run_dir", "host.nvml", "hooks: unknown key"):
            assert mistake in done.stderr

    def test_run_directory_that_cannot_be(self) -> None:
        """A run directory that others could change is one line and status 1."""
        with node(None) as agentd:
            agentd.home.chmod(0o777)
            done = subprocess.run(
                agentd.command(), capture_output=True, text=True, timeout=WAIT_S, check=False
            )
            said = f"agentd: stage: {agentd.home}: others than root may change it\n"
            assert (done.returncode, done.stderr) == (1, said)

    @pytest.mark.parametrize("address", ["", "/absent/notify.sock", "relative", f"/{'x' * 200}"])
    def test_no_service_manager(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a manager, or with one that is gone, nothing happens."""
        monkeypatch.setenv(readiness.VARIABLE, address)
        readiness.notify("READY=1")

    def test_manager_that_does_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A manager whose socket is full does not hold the agent up; an abstract one is reached."""
        name = f"gpu-agent-test-{os.getpid()}"
        monkeypatch.setenv(readiness.VARIABLE, f"@{name}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(f"\0{name}")
            for _ in range(1000):
                readiness.notify("STATUS=x")
            assert manager.recv(64) == b"STATUS=x"

    def test_log_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A record is one line: time, level, name, message, values; no control characters."""
        root = logging.getLogger()
        own = logging.getLogger(logs.PACKAGE)
        old = (root.handlers[:], root.level, own.level)
        try:
            logs.set_up("debug")
            extra = {"path": "a b", "n": 1, "evil": "x\n\x1b[31my"}
            logging.getLogger("agent.stage").debug("put\tin", extra=extra)
            logging.getLogger("grpc").info("chatter")
            logging.getLogger("asyncio").debug("chatter")
            logging.getLogger("watchfiles.main").warning("trouble")
            try:
                raise ValueError("why\nnot")
            except ValueError:
                logging.getLogger("agent.x").exception("failed")
        finally:
            root.handlers, root.level = old[0], old[1]
            own.setLevel(old[2])
        lines = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
        assert lines == [
            'debug stage put?in path="a b" n=1 evil=x??[31my',
            "warning watchfiles.main trouble",
            'error x failed error="ValueError: why?not"',
        ]

    @pytest.mark.parametrize(("level", "root"), [("debug", 30), ("info", 30), ("error", 40)])
    def test_libraries_log_warnings_at_least(self, level: str, root: int) -> None:
        """The log level is the agent's; libraries say warnings, or what is worse if it asks so."""
        everything, own = logging.getLogger(), logging.getLogger(logs.PACKAGE)
        old = (everything.handlers[:], everything.level, own.level)
        try:
            logs.set_up(level)
            assert everything.level == root
            assert own.level == logging.getLevelNamesMapping()[level.upper()]
        finally:
            everything.handlers, everything.level = old[0], old[1]
            own.setLevel(old[2])
