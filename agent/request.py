"""What one container asks for, read from its OCI spec. Or: it asks for no GPU.

Pure: spec bytes and policy in, values out. The environment holds the image's value and then the
orchestrator's, so the last one wins. Nothing here looks at the host or grants a device by name
of a path; the planner matches the tokens with the inventory. `agent.sources` says which part of
the spec counts, `agent.tokens` how devices are called.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from agent import sources
from agent import spec as oci
from agent.errors import RequestError, one_line
from agent.features import OPT_OUT, Feature, OptOut, parse_features, parse_opt_out
from agent.requirement import LEGACY, Requirement, read_requirements
from agent.sources import REQUIRE_CUDA, Asker, Found, is_legacy
from agent.tokens import DEVICES, items, normal_bus_id, parse_devices

if TYPE_CHECKING:  # policy needs Capability from here
    from agent.policy import Policy

__all__ = [
    "DEFAULT_CAPABILITIES",
    "Capability",
    "Reading",
    "Request",
    "ask",
    "implied",
    "normal_bus_id",
    "parse_capabilities",
    "parse_devices",
    "read_spec",
]

CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
POD_NAMESPACE = "io.kubernetes.cri.sandbox-namespace"
"""The annotation in which CRI, after all others, writes the pod's namespace."""


class Capability(enum.StrEnum):
    """A driver capability of NVIDIA_DRIVER_CAPABILITIES."""

    COMPUTE = "compute"
    UTILITY = "utility"
    VIDEO = "video"
    GRAPHICS = "graphics"
    DISPLAY = "display"
    NGX = "ngx"
    COMPAT32 = "compat32"


DEFAULT_CAPABILITIES = (Capability.COMPUTE, Capability.UTILITY)

_IMPLIED = {
    Capability.VIDEO: Capability.COMPUTE,
    Capability.DISPLAY: Capability.GRAPHICS,
}


@dataclass(frozen=True, slots=True)
class Request:
    """A GPU request. Containers with equal requests share one plan.

    `devices` are tokens in the order asked, without duplicates and in one spelling: `all`, an
    index, a UUID, a bus id, a MIG form; empty means driver files and control nodes only
    (`none`). `capabilities`, `features`, IMEX `channels` and `opt_out` are sorted. `source` says
    which input asked (`NVIDIA_VISIBLE_DEVICES`) and does not tell two requests apart.
    """

    devices: tuple[str, ...]
    capabilities: tuple[Capability, ...]
    source: str = field(compare=False)
    features: tuple[Feature, ...] = ()
    channels: tuple[int, ...] = ()
    opt_out: tuple[OptOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One spec, read. `why` is a sentence for `agentctl explain`.

    `root` is root.path as written in the spec; `owner` is the host (uid, gid) of the
    container's root user, (0, 0) without a user namespace; `requirements` are to be checked
    before a plan is handed out (`agent.planner.check`), and are no part of it. `volumes` are the
    host paths that the spec binds into a container that asks, `user` is its process's uid.
    """

    root: str
    owner: tuple[int, int]
    request: Request | None
    why: str
    requirements: tuple[Requirement, ...] = ()
    volumes: tuple[str, ...] = ()
    user: int = 0


def read_spec(spec: bytes, policy: Policy, namespace: str | None = None) -> Reading:
    """Read one OCI runtime spec (JSON) of a container in this containerd namespace.

    `namespace` None means that it is not known. Raises RequestError for what cannot be
    understood and RequestDenied for what the policy does not let this container have.
    """
    document = oci.parse(spec)
    env = oci.environment(document)
    asker = _asker(document, policy, namespace)
    found = sources.find(document, env, policy, asker)
    root = oci.root(document, required=found.devices is not None)
    owner = oci.owner(document, required=found.devices is not None)
    if found.devices is None:
        return Reading(root, owner, None, one_line(f"not a GPU container: {found.why}"))
    request = _request(found.devices, found, env, policy, privileged=asker.privileged)
    request = replace(request, opt_out=_opt_out(document, policy))
    checked = () if policy.disable_require else read_requirements(env, legacy=is_legacy(env))
    why = one_line(_sentence(request))
    return Reading(root, owner, request, why, checked, oci.volumes(document), oci.user(document))


def ask(devices: str, capabilities: str | None, policy: Policy, source: str) -> Request | None:
    """The request that values of the two variables make; None when they ask for no GPU.

    `capabilities` None means unset. Raises RequestError and RequestDenied like `read_spec`.
    """
    tokens = parse_devices(devices)
    if tokens is None:
        return None
    words = parse_capabilities(capabilities, policy)
    return Request(tokens, words, source, opt_out=policy.opt_out)


def parse_capabilities(value: str | None, policy: Policy) -> tuple[Capability, ...]:
    """NVIDIA_DRIVER_CAPABILITIES, sorted; None or empty gives the default within the bound.

    Raises RequestError for a word that is no capability, RequestDenied for one above the bound.
    """
    words = items(value or "", CAPABILITIES)
    if not words:
        return policy.bounded(DEFAULT_CAPABILITIES)
    known = {str(c): c for c in Capability}
    for word in words:
        if word != "all" and word not in known:
            raise RequestError(CAPABILITIES, word, f"all, or a list of {', '.join(known)}")
    if "all" in words:
        return policy.bounded(Capability)
    return policy.granted((known[word] for word in words), CAPABILITIES)


def implied(capabilities: Iterable[Capability]) -> tuple[Capability, ...]:
    """`capabilities` and those whose libraries they need as well, sorted.

    Encoding and decoding go through the compute libraries, a display through the graphics ones.
    """
    asked = set(capabilities)
    return tuple(sorted(asked | {_IMPLIED[c] for c in asked if c in _IMPLIED}))


def _asker(document: oci.Document, policy: Policy, namespace: str | None) -> Asker:
    pod = oci.annotation_map(document).get(POD_NAMESPACE) if policy.env_pod_namespaces else None
    return Asker(oci.privileged(document), namespace, pod)


def _request(
    devices: tuple[str, ...],
    found: Found,
    env: Mapping[str, str],
    policy: Policy,
    *,
    privileged: bool,
) -> Request:
    # Images from before the requirement variables expect everything unless they say otherwise.
    words = env.get(CAPABILITIES, "all" if is_legacy(env) else None)
    return Request(
        devices,
        parse_capabilities(words, policy),
        found.source,
        parse_features(env, devices, privileged=privileged) if found.env_counts else (),
        () if policy.ignore_imex_channels else found.channels,
    )


def _opt_out(document: oci.Document, policy: Policy) -> tuple[OptOut, ...]:
    """The node's opt-outs, and the container's own where policy takes its annotation."""
    if not policy.allows_annotation(OPT_OUT):
        return policy.opt_out
    own = parse_opt_out(oci.annotation_map(document).get(OPT_OUT, ""))
    return tuple(sorted({*policy.opt_out, *own}))


def _sentence(request: Request) -> str:
    what = ", ".join(request.devices) or "driver files without a GPU"
    how = ", ".join(request.capabilities) or "none"
    lists = (
        ("features", request.features),
        ("IMEX channels", request.channels),
        ("without", request.opt_out),
    )
    more = "".join(f"; {name}: {', '.join(map(str, of))}" for name, of in lists if of)
    if request.source == LEGACY:
        return (
            f"legacy image: {LEGACY} is set, {REQUIRE_CUDA} and {DEVICES} are not: "
            f"{what}; capabilities: {how}{more}"
        )
    verb = "ask" if request.source in ("annotations", "mounts") else "asks"
    return f"{request.source} {verb} for {what}; capabilities: {how}{more}"
