"""NVML through a worker process and the stub library: what comes back, whatever goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pynvml
import pytest

from agent.facts import nvml
from agent.facts.nvmlworker import MEANINGS, Meaning, meaning_of
from agent.facts.values import NvmlFact, NvmlGpu
from contrib.simhost import toolchain
from contrib.simhost.answers import answers_text
from contrib.simhost.toolchain import Identity

HOSTS = Path(__file__).parent / "hosts"
TIMEOUT_S = 20.0
THREE_GPUS = "".join(
    f"gpu\nuuid GPU-{n}\nminor {n}\nname Stub\nbus 00000000:0{n}:00.0\n{{{n}}}" for n in range(3)
)

Stub = Callable[..., str]


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    """Write a stub library with these answers and give its path."""

    def write(answers: str, *, name: str = "libnvidia-ml.so.1", version: str = "570.1") -> str:
        (tmp_path / f"{name}.answers").write_text(answers)
        identity = Identity(name, version, name, str(tmp_path / f"{name}.answers"))
        library = tmp_path / name
        library.unlink(missing_ok=True)
        library.write_bytes(toolchain.nvml_library(identity))
        return str(library)

    return write


def compile_library(directory: Path, source: str) -> str:
    """A shared library from C text."""
    (directory / "broken.c").write_text(source)
    library = directory / "libnvidia-ml.so.1"
    library.write_bytes(toolchain.compiled(directory / "broken.c", ("-shared", "-fPIC")))
    return str(library)


def ask(library: str | None, timeout_s: float = TIMEOUT_S) -> NvmlFact:
    return anyio.run(nvml.read_nvml, library, timeout_s)


def running(library: str) -> list[str]:
    """Processes that have this path on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:  # gone meanwhile
            continue
        if library.encode() in line.split(b"\0"):
            found.append(str(path))
    return found


def test_every_error_class_has_a_meaning() -> None:
    """No NVML error that pynvml can raise is without one of our meanings."""
    classes = pynvml.NVMLError._valClassMapping
    assert {code: cls.__name__ for code, cls in classes.items() if code not in MEANINGS} == {}
    assert len(classes) >= 31


