"""A real containerd of our own: private root, state and socket, gone without a trace.

The binaries come from PATH, or from GPU_AGENT_CONTAINERD_DIR: a folder with another version's
containerd, shim, ctr and runc (also an unpacked .deb tree). It never speaks to the machine's
containerd and never reads /etc. What it cannot keep private is runc's state directory and the
shims' sockets below /run/containerd, which containerd gives no option for; ids are therefore to
be unique, and what lies there under our ids is removed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from agent.containerd import methods
from tests.containers.workdir import work_dir

DIR_VARIABLE = "GPU_AGENT_CONTAINERD_DIR"
NEEDED = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
READY_S = 30.0
COMMAND_S = 60.0
CONFIG = """\
version = 2
imports = []
root = "{home}/root"
state = "{home}/state"
disabled_plugins = [{disabled}]
[grpc]
  address = "{home}/c.sock"
[ttrpc]
  address = "{home}/c.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{home}/opt"
"""
CRI = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images")
NRI = ("io.containerd.nri.v1.nri",)


def search_path() -> str:
    """The PATH that finds the containerd under test."""
    usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    folder = os.environ.get(DIR_VARIABLE)
    if not folder:
        return usual
    return ":".join([*(str(Path(folder, d)) for d in (".", "usr/bin", "usr/sbin")), usual])


def why_not() -> str:
    """Why no containerd can be started here, or an empty string."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [n for n in NEEDED if shutil.which(n, path=search_path()) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


@dataclass(frozen=True, slots=True)
class Shim:
    """A running shim of one containerd."""

    pid: int
    namespace: str
    id: str


class Daemon:
    """A context manager; `cri` and `config` add to the configuration."""

    def __init__(self, *, cri: bool = False, config: str = "") -> None:
        self._cri = cri
        self._extra = config
        self._env = {"PATH": search_path(), "LC_ALL": "C"}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.home = undo.enter_context(work_dir())
            self.socket = self.home / "c.sock"
            self._write_config()
            undo.callback(self._remove_shims)
            undo.callback(self.stop)
            self.start()
            undo.callback(self._remove_containers)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = ["containerd", "--config", str(self.home / "config.toml")]
        with open(self.home / "log", "ab") as log:
            self._process = subprocess.Popen(
                command, env=self._env, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_ready(self._process)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the daemon; its containers run on."""
        if (process := self._process) is None:
            return
        self._process = None
        process.send_signal(number)
        try:
            process.wait(COMMAND_S)
        finally:
            process.kill()
            process.wait()

    def ctr(self, *args: str, namespace: str = "default", check: bool = True) -> str:
        """What `ctr ARGS` prints; a failure raises with all that it said."""
        command = ["ctr", "--address", str(self.socket), "--namespace", namespace, *args]
        done = subprocess.run(
            command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"ctr {' '.join(args)}: {done.stdout}{done.stderr}")
        return done.stdout

    def create(self, id: str, spec: dict[str, Any], namespace: str = "default") -> None:
        """Store a container with this OCI spec; nothing runs."""
        self.ctr("container", "create", "--config", self._spec(id, spec), id, namespace=namespace)

    def run(self, id: str, spec: dict[str, Any], namespace: str = "default") -> None:
        """Create and start a container with this OCI spec, detached and without output."""
        path = self._spec(id, spec)
        self.ctr("run", "--detach", "--null-io", "--config", path, id, namespace=namespace)

    def remove(self, id: str, namespace: str = "default") -> None:
        """Kill a container if it runs, and delete it."""
        self.ctr("task", "kill", "--signal", "SIGKILL", id, namespace=namespace, check=False)
        self.ctr("task", "delete", "--force", id, namespace=namespace, check=False)
        self.ctr("container", "delete", id, namespace=namespace)

    def log(self) -> str:
        """What the daemon wrote so far."""
        return (self.home / "log").read_text(errors="replace")

    def shims(self) -> list[Shim]:
        """The shims that belong to this daemon, running now."""
        entries = (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        return [shim for entry in entries if (shim := self._as_shim(entry)) is not None]

    def _as_shim(self, entry: Path) -> Shim | None:
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return None  # gone meanwhile
        if "containerd-shim" not in words[0] or str(self.socket) not in words:
            return None
        options = dict(itertools.pairwise(words))
        return Shim(int(entry.name), options.get("-namespace", ""), options.get("-id", ""))

    def _spec(self, id: str, spec: dict[str, Any]) -> str:
        path = self.home / f"{id}.json"
        path.write_text(json.dumps(spec))
        return str(path)

    def _write_config(self) -> None:
        disabled = ", ".join(f'"{name}"' for name in (() if self._cri else CRI) + NRI)
        text = CONFIG.format(home=self.home, disabled=disabled) + self._extra
        (self.home / "config.toml").write_text(text)

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise AssertionError(f"containerd ended with {process.returncode}: {self.log()}")
            if self._answers():
                return
        raise AssertionError(f"containerd does not answer: {self.log()}")

    def _answers(self) -> bool:
        """Whether it answers within half a second."""
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50)]
        with grpc.insecure_channel(f"unix://{self.socket}", options) as channel:
            ask = channel.unary_unary(
                methods.VERSION.path,
                request_serializer=methods.VERSION.question.SerializeToString,
                response_deserializer=methods.VERSION.answer.FromString,
            )
            try:
                ask(methods.VERSION.question(), timeout=0.5, wait_for_ready=True)
            except grpc.RpcError:
                return False
        return True

    def _remove_containers(self) -> None:
        if self._process is None:
            return
        for namespace in self.ctr("namespace", "list", "--quiet", check=False).split():
            listed = self.ctr("container", "list", "--quiet", namespace=namespace, check=False)
            for id in listed.split():
                self.remove(id, namespace)

    def _remove_shims(self) -> None:
        for shim in self.shims():
            state = f"/run/containerd/runc/{shim.namespace}"
            command = ["runc", "--root", state, "delete", "--force", shim.id]
            subprocess.run(command, env=self._env, timeout=COMMAND_S, check=False)
            os.kill(shim.pid, signal.SIGKILL)
        for address in self._shim_sockets():
            address.unlink(missing_ok=True)

    def _shim_sockets(self) -> list[Path]:
        """The sockets that shims noted in their bundles; a killed shim leaves its own behind."""
        bundles = self.home / "state" / "io.containerd.runtime.v2.task"
        noted = [p.read_text() for p in bundles.glob("*/*/address")]
        noted += [json.loads(p.read_text())["address"] for p in bundles.glob("*/*/bootstrap.json")]
        return [Path(address.removeprefix("unix://")) for address in noted]
