"""Every kind of image: a program finds the driver by SONAME through the image's own loader."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.containers.runc import Container
from tests.containers.workdir import overlay_root
from tests.kernel.skeletons import SKELETONS
from tests.kernel.starts import NEEDS_CONTAINERS, Starter
from tests.kernel.trees import contents, host_mounts

pytestmark = NEEDS_CONTAINERS

VERSION = "535.161.08"
SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
PLACES = {
    "debian": "/usr/lib/x86_64-linux-gnu",
    "distroless": "/usr/lib/x86_64-linux-gnu",
    "own_driver": "/usr/lib/x86_64-linux-gnu",
    "fedora": "/usr/lib64",
    "suse": "/usr/lib64",
    "arch": "/usr/lib64",
    "alpine": "/usr/lib",
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the skeletons are built, each once."""
    return tmp_path_factory.mktemp("skeletons")


def skeleton(images: Path, name: str) -> Path:
    """The image `name`, built on first use."""
    if name == "alpine" and shutil.which("musl-gcc") is None:
        pytest.skip("not installed: musl-tools")
    root = images / name
    return root if root.exists() else SKELETONS[name](root)


@pytest.mark.parametrize("name", PLACES)
def test_program_finds_the_driver(every: Starter, work: Path, images: Path, name: str) -> None:
    """The library that is loaded is the host's, in the directory of the image's distribution."""
    probes = [f"{soname}=simhost_version" for soname in SONAMES]
    with overlay_root(skeleton(images, name), work / "layer") as root:
        args = ["/usr/bin/probe-dlopen", *probes]
        with every.prepared(root, args=args) as container:
            outcome = container.run()
    found = [line.split() for line in outcome.stdout.splitlines()]
    assert [(line[0], line[2]) for line in found] == [(s, VERSION) for s in SONAMES], outcome
    # An image's loader may name the directory by another of its own links (Arch's /usr/lib).
    places = {PLACES[name], PLACES[name].removesuffix("64")}
    assert {str(Path(line[1]).parent) for line in found} <= places


def test_scratch_image_gets_its_devices(every: Starter, work: Path, images: Path) -> None:
    """An image with nothing at all: a static program opens its GPU."""
    with overlay_root(skeleton(images, "scratch"), work / "layer") as root:
        args = ["/probe", "/dev/nvidia2", "/dev/nvidiactl"]
        with every.prepared(root, args=args) as container:
            outcome = container.run()
    assert outcome.stdout.splitlines() == ["/dev/nvidia2 ok", "/dev/nvidiactl ok"]


def test_firmware_without_lib(every: Starter, work: Path, images: Path) -> None:
    """An image without /lib gets it, with each firmware file of the driver, read-only (B086)."""
    with overlay_root(skeleton(images, "scratch"), work / "layer") as root:
        assert not (root / "lib").exists()
        with every.prepared(root, args=["/probe"]) as container:
            container.create()
            mounts = Path(f"/proc/{container.pid}/mountinfo").read_text().splitlines()
            found = [line.split() for line in mounts if "/lib/firmware/" in line.split()[4]]
    host = every.node.host.root / "lib/firmware/nvidia" / VERSION
    assert sorted(Path(line[4]).name for line in found) == sorted(p.name for p in host.iterdir())
    assert all({"ro", "nosuid", "nodev"} <= set(line[5].split(",")) for line in found)


def mount_table(container: Container) -> list[list[str]]:
    """What is mounted where and how, without the numbers that each start has anew."""
    lines = Path(f"/proc/{container.pid}/mountinfo").read_text().splitlines()
    return sorted(line.split(" ")[3:6] for line in lines)


@pytest.mark.parametrize("name", SKELETONS)
def test_second_start_changes_nothing(every: Starter, work: Path, images: Path, name: str) -> None:
    """The same root started again is the same root with the same mounts, and the host is as it
    was before."""
    before = host_mounts()
    with overlay_root(skeleton(images, name), work / "layer") as root:
        seen = []
        for _ in range(2):
            program = "/probe" if name == "scratch" else "/usr/bin/probe-dlopen"
            with every.prepared(root, args=[program]) as container:
                container.create()
                table = mount_table(container)
                container.delete()
            seen.append((table, contents(root)))
    assert seen[0] == seen[1]
    assert host_mounts() == before


def test_images_own_files_stay(every: Starter, work: Path, images: Path) -> None:
    """The image's own libcuda is not replaced; only the name that programs use leads elsewhere."""
    image = skeleton(images, "own_driver")
    libraries = "usr/lib/x86_64-linux-gnu"
    with overlay_root(image, work / "layer") as root:
        with every.prepared(root, args=["/usr/bin/true"]) as container:
            container.create()
            container.delete()
        own = root / libraries / "libcuda.so.999.10"
        assert own.read_bytes() == (image / libraries / "libcuda.so.999.10").read_bytes()
        assert (root / libraries / "libcuda.so.1").readlink().name == f"libcuda.so.{VERSION}"
        assert (root / libraries / "libnvidia-cfg.so.1").readlink().name.endswith(VERSION)