@pytest.mark.parametrize(
    ("call", "code", "meaning"),
    [
        ("nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, Meaning.ABSENT),
        ("nvmlInit", pynvml.NVML_ERROR_NO_PERMISSION, Meaning.DENIED),
        ("nvmlInit", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, Meaning.MISMATCH),
        ("nvmlInit", pynvml.NVML_ERROR_UNKNOWN, Meaning.INTERNAL),
        ("nvmlDeviceGetName", pynvml.NVML_ERROR_GPU_IS_LOST, Meaning.LOST),
        ("nvmlDeviceGetHandleByIndex", pynvml.NVML_ERROR_UNKNOWN, Meaning.LOST),
        ("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_NOT_SUPPORTED, Meaning.UNSUPPORTED),
        ("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, Meaning.UNSUPPORTED),
        ("nvmlDeviceGetName", 123456, Meaning.INTERNAL),
    ],
)
def test_errors_keep_their_meaning(call: str, code: int, meaning: Meaning) -> None:
    """The codes that decide something are translated to what they say, by call where it matters."""
    assert meaning_of(call, code) is meaning


def test_agent_process_imports_no_pynvml() -> None:
    """Importing the reader loads neither pynvml nor anyio into the process."""
    code = "import sys, agent.facts.nvml; print({'pynvml', 'anyio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_recorded_answers_come_back(stub: Stub) -> None:
    """The H200 recording goes through the stub, pynvml and the worker unchanged."""
    recorded = json.loads((HOSTS / "h200-580/nvml.json").read_text())
    assert ask(stub(answers_text(recorded))) == NvmlFact(
        driver_version="580.159.04",
        cuda_version=(13, 0),
        gpus=(
            NvmlGpu(
                index=0,
                uuid="GPU-a1b2c3d4-0000-4000-8000-00000000000a",
                minor=0,
                bus_id="00000000:00:06.0",
                name="NVIDIA H200",
                brand="Nvidia",
                compute_capability=(9, 0),
                mig_enabled=False,
                persistent=True,
            ),
        ),
    )


@pytest.mark.parametrize("code", [15, 999])
def test_a_dead_gpu_spoils_no_other(stub: Stub, code: int) -> None:
    """A GPU whose handle is lost or unknown is marked lost, its neighbours are whole."""
    dead = f"error nvmlDeviceGetHandleByIndex_v2 {code}\n"
    fact = ask(stub(THREE_GPUS.format("", dead, "")))
    assert [(g.index, g.uuid, g.lost) for g in fact.gpus] == [
        (0, "GPU-0", False),
        (1, None, True),
        (2, "GPU-2", False),
    ]
    assert fact.gpus[1].error is not None
    assert fact.gpus[1].error.startswith("nvmlDeviceGetHandleByIndex: lost: ")
    assert fact.reason is None


def test_a_gpu_that_dies_between_calls_is_lost(stub: Stub) -> None:
    """GPU_IS_LOST from any later call marks the GPU and keeps what it still said."""
    fact = ask(stub(THREE_GPUS.format("error nvmlDeviceGetName 15\n", "", "")))
    assert (fact.gpus[0].lost, fact.gpus[0].uuid, fact.gpus[0].name) == (True, "GPU-0", None)


def test_a_failing_question_is_not_a_lost_gpu(stub: Stub) -> None:
    """An unknown error of one call is noted with the call; the other answers stand."""
    fact = ask(stub(THREE_GPUS.format("error nvmlDeviceGetMinorNumber 999\n", "", "")))
    gpu = fact.gpus[0]
    assert (gpu.lost, gpu.minor, gpu.name) == (False, None, "Stub")
    assert gpu.error is not None
    assert gpu.error.startswith("nvmlDeviceGetMinorNumber: internal: ")


def test_unsupported_is_no_error(stub: Stub) -> None:
    """A GPU that knows no MIG, brand or capability is healthy and has MIG off."""
    gpu = ask(stub("gpu\nuuid GPU-0\n")).gpus[0]
    assert (gpu.error, gpu.lost) == (None, False)
    assert (gpu.mig_enabled, gpu.brand, gpu.compute_capability) == (False, None, None)
    assert gpu.persistent is None


def test_mig_devices_are_listed_over_holes(stub: Stub) -> None:
    """Empty slots end nothing: devices behind them are listed and counted without them."""
    recorded = json.loads((HOSTS / "a100-mig/nvml.json").read_text())
    first, second = ask(stub(answers_text(recorded))).gpus
    assert [(m.ordinal, m.gi, m.ci) for m in first.migs] == [(0, 1, 0), (1, 5, 0), (2, 13, 0)]
    assert first.migs[2].uuid == "MIG-a1000316-0000-5000-8000-00000000000d"
    assert first.error is None
    assert (second.mig_enabled, second.migs) == (False, ())


@pytest.mark.parametrize(
    ("code", "meaning"), [(9, "absent"), (18, "driver-mismatch"), (4, "denied"), (999, "internal")]
)
def test_a_failing_init_is_a_reason(stub: Stub, code: int, meaning: str) -> None:
    """When NVML does not start there is a reason with its meaning, and no exception."""
    fact = ask(stub(f"error nvmlInitWithFlags {code}\n"))
    assert fact.gpus == ()
    assert fact.reason is not None
    assert fact.reason.startswith(f"nvmlInit: {meaning}: ")


def test_a_call_that_never_returns_is_killed(stub: Stub) -> None:
    """After the deadline there is a reason, and no worker is left."""
    library = stub("delay_ms nvmlInitWithFlags -1\n")
    fact = ask(library, 0.3)
    assert fact.reason == f"{library}: no answer within 0.3 s"
    assert running(library) == []


def test_a_slow_driver_is_waited_for(stub: Stub) -> None:
    """Slow calls below the deadline are no failure."""
    slow = "delay_ms nvmlInitWithFlags 120\ndelay_ms nvmlShutdown 60\ngpu\nuuid GPU-0\n"
    assert [g.uuid for g in ask(stub(slow)).gpus] == ["GPU-0"]


def test_a_hanging_shutdown_keeps_the_answer(stub: Stub) -> None:
    """An answer that is out already counts, though the worker has to be killed."""
    library = stub("delay_ms nvmlShutdown -1\ngpu\nuuid GPU-0\n")
    assert [g.uuid for g in ask(library).gpus] == ["GPU-0"]
    assert running(library) == []


def test_cancelling_the_reader_ends_the_worker(stub: Stub) -> None:
    """A caller that gives up leaves no process that pins the module."""
    library = stub("delay_ms nvmlInitWithFlags -1\n")

    async def give_up() -> None:
        with anyio.move_on_after(0.3):
            await nvml.read_nvml(library, TIMEOUT_S)

    anyio.run(give_up)
    assert running(library) == []


def test_a_worker_without_parent_ends_itself(stub: Stub) -> None:
    """The worker has its own deadline, in case the agent is killed first."""
    library = stub("delay_ms nvmlInitWithFlags -1\n")
    command = [sys.executable, "-m", "agent.facts.nvml", library, "0.3"]
    done = subprocess.run(command, timeout=TIMEOUT_S, check=False)
    assert done.returncode == -14


def test_a_crashing_library_is_a_reason(tmp_path: Path) -> None:
    """A library that takes the worker down leaves the agent with the signal's number."""
    source = "#include <stdlib.h>\n__attribute__((constructor)) void f(void) { abort(); }\n"
    library = compile_library(tmp_path, source)
    assert ask(library).reason == f"{library}: the worker died: signal 6"


def test_a_talking_library_does_not_spoil_the_answer(tmp_path: Path) -> None:
    """What a library prints is not taken for the worker's answer."""
    source = '#include <stdio.h>\n__attribute__((constructor)) void f(void) { puts("{}"); }\n'
    reason = ask(compile_library(tmp_path, source)).reason
    assert reason == "nvmlInit: unsupported: Function Not Found"


def test_a_file_that_is_no_library_is_a_reason(tmp_path: Path) -> None:
    """A truncated or foreign file cannot be loaded, and the reason names it."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    reason = ask(str(tmp_path / "libnvidia-ml.so.1")).reason
    assert reason is not None
    assert "cannot be loaded" in reason


@pytest.mark.parametrize(
    ("library", "why"),
    [(None, "no libnvidia-ml"), ("libnvidia-ml.so.1", "not an absolute path")],
)
def test_the_library_is_never_searched(library: str | None, why: str) -> None:
    """Without an absolute path nothing is loaded at all."""
    reason = ask(library).reason
    assert reason is not None
    assert why in reason


def test_exactly_the_given_file_is_used(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another SONAME is used though the loader's path leads to a proper one."""
    stub("", version="1.0")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert ask(stub("", name="libother.so.7", version="2.0")).driver_version == "2.0"


def test_an_upgrade_is_seen_by_the_next_call(stub: Stub) -> None:
    """The library is loaded anew for each question."""
    assert ask(stub("", version="1.0")).driver_version == "1.0"
    assert ask(stub("", version="2.0")).driver_version == "2.0"


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense", b"[]", b"{}", b'{"gpus": 7}', b'{"gpus": [{"index": 0}]}', b"[" * 100000],
)
def test_an_answer_that_is_not_ours_is_refused(answer: bytes) -> None:
    """Anything but the worker's own form raises NoAnswer and nothing else."""
    with pytest.raises(nvml.NoAnswer):
        nvml.decode(answer)


def test_values_from_the_library_are_checked() -> None:
    """A UUID, bus id, number or text that cannot be one is None; texts are one printable line."""
    gpu = {
        "index": 0,
        "uuid": "GPU-../../etc",
        "minor": -1,
        "bus_id": "nonsense",
        "name": "two\nlines",
        "brand": 14,
        "compute_capability": [9],
        "mig_enabled": "yes",
        "migs": [{"ordinal": 0, "uuid": "MIG-x", "gi": None, "ci": 0, "name": None}],
    }
    fact = nvml.decode(json.dumps({"gpus": [gpu]}).encode())
    assert fact.gpus == (NvmlGpu(0, None, None, None, "two?lines", None, None, None),)


def test_an_endless_answer_is_cut() -> None:
    """More than the limit on standard output is no answer."""

    async def receive_much() -> None:
        code = f"print('x' * {nvml.ANSWER_LIMIT + 1})"
        process = await anyio.open_process([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
        try:
            await nvml.receive(process)
        finally:
            await nvml.end(process)

    with pytest.raises(nvml.NoAnswer):
        anyio.run(receive_much)
