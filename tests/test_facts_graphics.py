"""Manifests, configuration and X server modules, found in fake driver roots."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent import catalog
from agent.facts.graphics import read_graphics, read_modules
from agent.facts.root import DriverRoot
from tests.elf_files import elf
from tests.host_trees import DIRECTORY, VERSION, Link, plant

ICD = "vulkan/icd.d/nvidia_icd.json"
MANIFEST = '{"ICD": {"library_path": "libGLX_nvidia.so.0"}}'
GLX = f"libglxserver_nvidia.so.{VERSION}"
MODULE = elf("nvidia_drv.so")


def data(root: Path, *library_dirs: str) -> dict[str, str]:
    """Container path to host path, without the root, of what the reader finds."""
    facts = read_graphics(DriverRoot(str(root)), library_dirs)
    return {f.target: f.file.path.removeprefix(str(root)) for f in facts}


def modules(root: Path, *library_dirs: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Container path to host path, without the root, and links."""
    facts = read_modules(DriverRoot(str(root)), library_dirs, VERSION)
    return {f.target: (f.file.path.removeprefix(str(root)), f.links) for f in facts}


@pytest.mark.parametrize("places", [("etc",), ("usr/share",), ("etc", "usr/share")])
def test_manifest_in_either_place(tmp_path: Path, places: tuple[str, ...]) -> None:
    """A Vulkan manifest is found in /etc, in /usr/share or in both, /etc first (B125)."""
    plant(tmp_path, {f"{place}/{ICD}": MANIFEST for place in places})
    assert data(tmp_path) == {f"/etc/{ICD}": f"/{places[0]}/{ICD}"}


@pytest.mark.parametrize("entry", catalog.load().data, ids=lambda d: d.files[0])
def test_every_file_of_the_catalog(tmp_path: Path, entry: catalog.Data) -> None:
    """Each file that the catalog lists is found and gets the directory that it says."""
    plant(tmp_path, {f"usr/share/{name}": "x" for name in entry.files})
    expected = {f"{entry.target}/{name}": f"/usr/share/{name}" for name in entry.files}
    assert data(tmp_path) == expected


def test_local_data_directory_before_the_usual_one(tmp_path: Path) -> None:
    """/usr/local/share comes before /usr/share."""
    plant(tmp_path, {f"usr/share/{ICD}": MANIFEST, f"usr/local/share/{ICD}": MANIFEST})
    assert data(tmp_path) == {f"/etc/{ICD}": f"/usr/local/share/{ICD}"}


def test_share_beside_the_libraries(tmp_path: Path) -> None:
    """A driver outside of the distribution has its manifests beside its libraries."""
    plant(tmp_path, {"usr/local/nvidia/lib64": DIRECTORY, f"usr/local/nvidia/share/{ICD}": "x"})
    assert data(tmp_path) == {}
    assert data(tmp_path, "/usr/local/nvidia/lib64") == {
        f"/etc/{ICD}": f"/usr/local/nvidia/share/{ICD}"
    }


@pytest.mark.parametrize("home", ["", "home/kubernetes/bin/nvidia/"])
def test_vulkan_at_the_drivers_own_root(tmp_path: Path, home: str) -> None:
    """On GKE the Vulkan directory lies beside lib64, with or without a driver root."""
    plant(tmp_path, {f"{home}lib64": DIRECTORY, f"{home}{ICD}": MANIFEST})
    assert data(tmp_path, f"/{home}lib64") == {f"/etc/{ICD}": f"/{home}{ICD}"}


def test_alternatives_stay_inside_the_root(tmp_path: Path) -> None:
    """A manifest behind absolute links is the file of the driver root."""
    plant(tmp_path, {f"etc/{ICD}": Link("/etc/alternatives/icd")})
    plant(tmp_path, {"etc/alternatives/icd": Link("/usr/lib/nvidia/current/nvidia_icd.json")})
    plant(tmp_path, {"usr/lib/nvidia/current/nvidia_icd.json": MANIFEST})
    assert data(tmp_path) == {f"/etc/{ICD}": "/usr/lib/nvidia/current/nvidia_icd.json"}


