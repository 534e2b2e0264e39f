"""/etc/gpu-agent/config.toml to a frozen Config; every mistake is reported at once.

Pure: the caller reads the file, and a missing one is the same as an empty one, which is valid.
It refuses what it does not know (a misspelt key would otherwise be a setting that silently does
nothing) and converts nothing: `"10"` is not a number. Whether a path exists is not known here.

agentctl's read verbs do not import this module: the config model alone costs a tenth of their
time.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from agent.errors import ConfigError

SOCKET_PATH_LIMIT = 107
"""Bytes of a unix socket's path, without the final NUL."""
LONGEST_SOCKET_NAME = "/control.sock.new"
"""The longest socket name that is made below `run_dir`."""


def _path(value: str) -> str:
    parts = value.split("/")[1:]
    clean = value.isprintable() and not {"..", "."} & set(parts) and "" not in parts[:-1]
    if not value.startswith("/") or not clean:
        raise PydanticCustomError("path", "an absolute path without '.', '..' or '//'")
    return value.rstrip("/") or "/"


def _socket_path(value: str) -> str:
    if len(value.encode()) > SOCKET_PATH_LIMIT:
        raise PydanticCustomError("path", f"a socket path of at most {SOCKET_PATH_LIMIT} bytes")
    return value


def _run_dir(value: str) -> str:
    limit = SOCKET_PATH_LIMIT - len(LONGEST_SOCKET_NAME)
    if len(value.encode()) > limit or value == "/":
        raise PydanticCustomError("path", f"a directory of at most {limit} bytes for sockets")
    return value


def _matching(form: str, what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(form, value, re.ASCII):
            raise PydanticCustomError("form", what)
        return value

    return AfterValidator(check)


Path = Annotated[str, Strict(), AfterValidator(_path)]
SocketPath = Annotated[Path, AfterValidator(_socket_path)]
Namespace = Annotated[
    str, Strict(), _matching(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,74}[A-Za-z0-9])?", "a namespace's name")
]
# The hook looks for the name anywhere in a spec: a short one would be in every spec.
Variable = Annotated[
    str, Strict(), _matching(r"[A-Za-z_][\w.-]{3,127}", "a variable's name of 4 to 128 characters")
]
AnnotationPrefix = Annotated[
    str,
    Strict(),
    _matching(r"[a-z0-9][a-z0-9.-]{0,252}/[\w.-]{0,63}", "an annotation's domain, '/', and more"),
]
RunDir = Annotated[Path, AfterValidator(_run_dir)]
Flag = Annotated[bool, Strict()]
Seconds = Annotated[float, Strict(), Field(gt=0, le=60, allow_inf_nan=False)]
WholeSeconds = Annotated[int, Strict(), Field(ge=1, le=300)]
LogLevel = Literal["debug", "info", "warning", "error"]
CapabilityName = Literal["compat32", "compute", "display", "graphics", "ngx", "utility", "video"]
OptOutName = Literal["application_profile", "cuda_compat", "firmware", "proc_mask", "sockets"]
ALL_CAPABILITIES: tuple[CapabilityName, ...] = get_args(CapabilityName)

_KNOWN_KEYS_ONLY = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """[agent]: `run_dir` holds the staged plans and the agent's sockets."""

    __pydantic_config__: ClassVar[ConfigDict] = _KNOWN_KEYS_ONLY

    run_dir: RunDir = "/run/gpu-agent"
    log_level: LogLevel = "info"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """[host]: where the driver lives, for driver containers and unusual hosts.

    Nodes are below `<dev_root>/dev`, procfs is `proc_root` itself. `library_dirs` are searched
    besides the usual ones. `proc_mask` is the container path that is covered. Without `nvml`
    the inventory is procfs's and GPUs have no names. Where the driver's nodes are missing the
    agent makes them (`device_nodes` is `make`), also in place of those with an old number
    (`replace`), or it only names them (`leave`).
    """

    __pydantic_config__: ClassVar[ConfigDict] = _KNOWN_KEYS_ONLY

    driver_root: Path = "/"
    dev_root: Path = "/"
    proc_root: Path = "/proc"
    sys_root: Path = "/sys"
    library_dirs: tuple[Path, ...] = ()
    proc_mask: Path = "/proc/driver/nvidia"
    device_nodes: Literal["leave", "make", "replace"] = "replace"
    nvml: Flag = True
    nvml_timeout_s: Seconds = 10.0


