"""The driver's character device nodes under `/dev`.

Told by name and type, by `lstat`: a link, directory or plain file that carries a node's name is
no node. It makes no node and opens none. The numbers are those on the node; whether they are the
loaded module's is the inventory's to judge.
"""

from __future__ import annotations

import os
import re
import stat

from agent.facts.root import list_names
from agent.facts.values import NodeFact

# Directory below /dev -> names of nodes in it.
_PLACES = {
    "": re.compile(r"nvidia.*|gdrdrv"),
    "nvidia-caps": re.compile(r"nvidia-cap\d+"),
    "nvidia-caps-imex-channels": re.compile(r"channel\d+"),
    "dri": re.compile(r"(?:card|renderD)\d+"),
    "infiniband": re.compile(r"uverbs\d+|rdma_cm"),
}


def read_nodes(dev_root: str) -> tuple[NodeFact, ...]:
    """Every NVIDIA, DRI and RDMA node below `<dev_root>/dev`, sorted by container path."""
    root = os.path.realpath(dev_root)
    found = []
    for place, names in _PLACES.items():
        target_dir = os.path.join("/dev", place).rstrip("/")
        for name in list_names(root.rstrip("/") + target_dir):
            if names.fullmatch(name):
                node = _read_node(root, f"{target_dir}/{name}")
                if node is not None:
                    found.append(node)
    return tuple(sorted(found, key=lambda n: n.target))


def _read_node(root: str, target: str) -> NodeFact | None:
    source = root.rstrip("/") + target
    try:
        found = os.lstat(source)
    except OSError:
        return None
    if not stat.S_ISCHR(found.st_mode):
        return None
    return NodeFact(
        target=target,
        source=source,
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
    )
