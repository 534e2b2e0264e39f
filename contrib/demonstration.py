"""The main job, shown: a container gets its GPU from a plan that was staged before its hook ran.

`contrib/demo` sets the machine up and runs this. It checks what it shows: the last line is
`demo: ok` only if the container without a request saw no GPU and the other one saw exactly its
own.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

from contrib.localnode import LocalNode, has_driver
from tests.containerd.daemon import why_not
from tests.containers.image import build_image
from tests.containers.workdir import work_dir

SIMULATED = "a100x8-minors"
GPU = 0
LOOK = "ls /dev | grep nvidia; nvidia-smi -L; probe-dlopen libcuda.so.1 libnvidia-ml.so.1"
PLAIN = (
    "ls /dev | grep nvidia || echo no GPU device; test -e /usr/bin/nvidia-smi || echo no nvidia-smi"
)


def main() -> int:
    """Run it; the exit status is 1 if something is not as it must be."""
    if reason := why_not():
        return _fail(reason)
    signal.signal(signal.SIGTERM, _interrupted)
    host = None if has_driver() else SIMULATED
    where = "this machine's driver" if host is None else f"a simulated host ({host})"
    with work_dir() as work:
        image = build_image(work / "image")
        with LocalNode(host, image=image) as node:
            _say(f"containerd, runc and agentd run in {node.home}, on {where}")
            return _show(node)


def _show(node: LocalNode) -> int:
    _say("a container that asks for nothing")
    with node.container("plain") as container:
        plain = container.sh(PLAIN)
    _quote(plain)
    _say(f"a container with NVIDIA_VISIBLE_DEVICES={GPU}")
    with node.container("gpu", [f"NVIDIA_VISIBLE_DEVICES={GPU}"]) as container:
        seen = container.sh(LOOK)
        told = node.answer("explain", "gpu")
        explained = node.agentctl("explain", "gpu")
        status = node.agentctl("status")
    _quote(seen)
    _say("why, and how long its hook took (agentctl explain gpu)")
    _quote(explained)
    _say("the plan, in words (agentctl plan)")
    steps = node.agentctl("plan", "--device", str(GPU)).splitlines()
    _quote("\n".join([*steps[:8], f"... {max(0, len(steps) - 8)} more lines"]))
    _say("agentctl status")
    _quote(status)
    problems = list(_problems(node, plain, seen, told["replay"]))
    for problem in problems:
        _fail(problem)
    if problems:
        return 1
    print("demo: ok")
    return 0


def _problems(node: LocalNode, plain: str, seen: str, replay: Any) -> list[str]:
    inventory = node.answer("inventory")
    gpu = next(g for g in inventory["gpus"] if g["index"] == GPU)
    minors = {f"nvidia{g['minor']}" for g in inventory["gpus"]} & set(seen.split())
    checks = {
        "the plain container saw something of the driver": "no GPU device" in plain
        and "no nvidia-smi" in plain,
        f"the GPU container saw {sorted(minors)} and not just its own node": minors
        == {f"nvidia{gpu['minor']}"},
        "the loader did not find libcuda": "libcuda.so.1 /" in seen,
        "the hook did not find its plan staged": replay["path"] == "staged" and replay["ok"],
    }
    return [problem for problem, fine in checks.items() if not fine]


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _quote(text: str) -> None:
    for line in text.rstrip().splitlines():
        print(f"   {line}")


def _fail(reason: str) -> int:
    print(f"demo: FAILED: {reason}", file=sys.stderr)
    return 1


def _interrupted(number: int, frame: FrameType | None) -> None:
    # As with Ctrl-C: the stack unwinds, so containers, mounts and processes go.
    del frame
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
