"""A whole GPU node in a temporary directory: containerd, the hook, agentd, and a driver.

The demo, the benchmarks and the end-to-end tests start one. The driver is the machine's own if
it has one, else that of a recorded host (`contrib.simhost`). containerd is private; nothing on
the machine is installed or changed, and everything is gone afterwards.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agent.cli.runtime import hook_entry, read_node
from contrib.simhost import tree
from hooks import build as hook_build
from tests.containerd.daemon import Daemon, search_path
from tests.containers.spec import PATH
from tests.containers.workdir import overlay_root

HOSTS = Path(__file__).parents[1] / "tests" / "hosts"
PYTHON = "/usr/bin/python3"
DRIVER = Path("/proc/driver/nvidia/version")
READY_S = 30.0
LIFETIME_S = 600
EXEC_TRIES = 5
END = "end-of-output"
_EXEC_IDS = itertools.count()
COMMAND_S = 60.0


def has_driver() -> bool:
    """Whether this machine has a loaded NVIDIA driver of its own."""
    return DRIVER.exists()


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A container that runs on a LocalNode."""

    containerd: Daemon
    name: str

    def sh(self, script: str) -> str:
        """What a shell in the container prints for `script`, which must change nothing.

        ctr sometimes loses the output of a short exec on a busy machine; a last line of our own
        tells that from a script that prints nothing.
        """
        for _ in range(EXEC_TRIES):
            command = ["task", "exec", "--exec-id", f"e{next(_EXEC_IDS)}", self.name]
            said = self.containerd.ctr(*command, "sh", "-ec", f"{script}\necho {END}")
            if said.endswith(f"{END}\n"):
                return said.removesuffix(f"{END}\n")
        raise RuntimeError(f"ctr task exec {self.name}: output lost {EXEC_TRIES} times")


class LocalNode:
    """A context manager; with `host` None the machine's own driver is used.

    A `booted` host has the driver's own device numbers and not one node: the agent makes them.
    Without the driver such a node can be opened (ENXIO, where a refusal is EPERM) but not used.
    `runtime` is the program that the wrapper becomes, runc of the search path if not given.
    """

    def __init__(
        self, host: str | None, *, image: Path, booted: bool = False, runtime: Path | None = None
    ) -> None:
        self._host = host
        self._runtime = runtime
        self._booted = booted
        self._image = image
        self._agent: subprocess.Popen[bytes] | None = None
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.containerd = undo.enter_context(Daemon())
            self.home = self.containerd.home
            self.run_dir = self.home / "run"
            self.wrapper = self.home / "lib" / hook_build.WRAPPER_FILE
            self.config = self.home / "agent.toml"
            settings = self._driver(undo)
            self._install_hook(settings)
            undo.callback(self.stop_agent)
            self.start_agent()
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    def start_agent(self) -> None:
        """Start agentd and wait until it says that it is ready."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            path = self.home / "ready.sock"
            path.unlink(missing_ok=True)
            ready.bind(str(path))
            ready.settimeout(READY_S)
            command = [sys.executable, "-m", "agent.daemon", "--config", str(self.config)]
            environment = {**os.environ, "NOTIFY_SOCKET": str(path)}
            with open(self.home / "agent.log", "ab") as log:
                self._agent = subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            try:
                ready.recv(64)
            except TimeoutError as e:
                raise RuntimeError(f"agentd is not ready: {self.agent_log()}") from e

    def stop_agent(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End agentd; what it staged stays."""
        if (agent := self._agent) is None:
            return
        self._agent = None
        agent.send_signal(number)
        try:
            agent.wait(10)
        finally:
            agent.kill()
            agent.wait()

    def agent_log(self) -> str:
        """What agentd wrote so far."""
        return (self.home / "agent.log").read_text(errors="replace")

    def agentctl(self, *arguments: str) -> str:
        """What agentctl prints; a failure raises with all that it said."""
        program = Path(sys.executable).with_name("agentctl")
        command = [str(program), "--run-dir", str(self.run_dir)]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"agentctl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def answer(self, *arguments: str) -> Any:
        """What agentctl says as JSON."""
        return json.loads(self.agentctl(*arguments, "--json"))

    @contextmanager
    def container(self, name: str, env: Sequence[str] = ()) -> Iterator[RunningContainer]:
        """A fresh container that waits, started through `ctr run` and the wrapper."""
        with overlay_root(self._image, self.home / "layers" / name) as root:
            settings = [part for variable in (PATH, *env) for part in ("--env", variable)]
            options = ["--detach", "--null-io", "--runc-binary", str(self.wrapper), "--rootfs"]
            try:
                self.containerd.ctr(
                    "run", *options, *settings, str(root), name, "sleep", str(LIFETIME_S)
                )
                yield RunningContainer(self.containerd, name)
            finally:
                self.containerd.remove(name)

    def _driver(self, undo: ExitStack) -> dict[str, str]:
        if self._host is None:
            return {}
        made = tree.build(HOSTS / self._host, self.home / "host", real_numbers=self._booted)
        undo.callback(tree.remove, made.root)
        for node in made.nodes if self._booted else ():
            Path(node.source).unlink()
        return made.settings()

    def _install_hook(self, host: dict[str, str]) -> None:
        """What an installation does: build the hook, write the config, set up the wrapper."""
        out = self.home / "lib"
        # By the interpreter that will run it: byte code belongs to one version.
        builder = [PYTHON, "-I", hook_build.__file__, str(out)]
        subprocess.run(builder, check=True, timeout=COMMAND_S)
        hook = {
            "python": PYTHON,
            "path": str(out / hook_build.HOOK_FILE),
            "wrapper": str(self.wrapper),
            "runtime": str(self._runtime or _find("runc")),
            "agent_python": sys.executable,
        }
        tables = {"agent": {"run_dir": str(self.run_dir)}, "host": host, "hook": hook}
        text = "".join(_table(name, values) for name, values in tables.items())
        self.config.write_text(f'{text}[[containerd]]\naddress = "{self.containerd.socket}"\n')
        node = read_node(str(self.config), str(self.config))
        lines = (node.hook.runtime, json.dumps(hook_entry(node)))
        (out / "wrapper.conf").write_text("\n".join(lines) + "\n")


def _table(name: str, values: dict[str, str]) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines, "", ""])


def _find(program: str) -> str:
    for directory in search_path().split(":"):
        if os.access(f"{directory}/{program}", os.X_OK):
            return f"{directory}/{program}"
    raise FileNotFoundError(program)
