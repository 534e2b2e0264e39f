"""What else starts GPU containers, for the start-up bench: the usual tools, if they are here.

`published` needs no GPU: a hook that does what the usual tools are known to do at each start,
with a stub NVML that takes as long as a published measurement says. The others are the tools
themselves. A tool that is missing is named with the reason, never replaced by something like it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrib.simhost import toolchain
from contrib.simhost.toolchain import Identity
from tests.containerd.daemon import search_path
from tests.containers.spec import Json, create_hook
from tests.containers.staging import GPU_ENV

HERE = Path(__file__).parent
INIT_MS, SHUTDOWN_MS = 550, 220
"""The published case: what NVML took on a host without persistence mode."""
TOOL_S = 60
SECTION = "nvidia-container-runtime"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to create the container, which has `name` as its id in every round.

    `edits` are CDI's container edits, applied to the spec before it is given to `runtime`.
    """

    name: str
    hooks: Json | None = None
    env: tuple[str, ...] = ()
    edits: tuple[Json, ...] = ()
    runtime: str = "runc"


def published(work: Path, root: Path) -> Variant:
    """The published case, for containers whose root is always `root`."""
    answers = work / "published.answers"
    delays = {"nvmlInitWithFlags": INIT_MS, "nvmlShutdown": SHUTDOWN_MS}
    answers.write_text("".join(f"delay_ms {call} {ms}\n" for call, ms in delays.items()))
    name = "libnvidia-ml.so.1"
    library = work / name
    library.write_bytes(toolchain.nvml_library(Identity(name, "535.54.03", name, str(answers))))
    program = compile_program(HERE / "usual.c", work / "usual")
    ldconfig = find("ldconfig") or "ldconfig"
    return Variant(
        "published", create_hook(str(program), str(library), ldconfig, str(root)), GPU_ENV
    )


def compile_program(source: Path, target: Path) -> Path:
    """A program made of one C file. Raises SimHostError with the compiler's complaint."""
    target.write_bytes(toolchain.compiled(source, ("-O1", "-Wall")))
    target.chmod(0o755)
    return target


def peers(work: Path, driver: bool) -> tuple[list[Variant], list[str]]:
    """The tools on this machine, and a line for each one that is not measured."""
    needs = {
        "legacy": ("nvidia-container-runtime-hook", "nvidia-container-cli"),
        "cdi": ("nvidia-ctk",),
        "jit-cdi": ("nvidia-container-runtime", "nvidia-ctk"),
    }
    makers = {"legacy": _legacy, "cdi": _cdi, "jit-cdi": _jit_cdi}
    found, left_out = [], []
    for name, programs in needs.items():
        absent = [program for program in programs if find(program) is None]
        if absent or not driver:
            why = f"not installed: {', '.join(absent)}" if absent else "no NVIDIA driver"
            left_out.append(f"{name}: not measured: {why}")
            continue
        try:
            found.append(makers[name](work))
        except (subprocess.SubprocessError, OSError, ValueError, KeyError) as e:
            left_out.append(f"{name}: not measured: {_why(e)}")
    return found, left_out


def find(program: str) -> str | None:
    """The absolute path of a program of the host."""
    return shutil.which(program, path=search_path())


def _legacy(work: Path) -> Variant:
    program = find("nvidia-container-runtime-hook") or ""
    config = _config(work / "legacy", "legacy")
    arguments = [program, "-config", str(config), "prestart"]
    entry = {"path": program, "args": arguments, "env": [f"PATH={search_path()}"]}
    return Variant("legacy", {"prestart": [entry]}, GPU_ENV)


def _jit_cdi(work: Path) -> Variant:
    home = work / "jit-cdi"
    _config(home, "jit-cdi")
    # The runtime finds its config only through its environment, which runc's caller gives it.
    script = home / "runtime"
    program = find("nvidia-container-runtime")
    script.write_text(f'#!/bin/sh\nXDG_CONFIG_HOME="{home}" exec "{program}" "$@"\n')
    script.chmod(0o755)
    return Variant("jit-cdi", None, GPU_ENV, runtime=str(script))


def _cdi(work: Path) -> Variant:
    """CDI's edits for GPU 0, in the spec already: what a runtime that knows CDI does."""
    made = work / "cdi.json"
    program = find("nvidia-ctk") or ""
    command = [program, "cdi", "generate", "--format=json", f"--output={made}"]
    subprocess.run(command, check=True, capture_output=True, timeout=TOOL_S)
    spec = json.loads(made.read_bytes())
    device = next(d for d in spec["devices"] if d["name"] == "0")
    return Variant("cdi", edits=(spec.get("containerEdits", {}), device["containerEdits"]))


def _config(home: Path, mode: str) -> Path:
    directory = home / SECTION
    directory.mkdir(parents=True)
    path = directory / "config.toml"
    path.write_text(f'[{SECTION}]\nmode = "{mode}"\n[{SECTION}-hook]\nskip-mode-detection = true\n')
    return path


def apply_edits(spec: Json, edits: Mapping[str, Any]) -> None:
    """Put CDI's container edits into an OCI spec, as CDI says. Raises OSError for a lost node."""
    spec["process"]["env"] += list(edits.get("env", ()))
    for mount in edits.get("mounts", ()):
        entry = {"source": mount["hostPath"], "destination": mount["containerPath"]}
        options = mount.get("options", ["rbind"])
        spec["mounts"].append({**entry, "type": mount.get("type", "bind"), "options": options})
    for node, rule in map(_device, edits.get("deviceNodes", ())):
        spec["linux"]["devices"].append(node)
        spec["linux"]["resources"]["devices"].append(rule)
    hooks = spec.setdefault("hooks", {})
    for hook in edits.get("hooks", ()):
        keys = ("path", "args", "env", "timeout")
        entry = {key: hook[key] for key in keys if key in hook}
        hooks.setdefault(hook["hookName"], []).append(entry)


def _device(wanted: Json) -> tuple[Json, Json]:
    found = os.stat(str(wanted.get("hostPath") or wanted["path"]))
    numbers = {"major": os.major(found.st_rdev), "minor": os.minor(found.st_rdev)}
    owner = {"uid": found.st_uid, "gid": found.st_gid, "fileMode": stat.S_IMODE(found.st_mode)}
    node = {"path": wanted["path"], "type": "c", **numbers, **owner}
    access = wanted.get("permissions", "rwm")
    return node, {"allow": True, "type": "c", **numbers, "access": access}


def _why(error: Exception) -> str:
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    lines: Iterator[str] = iter((said or b"").decode(errors="replace").splitlines())
    return next(lines, None) or f"{type(error).__name__}: {error}"