def test_empty_file_and_directory_are_no_manifests(tmp_path: Path) -> None:
    """What is no file with content is passed over for the next place."""
    plant(tmp_path, {f"etc/{ICD}": DIRECTORY, f"usr/local/share/{ICD}": ""})
    plant(tmp_path, {f"usr/share/{ICD}": MANIFEST})
    assert data(tmp_path) == {f"/etc/{ICD}": f"/usr/share/{ICD}"}


def test_library_named_by_its_path(tmp_path: Path) -> None:
    """A manifest that names a library by an absolute path tells path and file (B125)."""
    path = "/nix/store/abc-nvidia/lib/libGLX_nvidia.so.0"
    plant(tmp_path, {f"usr/share/{ICD}": MANIFEST.replace("libGLX_nvidia.so.0", path)})
    plant(tmp_path, {path[1:]: Link("libGLX_nvidia.so.550"), f"{path[1:-1]}550": elf()})
    (fact,) = read_graphics(DriverRoot(str(tmp_path)), ())
    assert fact.library == (path, f"{tmp_path}{path[:-1]}550")


@pytest.mark.parametrize("text", [MANIFEST, '{"library_path": "/nowhere/libX.so"}', "{", "\xff"])
def test_manifest_without_a_path(tmp_path: Path, text: str) -> None:
    """A SONAME, a path that leads nowhere and broken JSON name no file; the manifest is taken."""
    plant(tmp_path, {f"usr/share/{ICD}": text})
    (fact,) = read_graphics(DriverRoot(str(tmp_path)), ())
    assert fact.library is None


@pytest.mark.parametrize(
    ("drivers", "extensions"),
    [
        ("usr/lib/xorg/modules/drivers", "usr/lib/xorg/modules/extensions"),
        ("usr/lib64/xorg/modules/updates/drivers", "usr/lib64/xorg/modules/updates/extensions"),
        ("opt/nv/lib/nvidia/xorg", "opt/nv/lib/nvidia/xorg"),
        ("usr/X11R6/lib64/modules/drivers", "usr/X11R6/lib64/modules/extensions"),
    ],
)
def test_x_server_modules(tmp_path: Path, drivers: str, extensions: str) -> None:
    """The X driver and its GLX are found where distributions keep them, and stay there."""
    plant(tmp_path, {f"{drivers}/nvidia_drv.so": MODULE, f"{extensions}/{GLX}": MODULE})
    plant(tmp_path, {f"{extensions}/libglxserver_nvidia.so": Link(GLX)})
    plant(tmp_path, {"opt/nv/lib": DIRECTORY})
    assert modules(tmp_path, "/opt/nv/lib") == {
        f"/{drivers}/nvidia_drv.so": (f"/{drivers}/nvidia_drv.so", ()),
        f"/{extensions}/{GLX}": (f"/{extensions}/{GLX}", ("libglxserver_nvidia.so",)),
    }


def test_x_server_modules_of_alternatives(tmp_path: Path) -> None:
    """With Debian's alternatives a link without version stands for the versioned module."""
    place, real = "usr/lib/xorg/modules/extensions", "usr/lib/nvidia/current"
    plant(tmp_path, {f"{place}/libglxserver_nvidia.so": Link("/etc/alternatives/glx")})
    plant(tmp_path, {"etc/alternatives/glx": Link(f"/{real}/{GLX}"), f"{real}/{GLX}": MODULE})
    assert modules(tmp_path) == {
        f"/{place}/{GLX}": (f"/{real}/{GLX}", ("libglxserver_nvidia.so",)),
    }


def test_module_of_another_version_or_kind(tmp_path: Path) -> None:
    """GLX of another driver version, a broken module and a script are not taken."""
    place = "usr/lib/xorg/modules"
    plant(tmp_path, {f"{place}/extensions/libglxserver_nvidia.so.1.2": MODULE})
    plant(tmp_path, {f"{place}/drivers/nvidia_drv.so": MODULE[:70]})
    plant(tmp_path, {f"{place}/nvidia_drv.so": "#!/bin/sh\n"})
    assert modules(tmp_path) == {}


def test_no_module_without_a_driver(tmp_path: Path) -> None:
    """Without a loaded driver no module is its own."""
    plant(tmp_path, {"usr/lib/xorg/modules/drivers/nvidia_drv.so": MODULE})
    assert read_modules(DriverRoot(str(tmp_path)), (), None) == ()
