"""What every runtime's containers may already have where our files go: files of the image,
volumes of the user, and what an earlier start left there."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.plan import BindFile, Place
from tests.containers.image import DEBIAN, copy_image, session_image
from tests.containers.runc import Container
from tests.containers.spec import MAPPED_ROOT, Json, bind
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, config
from tests.kernel.trees import contents, host_mounts, snapshot

pytestmark = NEEDS_CONTAINERS

LIBS = DEBIAN.libraries
PROGRAM = "usr/bin/nvidia-smi"
NODES = ("nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
DLOPEN = ("probe-dlopen", "libcuda.so.1=simhost_version")
OURS = "535.161.08"


def a_link(path: Path, outside: Path) -> None:
    """A link to a file of the host."""
    path.symlink_to(outside)


def a_broken_link(path: Path, outside: Path) -> None:
    """A link to nothing."""
    path.symlink_to(outside.with_name("nothing"))


def an_empty_file(path: Path, outside: Path) -> None:
    """What another tool's start leaves behind."""
    del outside
    path.touch()


def a_socket(path: Path, outside: Path) -> None:
    """The socket of a daemon that is gone."""
    del outside
    with socket.socket(socket.AF_UNIX) as made:
        # A socket's address has room for 107 bytes.
        home = os.getcwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(home)


@pytest.mark.parametrize("kind", [a_link, a_broken_link, an_empty_file, a_socket])
def test_names_that_the_image_has(
    every: Starter, root: Path, kind: Callable[[Path, Path], None]
) -> None:
    """Program, library and SONAME of the driver are taken in the image: the container still
    finds the host's, and the file outside stays as it was."""
    outside = every.work / "outside"
    outside.write_text("untouched")
    for name in (PROGRAM, f"{LIBS}/libcuda.so.{OURS}", f"{LIBS}/libcuda.so.1"):
        kind(root / name, outside)
    with every.started(root) as container:
        assert container.exec(*DLOPEN).stdout.split()[2] == OURS
        seen = container.exec("stat", "-c", "%s", f"/{PROGRAM}").stdout
        assert int(seen) == source_of(every, container, PROGRAM).stat().st_size
    assert outside.read_text() == "untouched"


def source_of(starter: Starter, container: Container, name: str) -> Path:
    """The host's file that the plan binds on `name`."""
    plan = starter.node.stage_spec(config(container))
    assert plan is not None
    places = {Place.ABSOLUTE: "", Place.LIBS: f"/{LIBS}/"}
    binds = [step for step in plan.steps if isinstance(step, BindFile)]
    found = {places[s.place] + s.target: s.file.path for s in binds if s.place in places}
    return Path(found[f"/{name}"])


def test_files_of_a_volume_are_covered(every: Starter, root: Path) -> None:
    """A user's own file mounted on a target, and plain files in a volume on /dev, never stand
    for the driver's; the volumes stay as they are."""
    volume = every.work / "volume"
    volume.mkdir()
    for name in NODES:
        (volume / name).write_text("plain")
    os.mknod(volume / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # runtimes want it
    own = every.work / "own"
    own.write_text("the user's")
    mounts = [bind(volume, "/dev"), bind(own, f"/{PROGRAM}")]
    with every.started(root, mounts=mounts) as container:
        kinds = container.exec("stat", "-c", "%F", *(f"/dev/{name}" for name in NODES)).stdout
        seen = container.exec("grep", "-c", "the user's", f"/{PROGRAM}")
    assert kinds.splitlines() == ["character special file"] * len(NODES)
    assert seen.stdout == "0\n"
    assert {(volume / name).read_text() for name in NODES} == {"plain"}
    assert own.read_text() == "the user's"


def links_on_dev(volume: Path) -> Json:
    """A volume on /dev whose nodes are links to files of the host."""
    for name in NODES:
        (volume / name).symlink_to("/etc/passwd")
    return bind(volume, "/dev")


def nothing_on_firmware(volume: Path) -> Json:
    """An empty volume where files of ours would have to be made."""
    return bind(volume, "/usr/lib/firmware")


@pytest.mark.parametrize("made", [links_on_dev, nothing_on_firmware])
def test_nothing_is_made_on_a_volume(
    every: Starter, root: Path, made: Callable[[Path], Json]
) -> None:
    """Where only a change to the user's volume would help, the start is refused."""
    volume = every.work / "volume"
    volume.mkdir()
    (root / "usr/lib/firmware").mkdir()
    mount = made(volume)
    before = snapshot(volume), contents(root), host_mounts()
    with every.prepared(root, mounts=[mount]) as container:
        assert container.create(check=False).status != 0
    assert every.records()[-1][7].startswith("place lies on a volume")
    assert (snapshot(volume).keys(), contents(root), host_mounts()) == (
        before[0].keys(),
        *before[1:],
    )


@pytest.mark.parametrize("options", [{}, {"readonly": True}, {"user_namespace": True}])
def test_second_start(every: Starter, work: Path, options: Json) -> None:
    """The same root again, read-only or with mapped ids: the same container, the same root."""
    owner = MAPPED_ROOT if "user_namespace" in options else 0
    root = copy_image(session_image(), work / "root", owner=owner)
    before, seen = host_mounts(), []
    for _ in range(2):
        with every.started(root, **options) as container:
            assert container.exec(*DLOPEN).stdout.split()[2] == OURS
            opened = container.exec("probe-open", "/dev/nvidiactl", "/dev/nvidia2").stdout
        seen.append((opened, contents(root)))
    assert seen[0][0].split() == ["/dev/nvidiactl", "ok", "/dev/nvidia2", "ok"]
    assert seen[0] == seen[1]
    assert host_mounts() == before
