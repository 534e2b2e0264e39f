"""Names of GPUs, MIG devices and IMEX channels as containers write them, in one spelling each.

Pure: whether such a device exists is the planner's to say. A name is never a path and never
becomes one, and one of no known form is an error, not ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agent.errors import RequestError

DEVICES = "NVIDIA_VISIBLE_DEVICES"

DEVICES_LIMIT = 1024
"""Different device tokens of one request; no host has as many GPUs and MIG devices."""
LIST_LIMIT = 64 * 1024
"""Characters of one list; a thousand UUIDs have fewer."""
CHANNELS_LIMIT = 1024
"""Different IMEX channels of one request."""
CHANNEL_LIMIT = 1 << 20
"""IMEX channels are numbered below this (the minor numbers of one major)."""

VENDOR = "nvidia.com"
GPU_KINDS = ("nvidia.com/gpu", "runtime.nvidia.com/gpu")
CHANNEL_KINDS = ("nvidia.com/imex-channel", "runtime.nvidia.com/imex-channel")

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_INDEX = re.compile(r"[0-9]{1,5}", re.ASCII)
_GPU_AND_MIG = re.compile(r"([0-9]{1,5}):([0-9]{1,5})", re.ASCII)
_GPU_UUID = re.compile(rf"gpu-({_UUID})", re.ASCII)
_MIG_UUID = re.compile(rf"mig-({_UUID})", re.ASCII)
_MIG_OLD = re.compile(rf"mig-gpu-({_UUID})/([0-9]{{1,5}})/([0-9]{{1,5}})", re.ASCII)
_BUS_ID = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)
_QUALIFIED = re.compile(r"([A-Za-z0-9.-]+/[A-Za-z0-9._-]+)=(.+)", re.ASCII | re.DOTALL)
# How CDI generators call devices that they name by type and index.
_TYPE_INDEX = re.compile(r"(?:gpu|mig)([0-9]{1,5}(?::[0-9]{1,5})?)", re.ASCII)
_CHANNEL = re.compile(r"[0-9]{1,7}", re.ASCII)

_TOKEN_FORMS = (
    "all, none, void, or a comma list of index, GPU-<uuid>, PCI bus id, "
    "MIG-<uuid>, MIG-GPU-<uuid>/<gi>/<ci>, <gpu>:<mig>, nvidia.com/gpu=<name>"
)


@dataclass(frozen=True, slots=True)
class Named:
    """What a list of names asks for: `devices` None is no request, () driver files only."""

    devices: tuple[str, ...] | None
    channels: tuple[int, ...] = ()


def items(text: str, where: str, limit: int = LIST_LIMIT) -> list[str]:
    """The parts of a comma list without spaces and empty ones; RequestError if it is too long."""
    if len(text) > limit:
        raise RequestError(where, f"{len(text)} characters", f"at most {limit}")
    return [item for part in text.split(",") if (item := part.strip())]


def parse_devices(value: str, where: str = DEVICES) -> tuple[str, ...] | None:
    """NVIDIA_VISIBLE_DEVICES as tokens in one spelling; None: no request, (): no GPU.

    Raises RequestError for a token of no known form; whether the GPU exists is not known here.
    """
    return parse_names(items(value, where), where).devices


def parse_names(names: Iterable[str], where: str) -> Named:
    """Plain and CDI names. `void` anywhere is no request; of `all` and `none` the first counts."""
    names = list(names)
    if "void" in (name.lower() for name in names):
        return Named(None)
    devices: dict[str, None] = {}
    channels: list[str] = []
    whole: tuple[str, ...] | None = None
    for name in names:
        kind, plain = split_name(name)
        if kind in CHANNEL_KINDS:
            channels.append(plain)
        elif kind is not None and kind not in GPU_KINDS:
            raise RequestError(where, name, f"a name of {' or '.join(GPU_KINDS)}")
        elif whole is None and plain.lower() in ("all", "none"):
            whole = ("all",) if plain.lower() == "all" else ()
        elif whole is None:
            devices[_normal(plain, name, where, qualified=kind is not None)] = None
    if len(devices) > DEVICES_LIMIT:
        raise RequestError(where, f"{len(devices)} devices", f"at most {DEVICES_LIMIT}")
    found = whole if whole is not None else tuple(devices) or None
    return Named(found, parse_channels(channels, where))


def split_name(name: str) -> tuple[str | None, str]:
    """The kind (`nvidia.com/gpu`) of a fully qualified CDI name and its rest; or no kind."""
    match = _QUALIFIED.fullmatch(name)
    return (match[1], match[2]) if match else (None, name)


def is_ours(kind: str) -> bool:
    """Whether a CDI kind is NVIDIA's own, and not another vendor's or a DRA driver's claim."""
    return kind.partition("/")[0] in (VENDOR, f"runtime.{VENDOR}")


def parse_channels(names: Iterable[str], where: str) -> tuple[int, ...]:
    """IMEX channels by number, sorted, each once. Raises RequestError."""
    found = set()
    for name in names:
        if not _CHANNEL.fullmatch(name) or int(name) >= CHANNEL_LIMIT:
            raise RequestError(where, name, f"IMEX channels from 0 to {CHANNEL_LIMIT - 1}")
        found.add(int(name))
    if len(found) > CHANNELS_LIMIT:
        raise RequestError(where, f"{len(found)} channels", f"at most {CHANNELS_LIMIT}")
    return tuple(sorted(found))


def normal_token(token: str, where: str = DEVICES) -> str:
    """One device token in its one spelling (lower-case hex, no leading zeros).

    Raises RequestError for a token of no known form.
    """
    return _normal(token, token, where, qualified=False)


def normal_bus_id(text: str) -> str:
    """A PCI address with a domain of four or more digits (`0000:3b:00.0`); else unchanged."""
    if m := _BUS_ID.fullmatch(text.lower()):
        return f"{int(m[1], 16):04x}:{m[2]}:{m[3]}.{m[4]}"
    return text


def is_mig(token: str) -> bool:
    """Whether a token in its one spelling names a MIG device."""
    return token.startswith("MIG-") or _GPU_AND_MIG.fullmatch(token) is not None


def _normal(token: str, written: str, where: str, *, qualified: bool) -> str:
    low = token.lower()
    if qualified and (m := _TYPE_INDEX.fullmatch(low)):
        low = m[1]
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
    raise RequestError(where, written, _TOKEN_FORMS)