@dataclass(frozen=True, slots=True)
class ContainerdSettings:
    """One [[containerd]]: a containerd to watch, by its socket."""

    __pydantic_config__: ClassVar[ConfigDict] = _KNOWN_KEYS_ONLY

    address: SocketPath


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """[policy]: who may ask for what; `agent.policy` has the rules.

    `env_requests` is `all` (any container's NVIDIA_VISIBLE_DEVICES counts, as the usual tools
    have it) or `privileged` (that of the others is ignored, they start as plain containers);
    with the latter, containers in `env_containerd_namespaces` and those of pods in
    `env_pod_namespaces` may ask too. `supported_capabilities` is the upper bound of every request.

    `swarm_resources` are variables that take the place of NVIDIA_VISIBLE_DEVICES where they are
    set. With `accept_volume_mounts` mounts of /dev/null below /var/run/nvidia-container-devices
    are requests, with `annotation_prefixes` CDI names in annotations that begin so.
    `disable_require` ignores NVIDIA_REQUIRE_*, `ignore_imex_channels` requests for those.
    `opt_out` is what no container of this node gets; one container can do without by the
    annotation `gpu-agent/opt-out` where a prefix allows that.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _KNOWN_KEYS_ONLY

    env_requests: Literal["all", "privileged"] = "all"
    supported_capabilities: tuple[CapabilityName, ...] = ALL_CAPABILITIES
    env_containerd_namespaces: tuple[Namespace, ...] = ()
    env_pod_namespaces: tuple[Namespace, ...] = ()
    swarm_resources: tuple[Variable, ...] = ()
    accept_volume_mounts: Flag = False
    annotation_prefixes: tuple[AnnotationPrefix, ...] = ()
    disable_require: Flag = False
    ignore_imex_channels: Flag = False
    opt_out: tuple[OptOutName, ...] = ()


@dataclass(frozen=True, slots=True)
class HookSettings:
    """[hook]: what containerd's runtimes are told to run.

    `python` is the interpreter (>= 3.11) of the hook file `path`, `agent_python` that of the
    standalone planner (None: the one that runs agentctl). `wrapper` is the runtime wrapper,
    `runtime` the OCI runtime that it runs.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _KNOWN_KEYS_ONLY

    runtime: Path = "/usr/bin/runc"
    python: Path = "/usr/bin/python3"
    path: Path = "/usr/libexec/gpu-agent/hook.pyc"
    wrapper: Path = "/usr/libexec/gpu-agent/gpu-agent-runc"
    agent_python: Path | None = None
    timeout_s: WholeSeconds = 10


DEFAULT_CONTAINERD = (ContainerdSettings("/run/containerd/containerd.sock"),)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one agent."""

    __pydantic_config__: ClassVar[ConfigDict] = _KNOWN_KEYS_ONLY

    agent: AgentSettings = AgentSettings()
    host: HostSettings = HostSettings()
    containerd: tuple[ContainerdSettings, ...] = DEFAULT_CONTAINERD
    policy: PolicySettings = PolicySettings()
    hook: HookSettings = HookSettings()


_POLICY_LISTS = tuple(
    field.name for field in dataclasses.fields(PolicySettings) if isinstance(field.default, tuple)
)
_EXPECTED = {
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "dataclass_type": "a table",
}


def parse(content: bytes, source: str) -> Config:
    """The Config in a file's `content`; `source` is its name for messages.

    Raises ConfigError with all mistakes.
    """
    try:
        data = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as e:
        raise ConfigError(source, [f"byte {e.start}: expected UTF-8"]) from e
    except (tomllib.TOMLDecodeError, RecursionError) as e:
        raise ConfigError(source, [f"not TOML: {e}"]) from e
    mistakes = _repetitions(data)
    try:
        config = _model().validate_python(data)
    except ValidationError as e:
        mistakes[:0] = [_mistake(details) for details in e.errors(include_url=False)]
        raise ConfigError(source, mistakes) from e
    if mistakes:
        raise ConfigError(source, mistakes)
    return config


@cache
def _model() -> TypeAdapter[Config]:
    return TypeAdapter(Config)


def _repetitions(data: Mapping[str, object]) -> list[str]:
    """What the model cannot say beside other mistakes: an empty list, a value given twice."""
    mistakes = _idle_lists(data)
    if data.get("containerd") == []:
        mistakes.append("containerd = []: expected at least one")
    for place, values in _lists(data):
        seen: set[str] = set()
        for number, value in enumerate(values):
            key = value.rstrip("/") if isinstance(value, str) else ""
            if key and key in seen:
                mistakes.append(f"{place % number} = {_shown(value)}: expected each value once")
            seen.add(key)
    return mistakes


def _idle_lists(data: Mapping[str, object]) -> list[str]:
    """Lists of those who may ask although everybody may: somebody thinks that they restrict."""
    policy = data.get("policy")
    if not isinstance(policy, dict) or policy.get("env_requests", "all") != "all":
        return []
    return [
        f"policy.{name} = {_shown(policy[name])}: expected only with env_requests = 'privileged'"
        for name in ("env_containerd_namespaces", "env_pod_namespaces")
        if policy.get(name)
    ]


def _lists(data: Mapping[str, object]) -> Iterator[tuple[str, list[object]]]:
    for table, name in (("host", "library_dirs"), *(("policy", n) for n in _POLICY_LISTS)):
        settings = data.get(table)
        values = settings.get(name) if isinstance(settings, dict) else None
        if isinstance(values, list):
            yield f"{table}.{name}[%d]", values
    entries = data.get("containerd")
    if isinstance(entries, list):
        yield (
            "containerd[%d].address",
            [e.get("address") if isinstance(e, dict) else None for e in entries],
        )


def _mistake(details: ErrorDetails) -> str:
    where = ""
    for part in details["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}"
    place = where.removeprefix(".")
    if details["type"] == "missing":
        return f"{place}: missing"
    if details["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{place}: unknown key: expected one of {', '.join(_keys(details['loc'][:-1]))}"
    return f"{place} = {_shown(details['input'])}: expected {_expected(details)}"


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _expected(details: ErrorDetails) -> str:
    if words := _EXPECTED.get(details["type"]):
        return words
    return details["msg"].removeprefix("Input should be ")


def _keys(place: tuple[int | str, ...]) -> list[str]:
    tables = {
        "agent": AgentSettings,
        "host": HostSettings,
        "containerd": ContainerdSettings,
        "policy": PolicySettings,
        "hook": HookSettings,
    }
    table = tables.get(str(place[0]), Config) if place else Config
    return [field.name for field in dataclasses.fields(table)]
