"""What each driver capability brings besides nodes, and under which names."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent import catalog
from agent.content import PROFILE, application_profile
from agent.facts.values import DataFact, DrmFact, HostFacts, LibraryFact, NvmlGpu, PciGpu
from agent.features import OptOut
from agent.inventory import build
from agent.plan import BindFile, BindNode, CacheEntry, DeviceRule, Link, Place, Plan, Text
from agent.planner import ProcPaths, plan
from agent.policy import Policy
from agent.request import ask
from tests import fact_values as fv

EXTENSIONS = "/usr/lib64/xorg/modules/extensions"
GLX_MODULE = f"libglxserver_nvidia.so.{fv.VERSION}"
STEMS = {
    "utility": ("libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq"),
    "compute": (
        *("libcuda", "libcudadebugger", "libnvidia-opencl", "libnvidia-ptxjitcompiler"),
        *("libnvidia-nvvm", "libnvidia-pkcs11", "libnvidia-pkcs11-openssl3", "libnvidia-tileiras"),
        *("libnvidia-fatbinaryloader", "libnvidia-compiler", "libnvidia-sandboxutils"),
    ),
    "compute+graphics": ("libnvidia-gpucomp", "libnvidia-allocator"),
    "video": (*("libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid"),),
    "graphics": (
        *("libnvidia-eglcore", "libnvidia-glcore", "libnvidia-tls", "libnvidia-glsi"),
        *("libnvidia-fbc", "libnvidia-ifr", "libnvidia-rtcore", "libnvoptix", "libGLX_nvidia"),
        *("libEGL_nvidia", "libGLESv2_nvidia", "libGLESv1_CM_nvidia", "libnvidia-glvkspirv"),
        *("libnvidia-cbl", "libnvidia-vulkan-producer", "libnvidia-present"),
    ),
    "ngx": ("libnvidia-ngx",),
    "never": ("libnvidia-gtk3", "libnvidia-wfb", "libOpenCL", "libnvidia-wayland-client"),
}
BROUGHT = {
    "utility": {"utility"},
    "compute": {"compute", "compute+graphics"},
    "video": {"compute", "compute+graphics", "video"},
    "graphics": {"graphics", "compute+graphics"},
    "display": {"graphics", "compute+graphics"},
    "ngx": {"ngx"},
    "compat32": set(),
    "all": {"utility", "compute", "compute+graphics", "video", "graphics", "ngx"},
}


def every_library() -> tuple[LibraryFact, ...]:
    """One library of each stem, in 64 and in 32 bits."""
    stems = [stem for group in STEMS.values() for stem in group]
    return tuple(fv.library(s, machine=m) for m in ("x86_64", "i386") for s in stems)


def every_data() -> tuple[DataFact, ...]:
    """Every data file of the catalog."""
    names = [f"{d.target}/{name}" for d in catalog.load().data for name in d.files]
    return tuple(DataFact(name, fv.file(f"/host{name}")) for name in names)


PCI = tuple(
    PciGpu(
        fv.BUS_IDS[n],
        "nvidia",
        (DrmFact(f"card{n + 1}", 226, n + 1), DrmFact(f"renderD{128 + n}", 226, 128 + n)),
    )
    for n in (0, 1)
)
DRI = tuple(fv.node(f"/dev/dri/{d.name}", d.major, d.minor) for p in PCI for d in p.drm)
HOST = replace(
    fv.HOST,
    driver=replace(fv.DRIVER, machine="x86_64"),
    libraries=every_library(),
    data=every_data(),
    modules=(
        DataFact("/usr/lib64/xorg/modules/drivers/nvidia_drv.so", fv.file("/host/nvidia_drv.so")),
        DataFact(
            f"{EXTENSIONS}/{GLX_MODULE}",
            fv.file(f"/host/{GLX_MODULE}"),
            ("libglxserver_nvidia.so",),
        ),
    ),
    nodes=(*fv.NODES, *DRI, fv.node("/dev/dri/card0", 226, 0)),
    pci=PCI,
)


def planned(capabilities: str, devices: str = "all", facts: HostFacts = HOST) -> Plan:
    """The plan of this host for these capabilities."""
    request = ask(devices, capabilities, Policy(), "test")
    assert request is not None
    return plan(build(facts), request, ProcPaths())


def targets(made: Plan, place: Place) -> set[str]:
    """Where files are bound."""
    return {s.target for s in made.steps if isinstance(s, BindFile) and s.place is place}


def links(made: Plan) -> dict[str, str]:
    """Every link, with its place in front."""
    return {f"{s.place}/{s.target}": s.points_to for s in made.steps if isinstance(s, Link)}


def nodes(made: Plan) -> set[str]:
    """Every node."""
    return {s.node.target for s in made.steps if isinstance(s, BindNode)}


@pytest.mark.parametrize("capability", BROUGHT)
def test_libraries_of_each_capability(capability: str) -> None:
    """A capability brings its own libraries and those of the capabilities that it implies."""
    stems = {stem for group in BROUGHT[capability] for stem in STEMS[group]}
    found = {catalog.stem_of(name) for name in targets(planned(capability), Place.LIBS)}
    assert found == stems


@pytest.mark.parametrize("capability", ["utility", "compute", "graphics"])
def test_compat32_brings_the_same_in_32_bits(capability: str) -> None:
    """compat32 adds the 32-bit copies of exactly what the others bring, and nothing without it."""
    with_it = planned(f"{capability},compat32")
    assert targets(with_it, Place.LIBS32) == targets(with_it, Place.LIBS)
    assert targets(planned(capability), Place.LIBS32) == set()
    flags = {s.flags for s in with_it.steps if isinstance(s, CacheEntry)}
    assert flags == {0x0303, 0x0003}


@pytest.mark.parametrize(
    ("capabilities", "drawing", "opencl"),
    [
        ("utility", False, False),
        ("compute,utility", False, True),
        ("video", False, True),
        ("ngx", False, False),
        ("graphics", True, False),
        ("display", True, False),
        ("all", True, True),
    ],
)
def test_data_files_of_each_capability(capabilities: str, drawing: bool, opencl: bool) -> None:
    """Manifests, OptiX weights and X server files come with drawing, OpenCL's with compute."""
    found = targets(planned(capabilities), Place.ABSOLUTE)
    files = {d.target for d in HOST.data}
    vendor = {"/etc/OpenCL/vendors/nvidia.icd"}
    modules = {m.target for m in HOST.modules}
    expected = (files - vendor | modules if drawing else set()) | (vendor if opencl else set())
    assert found & (files | modules) == expected


