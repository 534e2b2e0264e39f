"""`agentctl runtime-config`: what containerd on this node needs in order to run the hook.

It prints: the runtime handler, the hook entry for its base spec, and the runtime wrapper for
callers without a base spec. It installs nothing, runs nothing and restarts nothing.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass

from agent import config
from agent.config import HookSettings
from agent.errors import UsageError

HANDLER = "gpu"
RUNTIME_TYPE = "io.containerd.runc.v2"
BASE_SPEC = "/etc/gpu-agent/base-spec.json"
WRAPPER_SETTINGS = "wrapper.conf"
FILE_LIMIT = 16 * 1024 * 1024

# containerd drops an empty environment, and some runtimes then give the hook the image's.
HOOK_ENV = ("GPU_AGENT_HOOK=1",)

_CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}


@dataclass(frozen=True, slots=True)
class Node:
    """The settings of this node that its runtimes must know.

    `config` is the agent's config file, None for the default one; `words` are the variables
    besides our own that make a container ask for a GPU.
    """

    run_dir: str
    hook: HookSettings
    agent_python: str
    config: str | None = None
    words: tuple[str, ...] = ()


def read_node(path: str | None, default: str, *, run_dir: str | None = None) -> Node:
    """The node that a config file describes; only the `default` file may be missing.

    `run_dir` overrides the file's. Raises ConfigError for mistakes in the file and UsageError
    when it cannot be read.
    """
    source = path or default
    try:
        content = _read(source)
    except FileNotFoundError as e:
        if path is not None:
            raise UsageError(f"config: {source}: no such file") from e
        content = b""
    settings = config.parse(content, source)
    return Node(
        run_dir=run_dir or settings.agent.run_dir,
        hook=settings.hook,
        agent_python=settings.hook.agent_python or sys.executable,
        # Absolute: the hook runs in whatever directory the runtime is.
        config=None if path in (None, "-") else os.path.abspath(source),
        words=settings.policy.swarm_resources,
    )


def hook_entry(node: Node) -> dict[str, object]:
    """The createRuntime hook as an OCI spec has it."""
    hook = node.hook
    args = ["python3", "-I", "-S", "-B", hook.path, node.run_dir, node.agent_python]
    if node.config is not None:
        # For the standalone planner, which must find the same host as the agent.
        args.append(f"--config={node.config}")
    args += [f"--word={word}" for word in node.words]
    return {
        "path": hook.python,
        "args": args,
        "env": list(HOOK_ENV),
        "timeout": hook.timeout_s,
    }


def handler(version: int, *, systemd_cgroup: bool, binary: str | None = None) -> str:
    """containerd's runtime handler as TOML: with a base spec, or with the runtime `binary`."""
    table = f'plugins."{_CRI[version]}".containerd.runtimes.{HANDLER}'
    lines = [f"version = {version}", "", f"[{table}]", f'runtime_type = "{RUNTIME_TYPE}"']
    options = []
    if binary is None:
        lines.append(f'base_runtime_spec = "{BASE_SPEC}"')
    else:
        options.append(f"BinaryName = {_quoted(binary)}")
    if systemd_cgroup:
        options.append("SystemdCgroup = true")
    if options:
        lines += ["", f"[{table}.options]", *options]
    return "\n".join(lines) + "\n"


def with_hook(base: dict[str, object], entry: dict[str, object]) -> dict[str, object]:
    """A base spec with our hook as its last createRuntime hook, once.

    Raises UsageError when the spec's hooks are not what OCI says.
    """
    made = dict(base)
    process, hooks = made.get("process"), made.get("hooks", {})
    # CRI takes the generated spec's rlimits away but keeps a base spec's: 1024 open files.
    if isinstance(process, dict):
        made["process"] = {k: v for k, v in process.items() if k != "rlimits"}
    if not isinstance(hooks, dict) or not isinstance(hooks.get("createRuntime", []), list):
        raise UsageError("base spec: hooks: not an object of lists")
    others = [h for h in hooks.get("createRuntime", []) if not _is_ours(h)]
    made["hooks"] = {**hooks, "createRuntime": [*others, entry]}
    return made


def print_base_spec(node: Node, path: str) -> None:
    """The spec in `path` (`-` is stdin) with the hook in it, as JSON."""
    try:
        base = json.loads(_read(path))
    except OSError as e:
        raise UsageError(f"base spec: {path}: {(e.strerror or 'unreadable').lower()}") from e
    except (ValueError, RecursionError) as e:
        raise UsageError(f"base spec: {path}: not JSON", "it is what `ctr oci spec` prints") from e
    if not isinstance(base, dict):
        raise UsageError(f"base spec: {path}: not a JSON object")
    print(json.dumps(with_hook(base, hook_entry(node)), indent=2))


def print_config(node: Node, *, config_version: int, systemd_cgroup: bool, as_json: bool) -> None:
    """Everything at once: for people with headings, or as one JSON object."""
    entry = hook_entry(node)
    wrapper = node.hook.wrapper
    parts: dict[str, object] = {
        "config_version": config_version,
        "handler": handler(config_version, systemd_cgroup=systemd_cgroup),
        "base_spec_path": BASE_SPEC,
        "base_spec": {"hooks": {"createRuntime": [entry]}},
        "hook": entry,
        "wrapper_handler": handler(config_version, systemd_cgroup=systemd_cgroup, binary=wrapper),
        "wrapper_settings_path": f"{wrapper.rpartition('/')[0]}/{WRAPPER_SETTINGS}",
        "wrapper_settings": f"{node.hook.runtime}\n{json.dumps(entry)}\n",
    }
    print(json.dumps(parts, indent=2) if as_json else _in_words(parts, wrapper))


def _in_words(parts: dict[str, object], wrapper: str) -> str:
    return "\n".join(
        (
            f"# containerd's config, version {parts['config_version']}; it is read at start.",
            f"# Kubernetes: a RuntimeClass with handler: {HANDLER}.",
            str(parts["handler"]),
            f"# {parts['base_spec_path']}: what `ctr oci spec` prints, with these hooks in it:",
            "#   ctr oci spec | agentctl runtime-config --base-spec -",
            json.dumps(parts["base_spec"], indent=2),
            "",
            "# Or the runtime wrapper, also for callers that read no base spec:",
            f"#   ctr run --runc-binary {wrapper}, nerdctl run --runtime {wrapper}",
            str(parts["wrapper_handler"]),
            f"# with the two lines of {parts['wrapper_settings_path']}:",
            str(parts["wrapper_settings"]).rstrip(),
        )
    )


def _is_ours(hook: object) -> bool:
    return isinstance(hook, dict) and list(HOOK_ENV) == hook.get("env")


def _quoted(path: str) -> str:
    # Paths of the config are printable; TOML's basic strings escape as JSON's do.
    return json.dumps(path, ensure_ascii=False)


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read(FILE_LIMIT)
    try:
        with open(path, "rb") as file:
            return file.read(FILE_LIMIT)
    except FileNotFoundError:
        raise
    except OSError as e:
        raise UsageError(f"{path}: {(e.strerror or 'unreadable').lower()}") from e
