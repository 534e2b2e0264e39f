"""What the hook's process runs, opens and inherits, seen by strace in real containers."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from tests.containers.image import copy_image
from tests.containers.spec import bind, make_spec
from tests.immunity.oracles import (
    STRACE,
    Traced,
    assert_no_foreign_code,
    environment,
    host_untouched,
    some,
    traced,
)
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, asking, refused
from tests.kernel.test_mounts import read_only_mount, used_root

pytestmark = [
    *NEEDS_CONTAINERS,
    pytest.mark.skipif(not os.path.exists(STRACE), reason="not installed: strace"),
]

PROGRAMS = (
    *("sbin/ldconfig", "sbin/ldconfig.real", "bin/ldconfig", "bin/nvidia-modprobe"),
    *("bin/python3", "bin/env", "bin/nvidia-container-cli"),
)
MODULES = (
    *("sitecustomize.py", "usercustomize.py", "json.py", "posix.py", "hooks.py", "encodings.py"),
    *("ctypes/__init__.py", "encodings/__init__.py", "encodings/idna.py", "pyvenv.cfg"),
    *("python3._pth", "evil.so", "lib/evil.so", "usr/lib/python3.11/json/__init__.py"),
    *("usr/lib/gconv/gconv-modules", "usr/lib/libnss_files.so.2", "usr/lib/libc.so.6"),
)
# Their PATH may be hostile too.
ARGS = ("/usr/bin/sleep", "60")
HERE = "/proc/self/cwd"
HOSTILE = {
    **dict.fromkeys(("LD_PRELOAD", "LD_AUDIT", "GCONV_PATH", "NLSPATH"), f"{HERE}/evil.so"),
    **dict.fromkeys(("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE"), HERE),
    **dict.fromkeys(("LOCPATH", "TZDIR", "HOME", "TMPDIR", "XDG_CONFIG_HOME", "PATH"), HERE),
    **dict.fromkeys(("LD_DEBUG_OUTPUT", "MALLOC_TRACE", "PYTHONPYCACHEPREFIX"), "/marker"),
    **dict.fromkeys(("PYTHONSTARTUP", "BASH_ENV", "ENV", "PYTHONEXECUTABLE"), f"{HERE}/json.py"),
    **dict.fromkeys(("HOSTALIASES", "RESOLV_HOST_CONF", "SSL_CERT_FILE"), f"{HERE}/evil.so"),
    **dict.fromkeys(("GRPC_TRACE", "GRPC_VERBOSITY", "PYTHONINSPECT", "PYTHONCASEOK"), "1"),
    "LD_DEBUG": "all",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "PYTHONPLATLIBDIR": "evil",
    "PYTHONWARNINGS": "error::json.JSONDecodeError",
    "PYTHONBREAKPOINT": "json.loads",
    "GPU_AGENT_RUN_DIR": "/evil",
}
# What may happen in the container's namespace: each on descriptors.
HARMLESS = {
    *(
        "move_mount",
        "mount_setattr",
        "mount",
        "umount2",
        "fchdir",
        "openat",
        "close",
        "write",
        "fstat",
    ),
    *("newfstatat", "renameat", "renameat2", "unlinkat", "symlinkat", "mkdirat", "readlinkat"),
    *("mmap", "munmap", "brk", "exit_group", "getpid", "fstatfs", "clock_gettime", "lseek"),
}


NAMES = ["all of them", *HOSTILE]


def hostile(root: Path) -> Path:
    """Programs, modules and libraries with every name that a careless hook would run or load."""
    for name in PROGRAMS:
        path = root / "usr" / name
        path.unlink(missing_ok=True)
        path.write_text("#!/bin/sh\ntouch /marker\n")
        path.chmod(0o755)
    for name in MODULES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text("open('/marker', 'w')\nraise SystemExit(0)\n")
    return root


@pytest.mark.parametrize("name", some(2, NAMES))
def test_variable_of_the_image(every: Starter, root: Path, name: str) -> None:
    """A hostile variable of the image does not reach the hook, and nothing that lies in its root
    or working directory is run, mapped or imported (T-23266)."""
    variables = HOSTILE if name == "all of them" else {name: HOSTILE[name]}
    seen = traced(every)
    env = (*(f"{key}={value}" for key, value in variables.items()), *asking("0"))
    with seen.starter.prepared(hostile(root), args=ARGS, env=env) as container:
        container.create()
    assert environment(seen) == ["GPU_AGENT_HOOK=1"]
    assert_no_foreign_code(seen)
    assert not (root / "marker").exists()
    assert every.records()[-1][5] == "ok"


def test_entry_without_an_environment(starter: Starter, root: Path) -> None:
    """Even an entry whose environment was lost takes no variable of the image's."""
    seen = traced(starter)
    hooks = seen.starter.hooks()
    del hooks["createRuntime"][0]["env"]
    env = (*(f"{key}={value}" for key, value in HOSTILE.items()), *asking("0"))
    with seen.starter.prepared(hostile(root), args=ARGS, env=env, hooks=hooks) as container:
        container.create()
    assert not {f"{key}={value}" for key, value in HOSTILE.items()} & set(environment(seen))
    assert_no_foreign_code(seen)
    assert not (root / "marker").exists()


