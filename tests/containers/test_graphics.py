"""Graphics in a real container: what an image's loaders for Vulkan, EGL, GBM and X look for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from agent.content import PROFILE
from tests.containers.image import missing_tools, session_image
from tests.containers.runc import Container
from tests.containers.spec import make_spec
from tests.containers.staging import SimulatedNode, simulated_node
from tests.containers.workdir import overlay_root, work_dir

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="nodes and containers need root"),
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "all there"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def node() -> Iterator[SimulatedNode]:
    """A node with three GPUs that draw, its first card being no GPU of the driver's."""
    with work_dir() as work, simulated_node(work, "l40s-lost") as made:
        yield made


def run(node: SimulatedNode, script: str, capabilities: str) -> list[str]:
    """The lines that a shell script says in a container with the third GPU."""
    env = ["NVIDIA_VISIBLE_DEVICES=2", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
    with work_dir() as work, overlay_root(session_image(), work / "layer") as root:
        spec = make_spec(root, ["sh", "-c", script], env=env, hooks=node.hooks())
        with Container(work, spec) as container:
            node.stage_spec((container.bundle / "config.json").read_bytes())
            outcome = container.run()
    assert outcome.status == 0, outcome
    return outcome.stdout.split()


def test_drm_nodes_and_their_links(node: SimulatedNode) -> None:
    """The container has the DRM nodes of its own GPU only, and links by PCI address to them."""
    script = "ls /dev/dri; for l in /dev/dri/by-path/*; do readlink $l; readlink -f $l; done"
    assert run(node, script, "graphics") == [
        *("by-path", "card3", "renderD130"),
        *("../card3", "/dev/dri/card3", "../renderD130", "/dev/dri/renderD130"),
    ]


def test_manifests_and_modules_can_be_read(node: SimulatedNode) -> None:
    """Every manifest and module lies at its place with content, and the links lead to files."""
    libs = "/usr/lib/x86_64-linux-gnu"
    extensions = "/usr/lib64/xorg/modules/extensions"
    files = (
        *("/etc/vulkan/icd.d/nvidia_icd.x86_64.json", "/usr/share/nvidia/nvoptix.bin"),
        *("/etc/vulkan/implicit_layer.d/nvidia_layers.json",),
        *("/usr/share/glvnd/egl_vendor.d/10_nvidia.json",),
        *("/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",),
        *("/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",),
        *("/usr/lib64/xorg/modules/drivers/nvidia_drv.so", PROFILE),
        f"{extensions}/libglxserver_nvidia.so",
        *(f"{libs}/{n}" for n in ("gbm/nvidia-drm_gbm.so", "libGLX_indirect.so.0")),
        f"{libs}/libnvidia-vulkan-producer.so",
    )
    script = f"for f in {' '.join(files)}; do test -s $f || echo $f; done"
    assert run(node, script, "display") == []


def test_nothing_to_draw_with_compute(node: SimulatedNode) -> None:
    """Without graphics there are no DRM nodes and no manifests but OpenCL's."""
    script = "ls -d /dev/dri /etc/vulkan /usr/share/nvidia /etc/OpenCL/vendors/* 2>/dev/null; true"
    assert run(node, script, "compute,utility") == ["/etc/OpenCL/vendors/nvidia.icd"]
