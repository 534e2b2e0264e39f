"""The direction of imports, and what the start-up-critical hook may load.

Imports are read with ast, those inside functions too: a lazy import is still a dependency.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The longest matching prefix counts; a module below `agent` without one is an offence.
LAYERS = {
    "agent": 0,
    "agent.errors": 0,
    "agent.config": 0,
    "agent.catalog": 0,  # data that the readers of facts need too
    "agent.facts.values": 0,
    "agent.facts": 1,
    "agent.inventory": 2,
    "agent.gpujoin": 2,
    "agent.libraries": 2,
    "agent.missingnodes": 2,
    "agent.spec": 2,
    "agent.request": 2,
    "agent.requirement": 2,
    "agent.tokens": 2,
    "agent.features": 2,
    "agent.featurenodes": 2,
    "agent.sources": 2,
    "agent.policy": 2,
    "agent.plan": 2,
    "agent.report": 2,
    "agent.replays": 2,
    "agent.toolkit": 2,
    "agent.containerd.values": 2,
    "agent.planner": 3,
    "agent.content": 3,
    "agent.tracked": 3,
    "agent.sharing": 4,
    "agent.shelf": 5,
    "agent.nodemaker": 3,
    "agent.host": 4,
    "agent.stage": 4,
    "agent.replaylog": 4,
    "agent.logs": 4,
    "agent.readiness": 4,
    "agent.containerd": 4,
    "agent.watch": 4,
    "agent.reconcile": 5,
    "agent.answers": 6,
    "agent.control": 6,
    "agent.daemon": 6,
    "agent.hooksocket": 6,
    "agent.standalone": 6,
    "agent.cli": 6,
}
PURE = frozenset(
    f"agent.{name}"
    for name in (
        *("errors", "config", "catalog", "facts.values", "inventory", "gpujoin", "spec"),
        *("request", "requirement", "policy", "plan", "report", "replays", "planner"),
        *("tokens", "features", "featurenodes", "sources", "containerd.values"),
        *("libraries", "missingnodes", "content"),
    )
)
IO = frozenset(
    (
        *("os", "posix", "pathlib", "shutil", "tempfile", "time", "socket", "select"),
        *("subprocess", "threading", "ctypes", "fcntl", "asyncio", "anyio", "grpc", "watchfiles"),
    )
)
# Who may see each vendor's types; nobody else does.
OWNERS = {
    "grpc": ("agent.containerd", "agent.control", "agent.cli", "agent._pb"),
    "google.protobuf": ("agent.containerd", "agent.control", "agent.cli", "agent._pb"),
    "agent._pb": ("agent.containerd", "agent.control", "agent.cli", "agent._pb"),
    "pynvml": ("agent.facts.nvmlworker",),
}

# Modules written in C that load nothing else. Some are built into the interpreter, some are
# shared objects, depending on who built it: the list is the same everywhere.
C_MODULES = frozenset(
    (
        *("_blake2", "_ctypes", "_imp", "_io", "_json", "_signal", "_socket", "_struct"),
        *("_thread", "array", "binascii", "errno", "fcntl", "gc", "itertools", "marshal"),
        *("posix", "select", "sys", "time"),
    )
)
# Run at build time, or before the runtime instead of in a hook: the standard library is free.
HOOK_TOOLS = ("hooks.build", "hooks.runc_wrapper")
SLOW = frozenset(
    (
        *("argparse", "asyncio", "ctypes", "dataclasses", "inspect", "json", "logging", "os"),
        *("pathlib", "re", "socket", "subprocess", "tempfile", "typing"),
    )
)


def module_name(path: Path) -> str:
    """The dotted name of a file below the repository's root."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def sources(package: str) -> dict[str, str]:
    """Module name to source, for every module of `package` but the generated ones."""
    files = sorted((ROOT / package).rglob("*.py"))
    return {module_name(f): f.read_text() for f in files if "_pb" not in f.parts}


def below(name: str, prefix: str) -> bool:
    """Whether `name` is the module `prefix` or inside it."""
    return name == prefix or name.startswith(f"{prefix}.")


def layer(name: str) -> int | None:
    """The layer of an agent module, None if it was given none."""
    known = [prefix for prefix in LAYERS if below(name, prefix)]
    best = max(known, key=len)
    return None if best == "agent" and name != "agent" else LAYERS[best]


