"""Which device nodes of this host a request's features and IMEX channels bring.

Pure. A feature whose node is missing is refused: the container would start and then not work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent.errors import MissingNode
from agent.facts.values import NodeFact
from agent.features import FOR_MIG, IMEX, VARIABLES, Feature
from agent.inventory import Inventory
from agent.request import Request

CHANNELS = "/dev/nvidia-caps-imex-channels/channel"
_CAPS = "/dev/nvidia-caps/nvidia-cap"

# Feature -> the nodes that it must have, in words and as a pattern of container paths.
_NODES = {
    Feature.GDS: ("/dev/nvidia-fs*", re.compile(r"/dev/nvidia-fs\d*")),
    Feature.MOFED: (
        "/dev/infiniband/uverbs*",
        re.compile(r"/dev/infiniband/(?:uverbs\d+|rdma_cm)"),
    ),
    Feature.GDRCOPY: ("/dev/gdrdrv", re.compile(r"/dev/gdrdrv")),
    Feature.NVSWITCH: ("/dev/nvidia-nvswitch*", re.compile(r"/dev/nvidia-nvswitch(?:ctl|\d+)")),
}
# Feature -> the capability's name in procfs, and its minor in every driver seen, for messages
# about a host whose driver shows none.
_MANAGEMENT = {Feature.MIG_CONFIG: ("config", 1), Feature.MIG_MONITOR: ("monitor", 2)}


def nodes_of_features(inventory: Inventory, request: Request) -> Iterator[NodeFact]:
    """The nodes besides those of GPUs and capabilities. Raises MissingNode."""
    for feature in request.features:
        words, form = _form(inventory, feature)
        found = [node for node in inventory.feature_nodes if form.fullmatch(node.target)]
        if not found:
            value = "all" if feature in FOR_MIG else "enabled"
            raise MissingNode(f"{VARIABLES[feature]}={value}", words)
        yield from found
    by_target = {node.target: node for node in inventory.feature_nodes}
    for number in request.channels:
        node = by_target.get(f"{CHANNELS}{number}")
        if node is None:
            raise MissingNode(f"IMEX channel {number} ({IMEX})", f"{CHANNELS}{number}")
        yield node


def _form(inventory: Inventory, feature: Feature) -> tuple[str, re.Pattern[str]]:
    """The feature's nodes in words and as a pattern; those of MIG management by their names."""
    if feature not in _MANAGEMENT:
        return _NODES[feature]
    name, usual = _MANAGEMENT[feature]
    cap = next((m.cap for m in inventory.mig_management if m.name == name), usual)
    return f"{_CAPS}{cap}", re.compile(rf"{_CAPS}{cap}")
