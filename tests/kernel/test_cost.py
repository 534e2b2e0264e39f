"""What a staged start costs, counted: imports and system calls; and Pythons that lack a part."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from agent.plan import Link
from tests.containers.staging import PYTHON
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, asking, config
from tests.kernel.trees import contents, placed

pytestmark = NEEDS_CONTAINERS

REPOSITORY = Path(__file__).parents[2]
# Measured are 319 calls for 26 binds and 12 links, of which 139 belong to none; a tenth is room.
CALLS, CALLS_A_BIND, CALLS_A_LINK = 155, 6, 2
# Under either name, as strace knows the call or not. Before Linux 6.15 a bind takes one more.
AT_ONCE = ("open_tree_attr", "syscall_0x1d3")
CALLS_FOR_NOTHING = 20
SLOW = {"argparse", "ctypes", "dataclasses", "json", "logging", "os", "pathlib", "re", "typing"}

# The hook from its sources, with names that its own modules cannot import.
LACKING = """
import builtins, sys
sys.path.insert(0, {repository!r})
real, lacking = builtins.__import__, {lacking!r}
def lacks(name, globals=None, *rest):
    if name in lacking and (globals or {{}}).get("__name__", "").startswith("hooks."):
        raise ImportError(name)
    return real(name, globals, *rest)
builtins.__import__ = lacks
from hooks.hook import main
sys.exit(main(sys.argv[1:]))
"""


def calls(trace: Path) -> list[str]:
    """The names of the system calls from the first look at stdin on."""
    lines = trace.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("read(0,"))
    return [line.partition("(")[0] for line in lines[start:] if re.match(r"\w+\(", line)]


@pytest.mark.skipif(shutil.which("strace") is None, reason="not installed: strace")
def test_system_calls(starter: Starter, root: Path, tmp_path: Path) -> None:
    """A staged replay makes few calls a file, and a container that asks for nothing hardly any."""
    trace = tmp_path / "trace"
    traced = Starter(starter.work, starter.node, ("/usr/bin/strace", "-o", str(trace)))
    with traced.prepared(root, env=()) as plain:
        plain.create()
        assert len(calls(trace)) <= CALLS_FOR_NOTHING
    with traced.prepared(root) as container:
        container.create()
        plan = starter.node.stage_spec(config(container))
        assert plan is not None
    binds = len(placed(plan, "libs"))
    links = len([step for step in plan.steps if isinstance(step, Link)])
    made = calls(trace)
    assert made.count("move_mount") >= binds > 20
    at_once = sum(made.count(name) for name in AT_ONCE) > 1
    a_bind = CALLS_A_BIND if at_once else CALLS_A_BIND + 1
    assert len(made) <= CALLS + a_bind * binds + CALLS_A_LINK * links
    assert "execve" not in made


def test_imports_of_a_replay(starter: Starter, root: Path, tmp_path: Path) -> None:
    """A whole replay in a container imports nothing of the slow part of the library."""
    hooks = starter.hooks()
    entry = hooks["createRuntime"][0]
    python = [entry["args"][0], "-X", "importtime", *entry["args"][1:]]
    entry["args"] = ["sh", "-c", f'exec "$@" 2>{tmp_path}/imports', "sh", *python]
    entry["path"] = "/bin/sh"
    with starter.prepared(root, hooks=hooks) as container:
        container.create()
    lines = (tmp_path / "imports").read_text().splitlines()
    names = {line.rpartition("|")[2].strip() for line in lines}
    assert {"posix", "_ctypes"} <= names
    assert names & SLOW == set()
    assert starter.records()[-1][5] == "ok"


@pytest.mark.parametrize("lacking", ["_ctypes", "_json", "_struct", "_blake2", "all four"])
def test_python_without_private_modules(starter: Starter, root: Path, lacking: str) -> None:
    """Where a private module of Python cannot be had, its public one does the same, slower."""
    with starter.started(root, env=asking("0")):
        usual = contents(root)
    names = ["_ctypes", "_json", "_struct", "_blake2"] if lacking == "all four" else [lacking]
    script = starter.work / "lacking.py"
    script.write_text(LACKING.format(repository=str(REPOSITORY), lacking=names))
    hooks = starter.hooks()
    hooks["createRuntime"][0]["args"] = [
        *(PYTHON, "-I", "-S", "-B", str(script), str(starter.node.run_dir))
    ]
    for path in sorted((root / "usr/lib").rglob("*nvidia*")):
        if not path.is_dir():
            path.unlink()
    with starter.started(root, hooks=hooks, env=asking("0")) as container:
        assert container.exec("probe-dlopen", "libcuda.so.1", "libnvidia-ml.so.1").status == 0
        assert container.exec("probe-open", "/dev/nvidia2", "/dev/nvidia-uvm").status == 0
        assert contents(root) == usual
    assert starter.records()[-1][4:6] == ["staged", "ok"]
