"""`agentctl list` and `info` against what the tool they stand in for printed on the same host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrib.simhost import tree
from tests.containers.workdir import work_dir

HOSTS = Path(__file__).parent / "hosts"
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="device nodes need root"),
]

# `nvidia-container-cli list` on the recorded host; its /dev/nvidia-modeset does not exist there.
LEGACY_H200 = """\
/dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia0
/usr/local/nvidia/bin/nvidia-smi /usr/local/nvidia/bin/nvidia-debugdump
/usr/local/nvidia/bin/nvidia-persistenced /usr/local/nvidia/bin/nvidia-cuda-mps-control
/usr/local/nvidia/bin/nvidia-cuda-mps-server
""".split()
LEGACY_LIBRARIES = """\
libnvidia-ml libnvidia-cfg libcuda libcudadebugger libnvidia-opencl libnvidia-gpucomp
libnvidia-ptxjitcompiler libnvidia-allocator libnvidia-pkcs11-openssl3 libnvidia-nvvm
libvdpau_nvidia libnvidia-encode libnvidia-opticalflow libnvcuvid libnvidia-eglcore
libnvidia-glcore libnvidia-tls libnvidia-glsi libnvidia-fbc libnvidia-rtcore libnvoptix
libGLX_nvidia libEGL_nvidia libGLESv2_nvidia libGLESv1_CM_nvidia libnvidia-glvkspirv
""".split()
INFO = """\
NVRM version:   580.159.04
CUDA version:   13.0

Device Index:   0
Device Minor:   0
Model:          NVIDIA H200
Brand:          Nvidia
GPU UUID:       GPU-a1b2c3d4-0000-4000-8000-00000000000a
Bus Location:   00000000:00:06.0
Architecture:   9.0
"""
CSV = """\
NVRM version,CUDA version
580.159.04,13.0
Device Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture
0,0,NVIDIA H200,Nvidia,GPU-a1b2c3d4-0000-4000-8000-00000000000a,00000000:00:06.0,9.0
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Path]:
    """A directory with the H200 host below `host` and the agent's config."""
    with work_dir() as work:
        made = tree.build(HOSTS / "h200-580", work / "host", real_numbers=True)
        (work / "config.toml").write_text(made.config())
        yield work
        tree.remove(made.root)


def agentctl(node: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run agentctl with that host's config."""
    program = Path(sys.executable).with_name("agentctl")
    command = [str(program), arguments[0], "--config", str(node / "config.toml"), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def paths(node: Path, *arguments: str) -> list[str]:
    """The paths that `agentctl list` prints, as the host itself would name them."""
    done = agentctl(node, "list", *arguments)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix(str(node / "host")) for line in done.stdout.splitlines()]


def test_list_has_all_that_the_legacy_tool_lists(node: Path) -> None:
    """Devices, then programs, then libraries; ours has the firmware besides, as it is injected."""
    seen = paths(node)
    libraries = [f"/usr/local/nvidia/lib64/{stem}.so.580.159.04" for stem in LEGACY_LIBRARIES]
    firmware = [path for path in seen if "/firmware/" in path]
    assert len(firmware) == 2
    assert sorted(seen) == sorted([*LEGACY_H200, *libraries, *firmware])
    kinds = [path.split("/")[-2] for path in seen]
    assert kinds == sorted(kinds, key=["dev", "bin", "lib64", "580.159.04"].index)


def test_list_prints_the_classes_that_are_asked_for(node: Path) -> None:
    """Each option stands for its class alone, and a device list narrows the devices."""
    assert {Path(p).parent.name for p in paths(node, "--binaries")} == {"bin"}
    assert {Path(p).parent.name for p in paths(node, "-l")} == {"lib64"}
    assert paths(node, "--ipcs") == []
    assert "/dev/nvidia0" not in paths(node, "--device", "none")


def test_list_refuses_an_unknown_device_in_one_line(node: Path) -> None:
    """The error names what was asked and what exists, with the exit code of a refusal."""
    done = agentctl(node, "list", "--device", "7")
    assert done.returncode == 3
    assert done.stderr.startswith("agentctl: no such GPU: 7: this host has 0 (GPU-a1b2c3d4")
    assert done.stderr.count("\n") == 1


def test_info_is_what_scripts_parse(node: Path) -> None:
    """Keys, column and order of the legacy output, in both of its forms."""
    assert agentctl(node, "info").stdout == INFO
    assert agentctl(node, "info", "--csv").stdout == CSV
