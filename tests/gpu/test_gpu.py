"""On a machine with an NVIDIA GPU: its own driver, in a container whose image has none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrib.localnode import LocalNode, has_driver
from tests.containerd.daemon import why_not
from tests.containers.image import build_image, missing_tools
from tests.containers.workdir import work_dir

MISSING = why_not() or missing_tools() or ("" if has_driver() else "no NVIDIA driver is loaded")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.root,
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "all there"),
    pytest.mark.timeout(180),
]

SOURCE = Path(__file__).with_name("cuda_probe.c")


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    """A node on the machine's own driver; its image has the CUDA probe."""
    with work_dir() as work:
        image = build_image(work / "image")
        program = image / "usr/bin/cuda-probe"
        subprocess.run(["gcc", "-O1", "-o", program, SOURCE, "-ldl"], check=True, timeout=60)
        with LocalNode(None, image=image) as made:
            yield made


def test_inventory_is_ready(node: LocalNode) -> None:
    """The driver is ready, and every GPU has a name, an index and a health."""
    status = node.answer("status")
    assert status["driver"]["state"] == "ready", status["driver"]
    assert status["driver"]["kernel_version"] == status["driver"]["user_version"]
    assert [g["health"] for g in status["gpus"]] == ["ok"] * len(status["gpus"])
    assert all(g["name"] for g in status["gpus"])


def test_nvidia_smi_lists_the_gpu(node: LocalNode) -> None:
    """The driver's own program runs in the container and sees the one GPU that was asked for."""
    gpu = node.answer("status")["gpus"][0]
    with node.container("smi", ["NVIDIA_VISIBLE_DEVICES=0"]) as container:
        said = container.sh("nvidia-smi -L")
    assert said.strip().startswith(f"GPU 0: {gpu['name']} (UUID: {gpu['uuid']})")


def test_cuda_computes(node: LocalNode) -> None:
    """Initialise, allocate, copy, compile and run a kernel, read back: all in the container."""
    name = node.answer("status")["gpus"][0]["name"]
    with node.container("cuda", ["NVIDIA_VISIBLE_DEVICES=0"]) as container:
        said = container.sh("cuda-probe || true")
        replay = node.answer("explain", "cuda")["replay"]
    assert said.strip() == f"cuda ok: {name}, 1 device(s)"
    assert (replay["path"], replay["ok"]) == ("staged", True)


def test_container_without_request_has_no_driver(node: LocalNode) -> None:
    """The same image, no variable: nothing of the driver is there, and libcuda is not found."""
    with node.container("none") as container:
        said = container.sh("ls /dev | grep nvidia || echo no node; cuda-probe || true")
    assert said.startswith("no node\ncuda: libcuda.so.1")
