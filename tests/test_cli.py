"""agentctl as a user meets it: words, JSON, exit codes, and how long it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent.cli import main as cli
from agent.cli.show import age, clean
from agent.errors import UnknownContainer
from tests.fake_source import CONTAINERS, MIG, SOCKET, UUID, FakeSource, run_directory, running

READ_VERBS = (
    ("status",),
    ("inventory",),
    ("containers",),
    ("plan", "--device", "0"),
    ("plan", "default/one"),
    ("explain", "default/one"),
)


class Result:
    """What one run of agentctl said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run_dir() -> Iterator[str]:
    with run_directory() as path:
        yield path


@pytest.fixture
def source(run_dir: str) -> Iterator[FakeSource]:
    source = FakeSource()
    with running(source, run_dir):
        yield source


def run(capfd: pytest.CaptureFixture[str], run_dir: str, *words: str) -> Result:
    code = cli.main(["--run-dir", run_dir, *words])
    out, err = capfd.readouterr()
    return Result(code, out, err)


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("verb", READ_VERBS, ids=lambda v: " ".join(v))
def test_read_verbs_speak_json(
    verb: tuple[str, ...], run_dir: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every read verb prints one JSON object on stdout and nothing on stderr."""
    result = run(capfd, run_dir, *verb, "--json")
    assert (result.code, result.err) == (0, "")
    assert isinstance(json.loads(result.out), dict)


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("verb", READ_VERBS, ids=lambda v: " ".join(v))
def test_read_verbs_speak_words(
    verb: tuple[str, ...], run_dir: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without --json the same verbs print text that a terminal can take."""
    result = run(capfd, run_dir, *verb)
    assert (result.code, result.err) == (0, "")
    assert result.out.strip()
    assert "\x1b" not in result.out


@pytest.mark.usefixtures("source")
def test_status_json_shape(run_dir: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The keys that scripts read, with numbers as numbers and absent values as null."""
    status = json.loads(run(capfd, run_dir, "status", "--json").out)
    assert status["pid"] == 42
    assert status["driver"]["kernel_version"] == "580.1"
    assert status["driver"]["reason"] is None
    assert status["generation"]["why"] == "agent started"
    assert [(g["index"], g["minor"], g["name"], g["health"]) for g in status["gpus"]] == [
        (0, 3, "NVIDIA H200", "ok"),
        (1, 0, None, "the GPU is lost"),
    ]
    assert [c["connected"] for c in status["containerds"]] == [True, False]
    assert status["containerds"][1]["last_event_age_s"] is None
    assert status["replays"]["median_ms"] == 12.5
    assert status["replays"]["failures"] == 1
    assert status["replays"]["phases"][0] == {"name": "find", "ms": 0.5}


@pytest.mark.usefixtures("source")
def test_status_says_everything(run_dir: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What an operator looks for stands in the text, uncut also when it goes to a file."""
    out = run(capfd, run_dir, "status").out
    for text in (
        *("0.1.0", "up 1 h 1 min", "ready", "kernel 580.1", "user space 580.1", "CUDA 13.0"),
        *("0123456789abcdef", "1 min 1 s old: agent started", UUID, "NVIDIA H200"),
        *("the GPU is lost", f"{SOCKET}: 1.6.20, connected 1 min 0 s, 7 events, last 1.5 s ago"),
        *("/run/k3s/c.sock: not connected for 5.0 s: no such socket", "3, 1 with GPUs"),
        *("1 plans for 3 containers", "1 staged, 1 asked", "1 failed", "median 12.5 ms"),
        *("p99 12.5 ms", "find 0.50 ms", "k8s.io/two: driver replaced"),
    ):
        assert text in out, text


@pytest.mark.usefixtures("source")
def test_inventory_lists_files_and_mig(run_dir: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The inventory has every class of thing that a container may get."""
    out = run(capfd, run_dir, "inventory").out
    for text in (
        *(MIG, "1g.18gb", "/dev/nvidiactl", "195:255", "libcuda.so.1", "/usr/bin/nvidia-smi"),
        *("/lib/firmware/gsp.bin", "/run/nvidia-persistenced/socket", "libodd is in no class"),
    ):
        assert text in out, text


@pytest.mark.usefixtures("source")
def test_explain_tells_why_and_how_it_went(run_dir: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A refused container shows its reason and the hook's own words; control bytes are gone."""
    out = run(capfd, run_dir, "explain", "two").out
    assert "no such GPU: 7" in out
    assert "failed: driver replaced" in out
    assert "?[31mnot set" in run(capfd, run_dir, "explain", "k8s.io/one").out


def test_plan_splits_lists(
    run_dir: str, source: FakeSource, capfd: pytest.CaptureFixture[str]
) -> None:
    """--device takes lists and may be repeated; the steps come numbered."""
    words = ("plan", "--device", "0,1", "--device", UUID, "--capabilities", "compute,video")
    out = run(capfd, run_dir, *words).out
    assert source.asked == [(("0", "1", UUID), ("compute", "video"))]
    assert "   1  bind /dev/nvidia3" in out


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("plan", "--device", "7"), 3, f"no such GPU: 7: this host has {UUID}"),
        (("plan", "--device", "bug"), 1, "internal error: ZeroDivisionError"),
        (("plan",), 2, "give either a container or --device"),
        (("plan", "one", "--device", "0"), 2, "give either a container or --device"),
        (("plan", "one", "--capabilities", "all"), 2, "--capabilities goes with --device"),
        (("explain", "nobody"), 2, str(UnknownContainer("nobody", len(CONTAINERS)))),
        (("explain", "one"), 2, "it fits"),
        (("explain",), 2, "Missing argument"),
        (("nonsense",), 2, "No such command"),
        (("status", "--nonsense"), 2, "No such option"),
        (("runtime-config", "--config-version", "9"), 2, "'9' is not one of"),
        (("runtime-config", "--config", "/nonexistent/c.toml"), 2, "no such file"),
        (("runtime-config", "--base-spec", "/nonexistent/spec"), 2, "no such file"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(
    words: tuple[str, ...],
    code: int,
    message: str,
    run_dir: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Wrong input is 2, a refusal 3, a failure 1: one line on stderr, nothing on stdout."""
    result = run(capfd, run_dir, *words)
    assert result.code == code
    assert message in result.err
    assert result.err.startswith("agentctl: ")
    assert result.err.count("\n") == 1
    assert result.out == ""


@pytest.mark.parametrize("verb", READ_VERBS, ids=lambda v: " ".join(v))
def test_absent_agent_is_exit_4(
    verb: tuple[str, ...], run_dir: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every read verb says in one line that there is no agent, and where it looked."""
    result = run(capfd, run_dir, *verb)
    assert result.code == 4
    assert result.err.count("\n") == 1
    assert f"{run_dir}/control.sock" in result.err


def test_help_and_version_are_no_errors(capfd: pytest.CaptureFixture[str], run_dir: str) -> None:
    """--help and --version work without an agent."""
    assert "status" in run(capfd, run_dir, "--help").out
    assert run(capfd, run_dir, "--version").out.startswith("agentctl ")


@pytest.mark.usefixtures("source")
def test_reader_that_leaves_is_no_traceback(run_dir: str) -> None:
    """`agentctl ... | head` ends quietly when head has left."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "--run-dir", run_dir, "status", "--json"],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 1


PROGRAM = "import sys; from agent.cli.main import main; sys.exit(main())"
HEAVY = ("pydantic", "pynvml", "watchfiles", "importlib.metadata")


@pytest.mark.usefixtures("source")
def test_status_imports_no_config_model(run_dir: str) -> None:
    """0.4 s for `status` leaves no room for imports that it does not need."""
    program = (
        "import sys; from agent.cli.main import main; code = main(); "
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--run-dir", run_dir, "status", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = done.stderr.split()
    assert "grpc" in loaded
    assert [name for name in (*HEAVY, "rich") if name in loaded] == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.0, "59.0 s"), (61, "1 min 1 s"), (3600, "1 h 0 min"), (90061, "1 d 1 h")],
)
def test_ages_have_two_units(seconds: float, text: str) -> None:
    """An age is short enough to read and says its units."""
    assert age(seconds) == text


def test_clean_keeps_letters_and_drops_control() -> None:
    """What a container calls itself cannot move the cursor."""
    assert clean("ü\x1b[2J\u202e\n") == "ü?[2J??"
