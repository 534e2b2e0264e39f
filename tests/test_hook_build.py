"""The built files: they run where they are put, and hold no more than they need."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hooks import build
from tests.containers.staging import PYTHON

SLOW = ("argparse", "dataclasses", "typing", "logging", "subprocess", "pathlib", "json", "re")
SOURCES = sorted(Path(build.__file__).parent.glob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
STANDARD = ("ctypes", "os", "site", "encodings.idna", "importlib.machinery", "hashlib", "struct")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed files, made by the interpreter that will run them."""
    out = tmp_path_factory.mktemp("lib")
    subprocess.run([PYTHON, "-I", build.__file__, str(out)], check=True, timeout=60)
    return out


def run(built: Path, *arguments: str, options: tuple[str, ...] = (), stdin: bytes = b"{}") -> str:
    """The hook's stderr, in an environment and a directory that would lead it astray."""
    command = [PYTHON, "-I", "-S", "-B", *options, str(built / build.HOOK_FILE), *arguments]
    env = {"PYTHONPATH": str(built), "PYTHONSTARTUP": "/nowhere", "HOME": str(built)}
    done = subprocess.run(
        command, check=False, input=stdin, capture_output=True, cwd=built, env=env, timeout=20
    )
    assert (done.returncode, done.stdout) == (1, b"")
    return done.stderr.decode()


def test_hook_runs_where_it_is(built: Path) -> None:
    """The one file runs by itself and answers in its one line."""
    assert run(built, "/run/none") == "gpu-agent: state: id: missing or too long\n"


def test_usage(built: Path) -> None:
    """Without its directory it says how it is called."""
    usage = "gpu-agent: usage: hook RUN_DIR [STANDALONE_PYTHON [ARGUMENT ...]]\n"
    assert run(built) == usage
    assert run(built, "run") == usage


def test_start_imports_nothing_slow(built: Path, tmp_path: Path) -> None:
    """A start that goes as far as the stage imports only C modules and what it carries."""
    (tmp_path / "config.json").write_text('{"NVIDIA": 1}')
    state = f'{{"id": "c1", "pid": 4194303, "bundle": "{tmp_path}"}}'.encode()
    run_dir = str(tmp_path / "none")
    assert "no plan: no run directory" in run(built, run_dir, stdin=state)
    text = run(built, run_dir, options=("-X", "importtime"), stdin=state)
    lines = [line for line in text.splitlines() if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip() for line in lines}
    assert {"posix", "_ctypes"} <= names
    assert names & {*SLOW, *STANDARD} == set()


def test_state_alone_reads_no_replay_code(built: Path) -> None:
    """A start that needs no replay does without the file that holds it."""
    moved = (built / build.REPLAY_FILE).rename(built / "moved")
    try:
        assert "id: missing" in run(built, "/run/none")
    finally:
        moved.rename(built / build.REPLAY_FILE)


def test_every_runtime_module_is_built() -> None:
    """A module of `hooks` that is in no bundle would be found missing on a node only."""
    needed = {*build.HOOK_MODULES, *build.READY_MODULES, *build.WRAPPER_MODULES}
    bundled = {*needed, *build.HELD_MODULES, *build.SPARE_MODULES}
    there = {path.stem for path in Path(build.__file__).parent.glob("*.py")}
    assert there - bundled == {"__init__", "build"}
    assert bundled <= there


def test_built_twice_is_the_same(built: Path, tmp_path: Path) -> None:
    """The same sources and interpreter give the same bytes, and no draft stays."""
    subprocess.run([PYTHON, "-I", build.__file__, str(tmp_path / "a")], check=True, timeout=60)
    names = sorted(path.name for path in built.iterdir())
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    for name in (build.HOOK_FILE, build.REPLAY_FILE, build.SPARE_FILE, build.WRAPPER_CODE):
        assert (tmp_path / "a" / name).read_bytes() == (built / name).read_bytes()


def test_modes(built: Path) -> None:
    """Only the wrapper is a program, and only root may write any of them."""
    programs = {path.name for path in built.iterdir() if path.stat().st_mode & 0o111}
    assert programs == {build.WRAPPER_FILE}
    assert [path for path in built.iterdir() if path.stat().st_mode & 0o022] == []


def test_code_is_bare(built: Path) -> None:
    """What only people read is not loaded at every start: docstrings, and where sources lie."""
    code = b"".join(path.read_bytes() for path in built.glob("*.*"))
    trees = [ast.parse(path.read_text()) for path in SOURCES if path.stem != "build"]
    found = [ast.get_docstring(n) for t in trees for n in ast.walk(t) if isinstance(n, DOCUMENTED)]
    lines = [text.partition("\n")[0].encode() for text in found if text]
    assert len(lines) > 50
    assert [line for line in lines if line in code] == []
    assert os.fsencode(SOURCES[0].parent) not in code


def test_code_of_another_interpreter_is_refused(built: Path, tmp_path: Path) -> None:
    """Byte code belongs to one version; another one says so and starts nothing."""
    code = bytearray((built / build.HOOK_FILE).read_bytes())
    code[0] ^= 0xFF
    (tmp_path / build.HOOK_FILE).write_bytes(code)
    assert run(tmp_path, "/run/none") != ""


def test_failed_build_leaves_nothing_half(tmp_path: Path) -> None:
    """Where a file cannot be put in place, no draft of it stays."""
    (tmp_path / build.REPLAY_FILE).mkdir()
    with pytest.raises(OSError, match="directory"):
        build.build(tmp_path, sys.executable)
    assert os.listdir(tmp_path) == [build.REPLAY_FILE]
