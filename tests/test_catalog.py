"""The catalog: its table and the questions it answers."""

from __future__ import annotations

import re

import pytest

from agent import catalog
from tests.host_trees import HOSTS

MINIMAL = """
default = "compute"
[libraries]
compute = ["libcuda"]
never = ["libGL"]
[includes]
video = ["compute"]
[helpers]
stems = []
[front_ends]
stems = []
need = []
[programs]
[[ipc]]
paths = ["/run/x"]
kind = "socket"
capabilities = ["utility"]
[[data]]
target = "/etc"
files = ["x.json"]
capabilities = ["compute"]
[modules]
files = []
capabilities = []
[nodes]
any = ["/dev/nvidiactl"]
[search]
libraries = []
programs = []
data = []
data_beside = []
modules = []
modules_beside = []
"""


@pytest.mark.parametrize(
    ("stem", "capabilities"),
    [
        ("libnvidia-ml", {"utility"}),
        ("libnvidia-cfg", {"utility"}),
        ("libcuda", {"compute", "video"}),
        ("libnvidia-nvvm", {"compute", "video"}),
        ("libnvidia-encode", {"video"}),
        ("libGLX_nvidia", {"graphics", "display"}),
        ("libnvidia-ngx", {"ngx"}),
        ("libnvidia-wfb", set()),
    ],
)
def test_library_classes(stem: str, capabilities: set[str]) -> None:
    """Each class has its libraries, and those of the classes that it includes."""
    assert catalog.capabilities_of_library(stem) == capabilities


def test_unknown_library_is_compute() -> None:
    """A stem that no list has is taken as compute, and can be told from a known one (B050)."""
    assert catalog.capabilities_of_library("libnvidia-newthing") == {"compute", "video"}
    assert not catalog.knows_library("libnvidia-newthing")
    assert catalog.knows_library("libnvidia-wfb")


def test_stem_is_not_a_prefix() -> None:
    """`libnvidia-pkcs11` and `libnvidia-pkcs11-openssl3` are two stems."""
    assert catalog.stem_of("libnvidia-pkcs11-openssl3.so.580.10") == "libnvidia-pkcs11-openssl3"
    assert catalog.stem_of("libcuda.so") == "libcuda"


def test_programs_and_sockets() -> None:
    """Programs and sockets have the capability that the legacy tool gives them."""
    assert catalog.capabilities_of_program("nvidia-smi") == {"utility"}
    assert catalog.capabilities_of_program("nvidia-cuda-mps-server") == {"compute"}
    assert catalog.capabilities_of_program("bash") == frozenset()
    assert catalog.capabilities_of_ipc("/run/nvidia-persistenced/socket") == {"utility"}
    assert catalog.capabilities_of_ipc("/tmp/nvidia-mps") == {"compute"}
    assert catalog.capabilities_of_ipc("/run/docker.sock") == frozenset()


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("nv-fabricmanager", {"utility"}),
        ("nvidia-cuda-mps-control", {"compute"}),
        ("nvidia-debugdump", {"utility"}),
        ("nvidia-imex", {"compute"}),
        ("nvidia-imex-ctl", {"compute"}),
        ("nvidia-persistenced", {"utility"}),
        ("nvidia-xconfig", {"display", "graphics"}),
    ],
)
def test_every_program_has_its_class(name: str, capabilities: set[str]) -> None:
    """Each program comes with one capability; those of CDI that legacy lacks are here too."""
    assert catalog.capabilities_of_program(name) == capabilities


def test_nodes() -> None:
    """nvidiactl comes with anything, uvm with compute or video, modeset with display only."""
    assert catalog.capabilities_of_node("/dev/nvidiactl") == {catalog.ANY}
    assert catalog.capabilities_of_node("/dev/nvidia-uvm") == {"compute", "video"}
    assert catalog.capabilities_of_node("/dev/nvidia-modeset") == {"display"}
    assert catalog.capabilities_of_node("/dev/nvidia-caps/nvidia-cap1") == frozenset()


def test_every_helper_has_a_class() -> None:
    """A helper that no class lists would be injected by the default, unseen."""
    table = catalog.load()
    assert [h for h in table.helpers if h not in table.libraries] == []


def test_real_driver_is_known() -> None:
    """Every library of a recorded driver 580 stands in the catalog."""
    listing = (HOSTS / "h200-580/tree.txt").read_text()
    stems = set(re.findall(r"\b(lib[\w-]+)\.so\.580\.159\.04", listing))
    assert len(stems) > 20
    assert [s for s in sorted(stems) if not catalog.knows_library(s)] == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('compute = ["libcuda"]', 'compte = ["libcuda"]', "no such capability: compte"),
        ('kind = "socket"', 'kind = "pipe"', "'pipe' is neither socket nor dir"),
        ('capabilities = ["utility"]', 'capabilities = ["all"]', "no such capability: all"),
        ('default = "compute"', 'default = "any"', "no such capability: any"),
    ],
)
def test_wrong_table_is_refused(old: str, new: str, message: str) -> None:
    """A capability or kind that does not exist is an error that names it."""
    with pytest.raises(ValueError, match=re.escape(message)):
        catalog.parse(MINIMAL.replace(old, new))


def test_values_are_frozen() -> None:
    """The shared table cannot be changed by who reads it."""
    table = catalog.parse(MINIMAL)
    with pytest.raises(TypeError, match="does not support item assignment"):
        table.libraries["libx"] = frozenset()  # type: ignore[index]  # the point of the test
