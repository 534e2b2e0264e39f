"""Build the installed files: the hook, byte-compiled, and the runtime wrapper.

    python3 -I hooks/build.py OUT_DIR

Run it with the very interpreter that will run the hook: byte code belongs to one version. The
hook's modules travel inside three files, by how many starts need them, so a start pays for no
more than it uses; nothing is searched on sys.path and nothing is compiled at start. This module
is build-time only.
"""

import ast
import importlib.util
import marshal
import os
import sys
from pathlib import Path
from types import CodeType

HOOK_FILE = "hook.pyc"
REPLAY_FILE = "hook-replay.bin"
SPARE_FILE = "hook-spare.bin"
WRAPPER_FILE = "gpu-agent-runc"
WRAPPER_CODE = "runc_wrapper.pyc"

# What every start needs, even of a container that asks for nothing; small, because the
# interpreter reads the file three times on its way.
HOOK_MODULES = ("errors", "clock", "state", "hook")
# What only a replay needs, in a file of its own, in order of import.
READY_MODULES = (
    "planfile",
    "cfunction",
    "syscalls",
    "rootfs",
    "stagedir",
    "mounts",
    "devices",
    "loader",
    "replay",
)
# In the same file, but loaded only on hosts of one kind: here those with cgroup v2.
HELD_MODULES = ("devicefilter",)
# In a third file: what only a start needs that finds nothing staged, an image not seen before, or
# an old kernel.
SPARE_MODULES = ("walk", "slowpath", "ldcache_table", "ldcache", "compat", "groups", "classic")
WRAPPER_MODULES = ("errors", "state", "runc_wrapper")

# C modules that are files of their own in some builds of Python. Where they lie is found out here:
# searching sys.path for them takes longer than loading them.
EXTENSIONS = ("_ctypes", "_json", "_struct", "_blake2", "_socket", "select")

# What the .pyc runs first. The finder serves `hooks.*` from CODE and C modules from FILES; its
# parts are taken from where the interpreter already has them, because importing
# importlib.machinery costs a millisecond. What is needed anyway is started without the import
# system, which takes 30 us a module. A process that lives for milliseconds needs no garbage
# collection.
BOOT = """
import gc
import posix
import sys
from marshal import loads
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader

def start(code):
    for name, body in code.items():
        if type(body) is bytes:
            SPARE[name] = body
            continue
        module = sys.modules["hooks." + name] = type(sys)("hooks." + name)
        setattr(hooks, name, module)
        exec(body, module.__dict__)

def later(file):
    with open(sys.argv[0].rpartition("/")[0] + "/" + file, "rb", 0) as opened:
        return loads(opened.read())

class Bundle:
    def find_spec(name, path=None, target=None):
        file = FILES.get(name)
        if file and posix.access(file, posix.R_OK):
            return ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        if name.startswith("hooks."):
            return ModuleSpec(name, Bundle)
    def create_module(spec):
        name = spec.name[6:]
        if name in READY:
            start(later(REPLAY))
            return sys.modules[spec.name]
        if name not in SPARE:
            SPARE.update(later(SPARE_FILE))
        return None
    def exec_module(module):
        name = module.__name__[6:]
        if name not in READY:
            exec(loads(SPARE[name]), module.__dict__)

gc.disable()
sys.meta_path.insert(0, Bundle)
hooks = sys.modules["hooks"] = type(sys)("hooks")
hooks.__path__ = []
SPARE = {}
start({name: loads(body) for name, body in FIRST.items()})
posix._exit(hooks.{module}.main(sys.argv[1:]))
"""

# The shim calls its runtime four times a container and more; only `create` is worth an
# interpreter. A container of that name takes the longer way, which is right too.
WRAPPER = """#!/bin/sh
here=${{0%/*}}
for argument; do
    [ "$argument" = create ] && exec {python} -ISB "$here/{code}" "$@"
done
read -r runtime <"$here/wrapper.conf" && exec "$runtime" "$@"
"""


class Bare(ast.NodeTransformer):
    """Takes annotations away: each would be evaluated, and kept, at every start."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A function without types."""
        self.generic_visit(node)
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """An assignment without a type; a mere declaration vanishes."""
        self.generic_visit(node)
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def compiled(source: str) -> CodeType:
    """`source` as byte code, as little as will run.

    No docstrings, asserts and annotations, and no line numbers: the hook prints one line, never
    a traceback.
    """
    tree = ast.fix_missing_locations(Bare().visit(ast.parse(source)))
    return _shortened(compile(tree, "hook", "exec", dont_inherit=True, optimize=2))


def _shortened(code: CodeType) -> CodeType:
    inner = tuple(_shortened(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_consts=inner, co_linetable=b"", co_filename="hook")


def _extension_files() -> dict[str, str]:
    found = {name: importlib.util.find_spec(name) for name in EXTENSIONS}
    return {
        name: spec.origin
        for name, spec in found.items()
        if spec is not None and spec.origin is not None and spec.origin.endswith(".so")
    }


def code_of(package: Path, modules: tuple[str, ...]) -> dict[str, CodeType]:
    """Name to byte code, for modules of `package`."""
    return {name: compiled((package / f"{name}.py").read_text("utf-8")) for name in modules}


def marshalled(code: dict[str, CodeType]) -> dict[str, bytes]:
    """The same, each still to be loaded."""
    return {name: marshal.dumps(body) for name, body in code.items()}


def bundle(package: Path, modules: tuple[str, ...]) -> bytes:
    """The content of a .pyc with these modules, which runs `main` of the last one."""
    data = {
        "FIRST": marshalled(code_of(package, modules)),
        "READY": READY_MODULES,
        "FILES": _extension_files(),
        "REPLAY": REPLAY_FILE,
        "SPARE_FILE": SPARE_FILE,
    }
    lines = "".join(f"{name} = {value!r}\n" for name, value in data.items())
    program = BOOT.replace("{module}", modules[-1])
    # Flags 1: hash-based and never checked against a source, of which there is none.
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    return head + marshal.dumps(compiled(lines + program))


def build(out: Path, python: str = sys.executable, package: Path | None = None) -> None:
    """Write the hook and the wrapper into the directory `out`, each whole or not at all."""
    package = package or Path(__file__).parent
    out.mkdir(parents=True, exist_ok=True)
    ready = {**code_of(package, READY_MODULES), **marshalled(code_of(package, HELD_MODULES))}
    _publish(out / REPLAY_FILE, marshal.dumps(ready), 0o644)
    spare = marshal.dumps(marshalled(code_of(package, SPARE_MODULES)))
    _publish(out / SPARE_FILE, spare, 0o644)
    _publish(out / HOOK_FILE, bundle(package, HOOK_MODULES), 0o644)
    _publish(out / WRAPPER_CODE, bundle(package, WRAPPER_MODULES), 0o644)
    wrapper = WRAPPER.format(python=python, code=WRAPPER_CODE)
    _publish(out / WRAPPER_FILE, wrapper.encode(), 0o755)


def _publish(path: Path, content: bytes, mode: int) -> None:
    draft = path.with_name(f".{path.name}.new")
    try:
        draft.write_bytes(content)
        draft.chmod(mode)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python3 -I build.py OUT_DIR")
    build(Path(sys.argv[1]).absolute())
