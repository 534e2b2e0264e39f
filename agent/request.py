"""What one container asks for, read from its OCI spec. Or: it asks for no GPU.

Pure: spec bytes and policy in, values out. The environment holds the image's value and then the
orchestrator's, so the last one wins. Nothing here looks at the host or grants a device by name
of a path; the planner matches the tokens with the inventory.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent import spec as oci
from agent.errors import RequestError, one_line

if TYPE_CHECKING:  # policy needs Capability from here
    from agent.policy import Policy

DEVICES_LIMIT = 1024
"""Different device tokens of one request; no host has as many GPUs and MIG devices."""

DEVICES = "NVIDIA_VISIBLE_DEVICES"
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
LEGACY = "CUDA_VERSION"
REQUIRE_CUDA = "NVIDIA_REQUIRE_CUDA"


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

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_INDEX = re.compile(r"[0-9]{1,5}", re.ASCII)
_GPU_AND_MIG = re.compile(r"([0-9]{1,5}):([0-9]{1,5})", re.ASCII)
_GPU_UUID = re.compile(rf"gpu-({_UUID})", re.ASCII)
_MIG_UUID = re.compile(rf"mig-({_UUID})", re.ASCII)
_MIG_OLD = re.compile(rf"mig-gpu-({_UUID})/([0-9]{{1,5}})/([0-9]{{1,5}})", re.ASCII)
_BUS_ID = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)

_TOKEN_FORMS = (
    "all, none, void, or a comma list of index, GPU-<uuid>, PCI bus id, "
    "MIG-<uuid>, MIG-GPU-<uuid>/<gi>/<ci>, <gpu>:<mig>"
)


@dataclass(frozen=True, slots=True)
class Request:
    """A GPU request. Containers with equal requests share one plan.

    `devices` are tokens in the order asked, without duplicates and in one spelling: `all`, an
    index, a UUID, a bus id, a MIG form; empty means driver files and control nodes only
    (`none`). `capabilities` are sorted. `source` says which input asked
    (`NVIDIA_VISIBLE_DEVICES`) and does not tell two requests apart.
    """

    devices: tuple[str, ...]
    capabilities: tuple[Capability, ...]
    source: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """One spec, read. `why` is a sentence for `agentctl explain`.

    `root` is root.path as written in the spec; `owner` is the host (uid, gid) of the
    container's root user, (0, 0) without a user namespace; `namespace` details come from the
    containerd record, not from here.
    """

    root: str
    owner: tuple[int, int]
    request: Request | None
    why: str


def read_spec(spec: bytes, policy: Policy) -> Reading:
    """Read one OCI runtime spec (JSON).

    Raises RequestError for what cannot be understood and RequestDenied for what the policy
    does not let this container have.
    """
    document = oci.parse(spec)
    env = oci.environment(document)
    request, why = _request(env, policy, privileged=oci.privileged(document))
    root = oci.root(document, required=request is not None)
    owner = oci.owner(document, required=request is not None)
    return Reading(root, owner, request, one_line(why))


def ask(devices: str, capabilities: str | None, policy: Policy, source: str) -> Request | None:
    """The request that values of the two variables make; None when they ask for no GPU.

    `capabilities` None means unset. Raises RequestError and RequestDenied like `read_spec`.
    """
    tokens = parse_devices(devices)
    if tokens is None:
        return None
    return Request(tokens, parse_capabilities(capabilities, policy), source)


def parse_devices(value: str) -> tuple[str, ...] | None:
    """NVIDIA_VISIBLE_DEVICES as tokens in one spelling; None: no request, (): no GPU.

    Raises RequestError for a token of no known form; whether the GPU exists is not known here.
    """
    items = _items(value)
    plain = [item.lower() for item in items]
    if not items or "void" in plain:
        return None
    for word in plain:
        if word in ("all", "none"):
            return ("all",) if word == "all" else ()
    tokens = tuple(dict.fromkeys(normal_token(item) for item in items))
    if len(tokens) > DEVICES_LIMIT:
        raise RequestError(DEVICES, f"{len(tokens)} devices", f"at most {DEVICES_LIMIT}")
    return tokens


def normal_token(token: str) -> str:
    """One device token in its one spelling (lower-case hex, no leading zeros).

    Raises RequestError for a token of no known form.
    """
    low = token.lower()
    if _INDEX.fullmatch(low):
        return str(int(low))
    if m := _GPU_AND_MIG.fullmatch(low):
        return f"{int(m[1])}:{int(m[2])}"
    if m := _GPU_UUID.fullmatch(low):
        return f"GPU-{m[1]}"
    if m := _MIG_UUID.fullmatch(low):
        return f"MIG-{m[1]}"
    if m := _MIG_OLD.fullmatch(low):
        return f"MIG-GPU-{m[1]}/{int(m[2])}/{int(m[3])}"
    if _BUS_ID.fullmatch(low):
        return normal_bus_id(low)
    raise RequestError(DEVICES, token, _TOKEN_FORMS)


def normal_bus_id(text: str) -> str:
    """A PCI address with a domain of four or more digits (`0000:3b:00.0`); else unchanged."""
    if m := _BUS_ID.fullmatch(text.lower()):
        return f"{int(m[1], 16):04x}:{m[2]}:{m[3]}.{m[4]}"
    return text


def parse_capabilities(value: str | None, policy: Policy) -> tuple[Capability, ...]:
    """NVIDIA_DRIVER_CAPABILITIES, sorted; None or empty gives the default within the bound.

    Raises RequestError for a word that is no capability, RequestDenied for one above the bound.
    """
    words = _items(value or "")
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


def _request(
    env: Mapping[str, str], policy: Policy, *, privileged: bool
) -> tuple[Request | None, str]:
    legacy = bool(env.get(LEGACY)) and not env.get(REQUIRE_CUDA)
    value = env.get(DEVICES)
    if value is None and not legacy:
        return None, f"not a GPU container: {DEVICES} is not set"
    source = LEGACY if value is None else DEVICES
    if (objection := policy.objection_to_env(privileged=privileged)) is not None:
        return None, f"not a GPU container: {source} is ignored: {objection}"
    # Images from before the requirement variables expect everything unless they say otherwise.
    capabilities = env.get(CAPABILITIES, "all" if legacy else None)
    request = ask("all" if value is None else value, capabilities, policy, source)
    if request is None:
        return None, f"not a GPU container: {DEVICES} is empty or contains void"
    return request, _sentence(request)


def _sentence(request: Request) -> str:
    what = ", ".join(request.devices) or "driver files without a GPU"
    how = ", ".join(request.capabilities) or "none"
    if request.source == LEGACY:
        return (
            f"legacy image: {LEGACY} is set, {REQUIRE_CUDA} and {DEVICES} are not: "
            f"{what}; capabilities: {how}"
        )
    return f"{request.source} asks for {what}; capabilities: {how}"


def _items(value: str) -> list[str]:
    return [item for part in value.split(",") if (item := part.strip())]
