"""Build the installed files: the hook as one byte-compiled file, and the runtime wrapper.

    python3 -I hooks/build.py OUT_DIR

Run it with the very interpreter that will run the hook: byte code belongs to one version. The
hook's modules travel inside one .pyc, each still marshalled until it is imported, so a start
reads one file and pays for no more than it uses; nothing is searched on sys.path and nothing is
compiled at start. This module is build-time only.
"""

import importlib.util
import marshal
import os
import sys
from pathlib import Path

HOOK_FILE = "hook.pyc"
WRAPPER_FILE = "gpu-agent-runc"
WRAPPER_CODE = "runc_wrapper.pyc"

# In order of import; build.py itself stays out.
MODULES = (
    "errors",
    "clock",
    "state",
    "planfile",
    "cfunction",
    "syscalls",
    "rootfs",
    "stagedir",
    "slowpath",
    "ldcache_table",
    "ldcache",
    "mounts",
    "devices",
    "replay",
    "hook",
    "runc_wrapper",
)

# What the .pyc runs first. The finder serves `hooks.*` from CODE; ModuleSpec is taken from where
# the interpreter already has it, because importing importlib.machinery costs a millisecond.
BOOT = """
import posix
import sys
from marshal import loads
from _frozen_importlib import ModuleSpec

class Bundle:
    def find_spec(name, path=None, target=None):
        if name in CODE:
            return ModuleSpec(name, Bundle, is_package=name == "hooks")
    def create_module(spec):
        return None
    def exec_module(module):
        exec(loads(CODE[module.__name__]), module.__dict__)

sys.meta_path.insert(0, Bundle)
from hooks.{module} import main
posix._exit(main(sys.argv[1:]))
"""

WRAPPER = """#!{python} -ISB
import marshal
with open({code!r}, "rb") as file:
    exec(marshal.loads(file.read()[16:]))
"""


def compiled(source: str, name: str) -> bytes:
    """`source` as marshalled byte code without docstrings and asserts."""
    return marshal.dumps(compile(source, name, "exec", dont_inherit=True, optimize=2))


def bundle(package: Path, module: str) -> bytes:
    """The content of a .pyc that runs `hooks.<module>.main` with everything it needs."""
    code = {"hooks": compiled("", "hooks/__init__.py")}
    for name in MODULES:
        path = package / f"{name}.py"
        code[f"hooks.{name}"] = compiled(path.read_text("utf-8"), f"hooks/{name}.py")
    program = compiled(f"CODE = {code!r}\n{BOOT.format(module=module)}", f"{module}.pyc")
    # Flags 1: hash-based and never checked against a source, of which there is none.
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + program


def build(out: Path, python: str = sys.executable, package: Path | None = None) -> None:
    """Write the hook and the wrapper into the directory `out`, each whole or not at all."""
    package = package or Path(__file__).parent
    out.mkdir(parents=True, exist_ok=True)
    _publish(out / HOOK_FILE, bundle(package, "hook"), 0o644)
    _publish(out / WRAPPER_CODE, bundle(package, "runc_wrapper"), 0o644)
    wrapper = WRAPPER.format(python=python, code=str(out / WRAPPER_CODE))
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
