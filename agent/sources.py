"""Which part of a spec asks for GPUs: annotations, mounts, or the environment, in this order.

Pure. The first source that names a device counts alone; IMEX channels have an order of their
own. Annotations and mounts count only where the node's policy takes them for the orchestrator's
word; the environment is anybody's, and policy says whose counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent import spec as oci
from agent.errors import RequestError
from agent.features import OPT_OUT, features_asked, parse_imex
from agent.requirement import LEGACY
from agent.tokens import DEVICES, Named, is_ours, items, parse_names, split_name

if TYPE_CHECKING:  # policy needs Capability from the module that needs this one
    from agent.policy import Policy

MOUNTS = "/var/run/nvidia-container-devices"
"""Below it lie the mounts of /dev/null whose paths name devices."""
REQUIRE_CUDA = "NVIDIA_REQUIRE_CUDA"
ANNOTATION_LIMIT = 4096
"""Characters of one annotation's value."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A container, as far as it matters for what it may have.

    `containerd_namespace` is None where the caller does not know it, `pod_namespace` where the
    container belongs to no Kubernetes pod.
    """

    privileged: bool
    containerd_namespace: str | None = None
    pod_namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The request's devices and channels, and who named the devices.

    `devices` None: no GPU container, and `why` says so. `env_counts` is whether the environment
    may ask for features.
    """

    source: str
    devices: tuple[str, ...] | None
    why: str = ""
    channels: tuple[int, ...] = ()
    env_counts: bool = False


def is_legacy(env: Mapping[str, str]) -> bool:
    """Whether the image is from before the requirement variables, and expects everything."""
    return bool(env.get(LEGACY)) and not env.get(REQUIRE_CUDA)


def find(document: oci.Document, env: Mapping[str, str], policy: Policy, asker: Asker) -> Found:
    """What the spec asks for. Raises RequestError and RequestDenied."""
    if names := _annotated(document, policy):
        if env.get(DEVICES, "").strip().lower() == "void":
            # Whoever serves CDI names leaves this word for those that come after.
            why = f"{DEVICES} is void: the annotations are served already"
            return Found("annotations", None, why)
        return _trusted("annotations", names, env, policy, asker)
    if names := _mounted(document, policy):
        return _trusted("mounts", names, env, policy, asker)
    return _from_environment(env, policy, asker)


def _trusted(
    source: str, names: list[str], env: Mapping[str, str], policy: Policy, asker: Asker
) -> Found:
    """The orchestrator's word; one that names channels alone leaves the GPUs to the environment."""
    named = parse_names(names, source)
    if named == Named(None):
        return Found(source, None, f"{source} contain void")
    if named.devices is None:
        other = _from_environment(env, policy, asker)
        if other.devices is not None:
            return Found(other.source, other.devices, "", named.channels, other.env_counts)
    counts = features_asked(env) and policy.objection_to_env(asker) is None
    channels = named.channels or (_channels(env, policy) if counts else ())
    return Found(source, named.devices or (), "", channels, counts)


def _from_environment(env: Mapping[str, str], policy: Policy, asker: Asker) -> Found:
    set_names = [name for name in policy.swarm_resources if name in env]
    names = set_names or [name for name in (DEVICES,) if name in env]
    legacy = not names and is_legacy(env)
    if not names and not legacy:
        return Found(DEVICES, None, f"{' or '.join((DEVICES, *policy.swarm_resources))} is not set")
    source = LEGACY if legacy else ", ".join(names)
    if (objection := policy.objection_to_env(asker)) is not None:
        return Found(source, None, f"{source} is ignored: {objection}")
    values = ["all"] if legacy else [env[name] for name in names]
    named = parse_names(items(",".join(values), source), source)
    if named.devices is None:
        return Found(source, None, f"{source} is empty or contains void")
    channels = named.channels or _channels(env, policy)
    return Found(source, named.devices, "", channels, env_counts=True)


def _channels(env: Mapping[str, str], policy: Policy) -> tuple[int, ...]:
    return () if policy.ignore_imex_channels else parse_imex(env)


def _annotated(document: oci.Document, policy: Policy) -> list[str]:
    """CDI names in the annotations that policy allows; other vendors' names are not ours."""
    if not policy.annotation_prefixes:
        return []
    names = []
    for key, value in sorted(oci.annotation_map(document).items()):
        if key == OPT_OUT or not policy.allows_annotation(key):
            continue
        for name in items(value, key, ANNOTATION_LIMIT):
            kind, _ = split_name(name)
            if kind is None:
                raise RequestError(key, name, "names such as nvidia.com/gpu=0")
            if is_ours(kind):
                names.append(name)
    return names


def _mounted(document: oci.Document, policy: Policy) -> list[str]:
    """What the mounts below MOUNTS name."""
    if not policy.accept_volume_mounts:
        return []
    names: list[str] = []
    for source, destination in oci.mounts(document):
        parts = [part for part in destination.split("/") if part not in ("", ".")]
        if source == "/dev/null" and "/" + "/".join(parts[:3]) == MOUNTS and parts[3:]:
            names += _name_of_mount(parts[3:], destination)
    return names


def _name_of_mount(parts: list[str], destination: str) -> list[str]:
    """The name that a mount's path below MOUNTS stands for; none for another vendor's device."""
    match parts:
        case ["imex", channel]:
            return [f"nvidia.com/imex-channel={channel}"]
        case ["cdi", vendor, device_class, device]:
            name = f"{vendor}/{device_class}={device}"
        case ["cdi", vendor, rest] if "=" in rest:
            name = f"{vendor}/{rest}"
        case ["cdi" | "imex", *_]:
            expected = "<id>, cdi/<vendor>/<class>/<device> or imex/<channel>"
            raise RequestError("mounts", destination, f"{MOUNTS}/ and then {expected}")
        case _:
            return ["/".join(parts)]
    kind, _ = split_name(name)
    return [name] if kind is None or is_ours(kind) else []