def test_wrong_stage_of_the_runtime(every: Starter, root: Path, canary: Path) -> None:
    """As a createContainer hook, where old runtimes pass the image's environment on, it refuses
    and runs nothing."""
    seen = traced(every)
    hooks = {"createContainer": seen.starter.hooks()["createRuntime"]}
    env = (*(f"{key}={value}" for key, value in HOSTILE.items()), *asking("0"))
    with (
        host_untouched(canary),
        seen.starter.prepared(hostile(root), args=ARGS, env=env, hooks=hooks) as container,
    ):
        outcome = container.create(check=False)
    assert outcome.status != 0
    # crun keeps what its hooks say to itself.
    assert "gpu-agent: state: pid" in outcome.stderr or "(exit code: 1)" in outcome.stderr
    assert environment(seen) == ["GPU_AGENT_HOOK=1"]
    assert_no_foreign_code(seen)
    assert not (root / "marker").exists()


def assert_descriptors_only(seen: Traced) -> None:
    """After joining: no call of another kind, and no path but names in an opened directory. A
    kernel without detached mounts also needs the plan's sources, which are the host's."""
    calls = seen.after_joining()
    assert {call.name for call in calls} <= HARMLESS
    node = seen.starter.node
    classic = seen.starter.launcher[-1].endswith("old-kernel")
    sources = (f"{node.host.root}/", f"{node.run_dir}/.spare-") if classic else ()
    for call in calls:
        if call.name == "mmap":
            assert "PROT_EXEC" not in call.arguments
        if call.name != "write":
            assert [p for p in call.strings if "/" in p and not p.startswith(sources)] == [], call


@pytest.mark.parametrize("kind", ["writable", "read-only"])
def test_after_joining(either: Starter, root: Path, kind: str) -> None:
    """In the container's namespace there are system calls on descriptors and nothing else: no
    import, no codec, no name service, no path of the image (T-LAZY)."""
    with ExitStack() as mounted:
        if kind == "read-only":
            used_root(either, root)
            root = mounted.enter_context(read_only_mount(root, either.work / "shut"))
        seen = traced(either)
        container = mounted.enter_context(seen.starter.prepared(root, readonly=kind == "read-only"))
        container.create()
    assert len(seen.after_joining()) > 25
    assert_descriptors_only(seen)
    assert_no_foreign_code(seen)


def test_after_joining_under_each_runtime(every: Starter, root: Path) -> None:
    """The same however the runtime has prepared the container's namespace."""
    seen = traced(every)
    with seen.starter.prepared(hostile(root), args=ARGS) as container:
        container.create()
    assert_descriptors_only(seen)
    assert_no_foreign_code(seen)


