"""On a machine with an NVIDIA GPU: its own driver, in a container whose image has none."""

from __future__ import annotations

import shutil
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

PROBES = ("cuda", "opencl", "vulkan")
ALL = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def build_probe(name: str, target: Path) -> Path:
    """Compile `<name>_probe.c`."""
    source = Path(__file__).with_name(f"{name}_probe.c")
    subprocess.run(["gcc", "-O1", "-o", target, source, "-ldl"], check=True, timeout=60)
    return target


def _install_front_ends(image: Path) -> None:
    """What a graphics image brings itself: Vulkan's loader, GLVND, what the driver links to."""
    libraries = Path("/", LIBRARIES)
    for stem in ("libvulkan", "libGLX", "libGL", "libGLdispatch", "libEGL", "libOpenGL"):
        for library in libraries.glob(f"{stem}.so.*"):
            shutil.copy(library, image / LIBRARIES / library.name, follow_symlinks=False)
    found = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True)
    vendor = [w for w in found.stdout.split() if "libGLX_nvidia.so.0" in w and w.startswith("/")]
    for path in vendor[:1]:
        linked = subprocess.run(["ldd", path], check=True, capture_output=True, text=True)
        for needed in (Path(w) for w in linked.stdout.split() if w.startswith("/")):
            if "nvidia" not in str(needed) and not (image / LIBRARIES / needed.name).exists():
                shutil.copy(needed, image / LIBRARIES / needed.name)
    subprocess.run(["ldconfig", "-r", str(image)], check=True, timeout=30)


def injected(node: LocalNode) -> set[str]:
    """The container paths of every file that all capabilities bring on this host."""
    plan = node.answer("plan", "--device", "all", "--capabilities", "all")
    return {words[3] for words in (step.split() for step in plan["steps"]) if words[0] == "bind"}


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    """A node on the machine's own driver; its image has the CUDA probe."""
    with work_dir() as work:
        image = build_image(work / "image")
        for name in PROBES:
            build_probe(name, image / "usr/bin" / f"{name}-probe")
        _install_front_ends(image)
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


def test_opencl_finds_the_gpu(node: LocalNode) -> None:
    """The driver's OpenCL names the GPU in the container."""
    name = node.answer("status")["gpus"][0]["name"]
    with node.container("opencl", ALL) as container:
        assert container.sh("opencl-probe || true").strip() == f"opencl ok: {name}"


def test_vulkan_finds_the_gpu(node: LocalNode) -> None:
    """Where the driver has a Vulkan driver file, Vulkan names the GPU in the container."""
    if not any(path.endswith("/nvidia_icd.json") for path in injected(node)):
        pytest.skip("this host's driver has no Vulkan driver file")
    with work_dir() as work:
        probe = build_probe("vulkan", work / "vulkan-probe")
        outside = subprocess.run([probe], capture_output=True, text=True, timeout=60, check=False)
    if outside.returncode:
        pytest.skip(f"on the host itself: {outside.stdout.strip()}")
    name = node.answer("status")["gpus"][0]["name"]
    with node.container("vulkan", ALL) as container:
        assert container.sh("vulkan-probe || true").strip() == f"vulkan ok: {name}"