def names(node: ast.AST, module: str, package: bool) -> Iterator[str]:
    """The modules that one statement imports; `from agent import x` gives `agent.x`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parts = module.split(".")
        above = parts[: len(parts) - node.level + package] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        # What stands behind `import` may be a module or not; both readings are in the tree.
        spread = source in ("agent", "hooks") or source in PACKAGES
        yield from (f"{source}.{a.name}" for a in node.names) if spread else (source,)


PACKAGES = frozenset(
    module_name(f) for top in ("agent", "hooks") for f in (ROOT / top).rglob("__init__.py")
)


def imported(module: str, source: str, *, lazy: bool = True) -> list[str]:
    """Every module that `source` imports, sorted; without `lazy` only those it loads at once."""
    tree = ast.parse(source)
    nodes: list[ast.AST] = list(ast.walk(tree)) if lazy else list(loaded_at_once(tree.body))
    package = module in PACKAGES
    return sorted({name for node in nodes for name in names(node, module, package)})


def loaded_at_once(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported and nothing goes wrong."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            yield from loaded_at_once(statement.orelse)
            continue
        # Exception handlers are no statements: a slower stand-in may be imported there.
        children = ast.iter_child_nodes(statement)
        yield from loaded_at_once([c for c in children if isinstance(c, ast.stmt)])


def agent_offences(module: str, source: str) -> list[str]:
    """What one agent module imports and may not, in words."""
    own = layer(module)
    if own is None:
        return [f"{module} has no layer: add it to LAYERS"]
    bad = []
    for name in imported(module, source):
        if module in PURE and name.partition(".")[0] in IO:
            bad.append(f"{module} is pure but imports {name}")
        for vendor, owners in OWNERS.items():
            if below(name, vendor) and not any(below(module, o) for o in owners):
                bad.append(f"{module} imports {name}, which stops at {', '.join(owners)}")
        if below(name, "agent") and not below(name, "agent._pb") and (layer(name) or 0) > own:
            bad.append(f"{module} reaches up to {name}")
    return bad


def hook_offences(module: str, source: str) -> list[str]:
    """What one hook module imports and may not, in words."""
    bad = []
    for name in imported(module, source):
        top = name.partition(".")[0]
        if top != "hooks" and top not in sys.stdlib_module_names:
            bad.append(f"{module} imports {name}: not the standard library")
    if module in HOOK_TOOLS:
        return bad
    at_once = imported(module, source, lazy=False)
    slow = [n for n in at_once if n not in C_MODULES and not below(n, "hooks")]
    return [*bad, *(f"{module} imports {n} at its own level: not a C module" for n in slow)]


def test_agent_imports_point_down() -> None:
    """Every agent module imports its own layer or lower ones, and pure ones import no I/O."""
    bad = [o for module, source in sources("agent").items() for o in agent_offences(module, source)]
    assert bad == []


def test_hook_imports_stay_small() -> None:
    """Hook modules import the standard library and hooks, and load only C modules at start."""
    bad = [o for module, source in sources("hooks").items() for o in hook_offences(module, source)]
    assert bad == []


@pytest.mark.parametrize(
    ("module", "source", "offence"),
    [
        ("agent.plan", "from agent.stage import put", "agent.plan reaches up to agent.stage"),
        ("agent.plan", "from agent import stage", "agent.plan reaches up to agent.stage"),
        ("agent.facts.gpus", "from .. import plan", "agent.facts.gpus reaches up to agent.plan"),
        ("agent.facts.gpus", "from ..plan import x", "agent.facts.gpus reaches up to agent.plan"),
        ("agent.stage", "def f():\n    import agent.cli.main", "reaches up to agent.cli.main"),
        ("agent.planner", "import os.path", "agent.planner is pure but imports os.path"),
        ("agent.facts.gpus", "import pynvml", "pynvml, which stops at agent.facts.nvmlworker"),
        ("agent.daemon", "from google.protobuf import message", "google.protobuf, which stops"),
        ("agent.daemon", "from agent._pb.agent.v1 import agent_pb2", "which stops at agent.c"),
        ("agent.novel", "", "agent.novel has no layer"),
    ],
)
def test_checker_finds_agent_offence(module: str, source: str, offence: str) -> None:
    """A planted import in the wrong direction is found and named."""
    assert [offence in found for found in agent_offences(module, source)] == [True]


@pytest.mark.parametrize(
    ("module", "source", "offence"),
    [
        ("hooks.run", "def f():\n    import agent.errors", "not the standard library"),
        ("hooks.run", "def f():\n    from agent import errors", "not the standard library"),
        ("hooks.run", "import json", "imports json at its own level"),
        ("hooks.run", "try:\n    import re\nexcept ImportError:\n    pass", "imports re at its"),
        ("hooks.run", "class A:\n    import re", "imports re at its own level"),
        ("hooks.build", "import grpc", "not the standard library"),
    ],
)
def test_checker_finds_hook_offence(module: str, source: str, offence: str) -> None:
    """A planted import that the hook cannot afford is found and named."""
    assert [offence in found for found in hook_offences(module, source)] == [True]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("agent.cli.main", "import grpc\nfrom agent import errors\nfrom hooks import planfile"),
        ("agent.catalog", "import tomllib\nfrom importlib import resources"),
        ("agent.containerd.client", "from agent._pb.containerd import events_pb2"),
    ],
)
def test_checker_lets_the_rest_pass(module: str, source: str) -> None:
    """An import that points down, or to a vendor's own adapter, is no offence."""
    assert agent_offences(module, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import sys\ndef f():\n    import json",
        "if TYPE_CHECKING:\n    from typing import Any",
        "try:\n    from _struct import pack\nexcept ImportError:\n    from struct import pack",
    ],
)
def test_hook_may_load_when_needed(source: str) -> None:
    """A slow standard module is no offence where importing the hook module does not load it."""
    assert hook_offences("hooks.run", source) == []


def test_hook_modules_load_nothing_slow() -> None:
    """Importing every hook module that runs in a container's start loads no slow module."""
    runtime = [m for m in sources("hooks") if m not in HOOK_TOOLS]
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {', '.join(runtime)}; "
    command = [sys.executable, "-I", "-S", "-B", "-c", program + "print(*sys.modules)"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert set(runtime) <= loaded
    assert loaded & SLOW == set()
