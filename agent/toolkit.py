"""An existing nvidia-container-toolkit config, read for its policy: our settings and a report.

Pure. Every key of the file appears in the report, once: as a setting that was taken, or with the
reason why it has no meaning here (or none yet). What cannot be understood is reported, never
guessed, and nothing here decides what a value means beyond what that tool documents.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from agent.config import ALL_CAPABILITIES
from agent.errors import UsageError

Table = Mapping[str, object]
Setting = tuple[str, str, object]
"""(table, key, value) of our config."""


@dataclass(frozen=True, slots=True)
class Import:
    """Our config's text, and (key, what became of it) for every key of theirs."""

    text: str
    report: tuple[tuple[str, str], ...]


class NotThere(Exception):
    """A value that this key cannot have; the text says what was expected."""


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise NotThere("true or false")
    return value


def _words(value: object) -> list[str]:
    if not isinstance(value, str):
        raise NotThere("a comma list")
    return [word.strip() for word in value.split(",") if word.strip()]


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise NotThere("an absolute path")
    return value


def _unprivileged(value: object) -> Setting:
    return ("policy", "env_requests", "all" if _flag(value) else "privileged")


def _capabilities(value: object) -> Setting:
    words = _words(value)
    if unknown := [word for word in words if word not in ALL_CAPABILITIES]:
        raise NotThere(f"capabilities, and {unknown[0]} is none")
    return ("policy", "supported_capabilities", sorted(words))


def _runtimes(value: object) -> Setting:
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise NotThere("a list of runtimes")
    name = value[0]
    return ("hook", "runtime", name if name.startswith("/") else f"/usr/bin/{name}")


def _prefixes(value: object) -> Setting:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise NotThere("a list of prefixes")
    return ("policy", "annotation_prefixes", value)


TAKEN: Mapping[str, Callable[[object], Setting]] = {
    "disable-require": lambda v: ("policy", "disable_require", _flag(v)),
    "swarm-resource": lambda v: ("policy", "swarm_resources", _words(v)),
    "accept-nvidia-visible-devices-envvar-when-unprivileged": _unprivileged,
    "accept-nvidia-visible-devices-as-volume-mounts": lambda v: (
        *("policy", "accept_volume_mounts"),
        _flag(v),
    ),
    "supported-driver-capabilities": _capabilities,
    "nvidia-container-cli.root": lambda v: ("host", "driver_root", _path(v)),
    "nvidia-container-runtime.runtimes": _runtimes,
    "nvidia-container-runtime.modes.cdi.annotation-prefixes": _prefixes,
    "features.ignore-imex-channel-requests": lambda v: (
        *("policy", "ignore_imex_channels"),
        _flag(v),
    ),
}

_NO_TOOL = "there is no such program here"
_ALWAYS = "always so here"
MEANINGLESS: Mapping[str, str] = {
    "nvidia-container-cli.path": _NO_TOOL,
    "nvidia-container-cli.environment": "no process is started that could take it",
    "nvidia-container-cli.debug": "agentd logs to stderr; see agent.log_level",
    "nvidia-container-cli.ldcache": "the loader cache is only a hint and is found by itself",
    "nvidia-container-cli.load-kmods": "the hook loads no modules",
    "nvidia-container-cli.no-pivot": "the hook changes no root",
    "nvidia-container-cli.no-cgroups": "device rules are never left out",
    "nvidia-container-cli.user": "the hook runs no library of the driver",
    "nvidia-container-cli.ldconfig": "no ldconfig is run, neither the host's nor the image's",
    "nvidia-ctk.path": _NO_TOOL,
    "nvidia-container-runtime.debug": "agentd logs to stderr; see agent.log_level",
    "nvidia-container-runtime.log-level": "agentd logs to stderr; see agent.log_level",
    "nvidia-container-runtime.mode": "there is one mode",
    "nvidia-container-runtime.modes.csv.mount-spec-path": "Tegra is not supported",
    "nvidia-container-runtime.modes.csv.compat-container-root": "Tegra is not supported",
    "nvidia-container-runtime.modes.cdi.spec-dirs": "no CDI specs are read",
    "nvidia-container-runtime.modes.cdi.default-kind": "names without a kind are GPUs",
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags": "no CDI specs are made",
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks": "no CDI hooks are run",
    "nvidia-container-runtime.modes.legacy.cuda-compat-mode": "not supported yet",
    "nvidia-container-runtime-hook.path": _NO_TOOL,
    "nvidia-container-runtime-hook.skip-mode-detection": "there is one mode",
    "features.allow-cuda-compat-libs-from-container": "files of the image are never mounted",
    "features.allow-ldconfig-from-container": "nothing of the image is ever run",
    "features.allow-unknown-oci-spec-fields": _ALWAYS,
    "features.disable-cuda-compat-lib-hook": "not supported yet",
    "features.disable-imex-channel-creation": _ALWAYS,
    "features.no-additional-gids-for-device-nodes": _ALWAYS,
}


def convert(content: bytes, source: str) -> Import:
    """The settings of ours that a toolkit config amounts to. Raises UsageError if it is no TOML."""
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as e:
        raise UsageError(f"toolkit config: {source}: not TOML: {e}") from e
    settings: list[Setting] = []
    report = []
    for key, value in _leaves(document, ""):
        found, words = _one(key, value)
        settings += found
        report.append((key, words))
    return Import(_text(settings, source), tuple(report))


def _one(key: str, value: object) -> tuple[list[Setting], str]:
    if key not in TAKEN:
        return [], f"not taken: {MEANINGLESS.get(key, 'not known')}"
    try:
        table, name, ours = TAKEN[key](value)
    except NotThere as e:
        return [], f"not taken: {json.dumps(value, default=str)[:80]} is not {e}"
    return [(table, name, ours)], f"taken: {table}.{name} = {json.dumps(ours)}"


def _leaves(table: Table, prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _text(settings: list[Setting], source: str) -> str:
    lines = [f"# From {json.dumps(source)[1:-1]}."]
    for table in dict.fromkeys(table for table, _, _ in settings):
        lines += ["", f"[{table}]"]
        # JSON's strings, booleans and lists of strings are TOML's.
        lines += [f"{k} = {json.dumps(v)}" for t, k, v in settings if t == table]
    return "\n".join([*lines, ""])
