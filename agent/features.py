"""What a container may ask for besides GPUs, and what it may do without.

Features bring nodes of other drivers (GPUDirect Storage, RDMA, GDRCopy, NVSwitch), IMEX
channels, or the right to reconfigure or monitor MIG; each has a variable of its own. Opt-outs
take something of the usual away. Pure; it never asks for a GPU.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

from agent.errors import RequestDenied, RequestError
from agent.tokens import is_mig, items, parse_channels

IMEX = "NVIDIA_IMEX_CHANNELS"
OPT_OUT = "gpu-agent/opt-out"
"""The annotation by which a container does without something, if policy lets it."""
OPT_OUT_LIMIT = 256


class Feature(enum.StrEnum):
    """What a request can have besides GPUs."""

    GDS = "gds"
    MOFED = "mofed"
    GDRCOPY = "gdrcopy"
    NVSWITCH = "nvswitch"
    MIG_CONFIG = "mig-config"
    MIG_MONITOR = "mig-monitor"


class OptOut(enum.StrEnum):
    """What a container can do without.

    The application profile that goes with graphics, the image's own CUDA compat libraries before
    the driver's, the GSP firmware files, the cover over /proc/driver/nvidia, the sockets of the
    driver's daemons.
    """

    APPLICATION_PROFILE = "application_profile"
    CUDA_COMPAT = "cuda_compat"
    FIRMWARE = "firmware"
    PROC_MASK = "proc_mask"
    SOCKETS = "sockets"


VARIABLES: Mapping[Feature, str] = {
    Feature.GDS: "NVIDIA_GDS",
    Feature.MOFED: "NVIDIA_MOFED",
    Feature.GDRCOPY: "NVIDIA_GDRCOPY",
    Feature.NVSWITCH: "NVIDIA_NVSWITCH",
    Feature.MIG_CONFIG: "NVIDIA_MIG_CONFIG_DEVICES",
    Feature.MIG_MONITOR: "NVIDIA_MIG_MONITOR_DEVICES",
}
FOR_MIG = (Feature.MIG_CONFIG, Feature.MIG_MONITOR)


def features_asked(env: Mapping[str, str]) -> bool:
    """Whether any variable of a feature has a value."""
    return any(env.get(name, "").strip() for name in (*VARIABLES.values(), IMEX))


def parse_features(
    env: Mapping[str, str], devices: Sequence[str], *, privileged: bool
) -> tuple[Feature, ...]:
    """The features that the environment asks for, sorted.

    Raises RequestError for another value than the one there is, RequestDenied where MIG is to be
    managed by a container that is not privileged or has MIG devices of its own.
    """
    found = []
    for feature, variable in VARIABLES.items():
        value = env.get(variable, "").strip()
        word = "all" if feature in FOR_MIG else "enabled"
        if value in ("", "disabled"):
            continue
        if value != word:
            raise RequestError(variable, value, f"{word}, or nothing")
        if feature in FOR_MIG:
            _may_manage_mig(f"{variable}={value}", devices, privileged=privileged)
        found.append(feature)
    return tuple(sorted(found))


def parse_imex(env: Mapping[str, str]) -> tuple[int, ...]:
    """NVIDIA_IMEX_CHANNELS as numbers; `all` alone means none, as the usual tools have it.

    Raises RequestError.
    """
    names = items(env.get(IMEX, ""), IMEX)
    return () if names == ["all"] else parse_channels(names, IMEX)


def parse_opt_out(value: str) -> tuple[OptOut, ...]:
    """The opt-outs in an annotation's value, sorted. Raises RequestError."""
    return opt_outs(items(value, OPT_OUT, OPT_OUT_LIMIT))


def opt_outs(names: Iterable[str]) -> tuple[OptOut, ...]:
    """Opt-outs by name, sorted, each once. Raises RequestError."""
    known = {str(o): o for o in OptOut}
    found = set()
    for name in names:
        if name not in known:
            raise RequestError(OPT_OUT, name, f"a list of {', '.join(known)}")
        found.add(known[name])
    return tuple(sorted(found))


def _may_manage_mig(what: str, devices: Sequence[str], *, privileged: bool) -> None:
    if not privileged:
        raise RequestDenied(what, "the container is not privileged")
    if mine := [token for token in devices if is_mig(token)]:
        # Whoever changes the instances of a GPU needs the whole of it.
        raise RequestDenied(what, f"it asks for whole GPUs, not for {mine[0]}")
