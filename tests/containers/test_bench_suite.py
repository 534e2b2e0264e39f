"""The benches as whole programs, with sizes that say nothing: they answer, and leave nothing."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containerd.daemon import why_not
from tests.containers.image import missing_tools
from tests.containers.workdir import mounts_below, work_dir

ROOT = Path(__file__).parents[2]
MISSING = why_not() or missing_tools()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "all there"),
]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory that the bench takes for /tmp; empty again at the end, with no mount below."""
    with work_dir() as path:
        yield path
        assert mounts_below(path) == []
        assert list(path.iterdir()) == []


def bench(temporary: Path, name: str, *options: str) -> Any:
    """What a bench prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", f"contrib.bench.{name}", "--json", *options],
        check=False,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def medians(answer: Any, panel: int) -> dict[str, float]:
    """The medians of one panel by name."""
    lines = answer["panels"][panel]["lines"]
    return {line["name"]: line["spread"]["median"] for line in lines}


def test_loader_cache(temporary: Path, tmp_path: Path) -> None:
    """Both ways of ours and both of ldconfig, and a picture of them."""
    picture = tmp_path / "cache.svg"
    answer = bench(temporary, "loader_cache", "-n", "2", "--size", "60", "--svg", str(picture))
    found = medians(answer, 0)
    assert found.keys() == {"ldconfig", "ldconfig -i", "ours, in process", "ours, fresh"}
    assert found["ours, in process"] < found["ours, fresh"] < found["ldconfig"]
    assert picture.read_text().startswith("<svg")


def test_burst(temporary: Path) -> None:
    """Every container of ours finds its plan staged, and its hook's time is taken by the clock."""
    answer = bench(temporary, "burst", "-n", "3", "--parallel", "3", "--libraries", "10")
    assert medians(answer, 0).keys() == {"plain", "pass", "ours"}
    assert {line["name"]: line["spread"]["n"] for line in answer["panels"][1]["lines"]} == {
        "pass": 3,
        "ours": 3,
    }
    assert answer["budgets"][0]["value"] == 100
    assert "mounts" in medians(answer, 2)


def test_staging(temporary: Path) -> None:
    """Each container created is staged, one at a time and several at a time."""
    answer = bench(temporary, "staging", "-n", "6", "--parallel", "3")
    for line in answer["panels"][0]["lines"]:
        assert line["spread"]["n"] == 6
        assert line["spread"]["median"] > 0


def test_idle(temporary: Path) -> None:
    """CPU, memory and agentctl status have their numbers and budgets."""
    answer = bench(temporary, "idle", "--seconds", "0.3", "--known", "2", "-n", "1")
    assert [panel["unit"] for panel in answer["panels"]] == ["%", "MiB", "ms"]
    assert 10 < medians(answer, 1)["containers known"] < 1000
    assert len(answer["budgets"]) == 3


def test_scale(temporary: Path) -> None:
    """Each group shows its growth over the smallest case; all that was announced is staged."""
    sizes = ("--known", "2", "--known", "4", "--events", "8")
    answer = bench(temporary, "scale", "-n", "1", *sizes)
    assert len(answer["panels"]) == 9
    assert medians(answer, 0).keys() == {"2 containers", "4 containers"}
    assert all(panel["lines"][0]["ratio"] in (1, None) for panel in answer["panels"])


def test_interrupted_burst_leaves_nothing(temporary: Path) -> None:
    """Ctrl-C while containers are starting: no mount, shim, file or process of it stays."""
    command = [sys.executable, "-m", "contrib.bench.burst", "-n", "100", "--libraries", "10"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with open("/proc/self/mountinfo") as table:
            changes = select.poll()
            changes.register(table, select.POLLPRI)
            # An overlay below the layers: the containers have begun.
            while not any("/layers/" in m for m in mounts_below(temporary)):
                assert process.poll() is None
                changes.poll(1000)
        process.send_signal(signal.SIGINT)
        assert process.wait(50) != 0
    finally:
        process.kill()
        process.wait()
    seen = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True)
    assert [line for line in seen.stdout.splitlines() if str(temporary) in line] == []
