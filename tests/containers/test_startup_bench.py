"""The start-up bench: its arithmetic, its JSON, and that an interrupt leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrib.bench.peers import peers
from contrib.bench.startup import as_json, as_report, create_once, summarise
from tests.containers.image import build_image, missing_tools
from tests.containers.staging import simulated_node
from tests.containers.workdir import mounts_below, work_dir

BENCH = (sys.executable, "-m", "contrib.bench.startup", "--json", "--libraries", "10")
ROOT = Path(__file__).parents[2]

needs_containers = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="containers need root"),
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "all there"),
]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory that the bench takes for /tmp."""
    with work_dir() as path:
        yield path


def test_differences_are_taken_within_a_round() -> None:
    """A slow round that slows both containers changes nothing; ratios are over the floor."""
    result = summarise(
        {
            "plain": [20, 90, 21],
            "true": [21, 91, 22],
            "floor": [30, 100, 31],
            "ours": [34, 104, 36],
            "nothing": [31, 101, 32],
        }
    )
    assert result.added_ms == {"true": 1, "floor": 10, "ours": 14, "nothing": 11}
    assert result.ratio == {"ours": pytest.approx(1.4), "nothing": pytest.approx(1.1)}
    assert (result.plain_ms, result.n) == (21, 3)


def test_unmeasured_variant_is_none() -> None:
    """A variant that could not be measured is None, not a number."""
    result = summarise({"plain": [20], "true": [21], "floor": [30]})
    assert result.added_ms["ours"] is None
    assert result.ratio == {"ours": None, "nothing": None}
    assert json.loads(as_json(result))["added_ms"]["ours"] is None


def test_spread_is_of_the_differences() -> None:
    """Quartiles are those of the pairwise differences, not of the times."""
    result = summarise({"plain": [20, 90, 21], "floor": [30, 102, 35]})
    assert (result.spread["floor"].low, result.spread["floor"].high) == (11, 13)


def test_each_promise_is_judged() -> None:
    """A hook that takes 1.6 floors breaks its budget, one that takes one floor keeps it."""
    result = summarise({"plain": [20.0], "floor": [30.0], "ours": [36.0], "nothing": [30.0]})
    assert {b.what: b.met for b in as_report(result).budgets} == {
        "ours / floor": False,
        "nothing / floor": True,
    }


class TestWithContainers:
    """Runs of the whole program."""

    pytestmark = needs_containers

    def test_json_is_one_object(self, temporary: Path) -> None:
        """`--json` prints one object with the documented keys, and nothing else on stdout."""
        command = [*BENCH, "-n", "2", "--published"]
        done = subprocess.run(
            command,
            check=True,
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            timeout=50,
        )
        answer = json.loads(done.stdout)
        keys = {"added_ms", "ratio", "plain_ms", "n", "kernel", "runc", "python"}
        assert answer.keys() > keys
        assert answer["added_ms"].keys() == {"true", "floor", "ours", "nothing", "published"}
        assert answer["n"] == 2
        assert answer["added_ms"]["published"] > 770, "NVML's start and end alone"
        assert answer["added_ms"]["floor"] is not None

    def test_peers_start_containers(self, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each tool is called as it must be: with stand-ins for them every container is made."""
        tools = temporary / "tools"
        tools.mkdir()
        monkeypatch.setenv("GPU_AGENT_CONTAINERD_DIR", str(tools))
        called = f'echo "$0 $@ $XDG_CONFIG_HOME" >>{temporary}/called'
        edits = {
            "deviceNodes": [{"path": "/dev/gpu", "hostPath": "/dev/null"}],
            "mounts": [{"hostPath": "/etc/hosts", "containerPath": "/etc/hosts"}],
            "hooks": [{"hookName": "createContainer", "path": "/bin/true", "args": ["true"]}],
        }
        made = json.dumps({"devices": [{"name": "0", "containerEdits": edits}]})
        scripts = {
            "nvidia-container-cli": "",
            "nvidia-container-runtime-hook": "cat >/dev/null",
            "nvidia-container-runtime": 'exec runc "$@"',
            "nvidia-ctk": f"echo '{made}' >${{4#--output=}}",
        }
        for name, script in scripts.items():
            (tools / name).write_text(f"#!/bin/sh\n{called}\n{script}\n")
            (tools / name).chmod(0o755)
        with work_dir() as work, simulated_node(work) as node:
            image = build_image(work / "image")
            found, left_out = peers(work, driver=True)
            assert left_out == []
            for variant in found:
                assert create_once(variant, node, image, work) > 0
        seen = (temporary / "called").read_text()
        assert f"runtime-hook -config {work}/legacy/nvidia-container-runtime/config.toml" in seen
        assert f"{work}/jit-cdi" in next(line for line in seen.split("\n") if " create " in line)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupt_cleans_up(self, temporary: Path, number: signal.Signals) -> None:
        """A bench that is interrupted while it creates containers removes files and mounts."""
        with open("/proc/self/mountinfo") as table:
            changes = select.poll()
            changes.register(table, select.POLLPRI)
            process = subprocess.Popen(
                [*BENCH, "-n", "1000"],
                cwd=ROOT,
                env=os.environ | {"TMPDIR": str(temporary)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                # The kernel reports each change of the mount table to whoever polls it.
                while not mounts_below(temporary) and process.poll() is None:
                    changes.poll(1000)
                process.send_signal(number)
                assert process.wait(40) != 0
            finally:
                process.kill()
                process.wait()
        assert mounts_below(temporary) == []
        assert list(temporary.iterdir()) == []