def test_manifests_go_where_their_loaders_look() -> None:
    """Vulkan's and OpenCL's files are in /etc, those of EGL, OptiX and X in /usr/share."""
    found = targets(planned("all"), Place.ABSOLUTE)
    assert {
        "/etc/OpenCL/vendors/nvidia.icd",
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
        "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/usr/share/nvidia/nvoptix.bin",
        "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    } <= found


def test_x_server_module_has_its_short_name() -> None:
    """The X server looks for its GLX by the name without a version."""
    link = f"abs/{EXTENSIONS}/libglxserver_nvidia.so"
    assert links(planned("display"))[link] == GLX_MODULE
    assert link not in links(planned("compute"))


@pytest.mark.parametrize(
    ("capability", "name", "points_to"),
    [
        ("compute", "libcuda.so", "libcuda.so.1"),
        ("compute", "libcuda.so.1", f"libcuda.so.{fv.VERSION}"),
        ("graphics", "libGLX_indirect.so.0", "libGLX_nvidia.so.1"),
        ("graphics", "libnvidia-vulkan-producer.so", "libnvidia-vulkan-producer.so.1"),
        ("graphics", "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
        ("display", "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
        ("video", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    ],
)
def test_names_that_programs_open(capability: str, name: str, points_to: str) -> None:
    """The names that no SONAME gives are links, whether the host has them or not."""
    assert links(planned(capability))[f"libs/{name}"] == points_to


def test_gbm_backend_only_where_something_is_drawn() -> None:
    """The allocator also comes with compute, its GBM name does not."""
    assert "libs/gbm/nvidia-drm_gbm.so" not in links(planned("compute,utility"))


def test_vdpau_keeps_its_directory() -> None:
    """A library from the vdpau directory and its links go into the same one, not to the cache."""
    vdpau = fv.library("libvdpau_nvidia", folder="/usr/lib64/vdpau")
    vdpau = replace(vdpau, subdir="vdpau", links=("libvdpau_nvidia.so", "libvdpau_nvidia.so.1"))
    made = planned("video", facts=replace(HOST, libraries=(*fv.HOST.libraries, vdpau)))
    assert f"vdpau/{vdpau.name}" in targets(made, Place.LIBS)
    found = {n: t for n, t in links(made).items() if "vdpau" in n}
    assert found == {
        "libs/vdpau/libvdpau_nvidia.so": "libvdpau_nvidia.so.1",
        "libs/vdpau/libvdpau_nvidia.so.1": vdpau.name,
    }
    assert "libvdpau_nvidia.so.1" not in {s.soname for s in made.steps if isinstance(s, CacheEntry)}


def test_library_that_a_manifest_names_by_path() -> None:
    """Where a manifest names its library by a path the library is there too (B125)."""
    (glx,) = [f for f in HOST.libraries if "GLX" in f.name and f.machine == "x86_64"]
    path = "/nix/store/abc-nvidia/lib/libGLX_nvidia.so.0"
    icd = DataFact("/etc/vulkan/icd.d/nvidia_icd.json", fv.file("/x"), (), (path, glx.file.path))
    made = planned("graphics", facts=replace(HOST, data=(icd,)))
    assert BindFile(Place.ABSOLUTE, path, glx.file) in made.steps
    assert path not in targets(planned("compute", facts=replace(HOST, data=(icd,))), Place.ABSOLUTE)


def test_path_in_a_manifest_gives_no_other_file() -> None:
    """A manifest cannot have a file mounted that is not among the chosen libraries."""
    icd = DataFact("/etc/vulkan/icd.d/nvidia_icd.json", fv.file("/x"), (), ("/etc/x", "/etc/x"))
    made = planned("all", facts=replace(HOST, data=(icd,)))
    assert "/etc/x" not in targets(made, Place.ABSOLUTE)


@pytest.mark.parametrize(
    ("capabilities", "drawing"),
    [("compute,utility", False), ("video", False), ("graphics", True), ("display", True)],
)
def test_drm_nodes_with_drawing_only(capabilities: str, drawing: bool) -> None:
    """Card and render node of a GPU, and their device rules, come with graphics or display."""
    made = planned(capabilities, "1")
    expected = {"/dev/dri/card2", "/dev/dri/renderD129"} if drawing else set()
    assert {n for n in nodes(made) if "/dri/" in n} == expected
    rules = {(s.major, s.minor) for s in made.steps if isinstance(s, DeviceRule)}
    assert rules & {(226, 2), (226, 129)} == ({(226, 2), (226, 129)} if drawing else set())


def test_drm_links_by_pci_address() -> None:
    """Each node has the name by which programs find the node of a PCI address."""
    found = {n: t for n, t in links(planned("graphics")).items() if "by-path" in n}
    assert found == {
        f"abs//dev/dri/by-path/pci-{fv.BUS_IDS[0]}-card": "../card1",
        f"abs//dev/dri/by-path/pci-{fv.BUS_IDS[0]}-render": "../renderD128",
        f"abs//dev/dri/by-path/pci-{fv.BUS_IDS[1]}-card": "../card2",
        f"abs//dev/dri/by-path/pci-{fv.BUS_IDS[1]}-render": "../renderD129",
    }


def test_drm_of_a_driver_with_long_bus_ids() -> None:
    """procfs may write 8 digits of PCI domain where sysfs and udev write 4."""
    gpu = replace(HOST.gpus[0], bus_id=f"0000{fv.BUS_IDS[0]}")
    made = planned("graphics", "0", replace(HOST, gpus=(gpu, HOST.gpus[1])))
    assert "/dev/dri/card1" in nodes(made)
    assert f"abs//dev/dri/by-path/pci-{fv.BUS_IDS[0]}-card" in links(made)


def test_drm_node_with_another_number() -> None:
    """A node whose number is not the one of sysfs is another device and is not given out."""
    moved = tuple(fv.node(n.target, 226, n.minor + 5) for n in DRI)
    made = planned("graphics", facts=replace(HOST, nodes=(*fv.NODES, *moved)))
    assert not [n for n in nodes(made) if "/dri/" in n]
    assert not [n for n in links(made) if "by-path" in n]


def test_parts_of_a_gpu_draw_nothing() -> None:
    """A GPU in MIG mode has no DRM nodes to give: they would show the whole GPU."""
    answers: list[NvmlGpu] = [replace(g, mig_enabled=True) for g in HOST.nvml.gpus]
    made = planned("graphics", facts=replace(HOST, nvml=fv.nvml(*answers)))
    assert not [n for n in nodes(made) if "/dri/" in n]


@pytest.mark.parametrize(
    ("minors", "mask"),
    [((), 0), ((0,), 1), ((3, 0), 9), ((63,), 1 << 63), ((1, 64, 99, -1), 2)],
)
def test_application_profile_names_the_minors(minors: tuple[int, ...], mask: int) -> None:
    """The profile is for every program and has one bit for each granted minor below 64."""
    made = json.loads(application_profile(minors))
    (profile,) = made["profiles"]
    assert profile["settings"] == ["EGLVisibleDGPUDevices", mask]
    assert made["rules"] == [{"pattern": [], "profile": profile["name"]}]
    assert profile["name"] == "_container_"


@pytest.mark.parametrize(
    ("capabilities", "drawing"), [("graphics", True), ("display", True), ("compute,utility", False)]
)
def test_application_profile_with_drawing_only(capabilities: str, drawing: bool) -> None:
    """Where something is drawn the container's profile names the granted GPU, minor 1 here."""
    expected = [Text(PROFILE, application_profile((1,)))] if drawing else []
    assert [s for s in planned(capabilities, "1").steps if isinstance(s, Text)] == expected


def test_opt_out_of_the_application_profile() -> None:
    """A container can do without the profile, and lacks nothing else then."""
    request = ask("all", "graphics", Policy(opt_out=(OptOut.APPLICATION_PROFILE,)), "test")
    assert request is not None
    without = plan(build(HOST), request, ProcPaths()).steps
    gone = [step for step in planned("graphics").steps if step not in without]
    assert [type(step) for step in gone] == [Text]