def test_after_joining_in_a_failure(either: Starter, root: Path) -> None:
    """So it is when the last step fails and everything is taken back."""
    seen = traced(either)
    own = either.work / "own.cache"
    shutil.copy(root / "etc/ld.so.cache", own)
    hostile(root)
    with seen.starter.prepared(root, mounts=[bind(own, "/etc/ld.so.cache")]) as container:
        assert "busy" in refused(container.create(check=False))
    assert [call for call in seen.after_joining() if call.name == "umount2"]
    assert_descriptors_only(seen)
    assert_no_foreign_code(seen)


def test_planner_inherits_nothing(starter: Starter, root: Path) -> None:
    """The one child that the hook has gets its own environment and three descriptors, also where
    the runtime left a directory of the host open (T-FD)."""
    notes = starter.work / "notes"
    planner = starter.work / "planner"
    planner.write_text(
        f"#!/bin/sh\nls -l /proc/self/fd >{notes}\ntr '\\0' '\\n' </proc/self/environ >>{notes}\n"
    )
    planner.chmod(0o755)
    hooks = starter.hooks()
    entry = hooks["createRuntime"][0]
    entry["path"] = "/bin/sh"
    entry["args"] = ["sh", "-c", 'exec 9</etc; exec "$@"', "sh", *entry["args"], str(planner)]
    with starter.prepared(root, hooks=hooks, stage=False) as container:
        refused(container.create(check=False))
    lines = notes.read_text().splitlines()
    opened = [m[1] for line in lines if (m := re.search(r" (\d+ -> .*)$", line))]
    # `ls` opens the directory that it lists.
    assert [o for o in opened if "/etc" in o or "host" in o] == []
    assert len(opened) == 4
    assert {line for line in lines if re.match(r"[A-Z_]+=", line)} - {"PWD=/"} <= {
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL=C.UTF-8",
        f"PWD={os.getcwd()}",
        f"PWD={root}",
    }


def test_container_has_no_descriptor_of_the_host(every: Starter, root: Path) -> None:
    """The container's first process has no descriptor of any directory (T-FD)."""
    with every.started(root) as container:
        process = Path(f"/proc/{container.pid}")
        deadline = time.monotonic() + 20
        while "busybox" not in os.readlink(process / "exe"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        kinds = {int(fd.name): fd.is_dir() for fd in (process / "fd").iterdir()}
    assert kinds == {0: False, 1: False, 2: False}


@pytest.mark.parametrize("number", some(2, range(7, 21)))
def test_working_directory_is_a_descriptor(starter: Starter, root: Path, number: int) -> None:
    """A working directory in /proc/self/fd leads to nothing of the hook's (T-FD)."""
    args = ["sh", "-c", "ls -a . ..; pwd"]
    process = make_spec(root, args, env=asking("0"))["process"]
    process["cwd"] = f"/proc/self/fd/{number}"
    with starter.prepared(root, changes={"process": process}) as container:
        outcome = container.run()
    assert not {"boot", "home", "srv", "replays.log"} & set(outcome.stdout.split())


def test_interpreter_is_not_reached(starter: Starter, root: Path) -> None:
    """Nothing of the host is executed with the image as its root, and the interpreter cannot be
    opened by a container that looks for it while the hook runs (T-0135)."""
    python = Path(os.path.realpath("/usr/bin/python3"))
    before = sha256(python.read_bytes()).digest()
    hunter = "while :; do for p in /proc/[0-9]*; do readlink $p/exe; done; done"
    args = ["sh", "-c", f"({hunter}) 2>/dev/null"]
    linux = make_spec(root, args)["linux"]
    linux["namespaces"].remove({"type": "pid"})
    with starter.prepared(root, args=args, env=(), changes={"linux": linux}) as watcher:
        watcher.create()
        watcher.start()
        other = copy_image(root, starter.work / "other")
        for _ in range(3):
            with starter.prepared(other) as container:
                container.create()
        found = (watcher.bundle / "create.stdout").read_text().split()
    assert "/usr/bin/busybox" in found
    assert [path for path in found if "python" in path or "ldconfig" in path] == []
    assert sha256(python.read_bytes()).digest() == before
