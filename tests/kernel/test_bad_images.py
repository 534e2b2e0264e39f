"""Images made to lead the hook astray: nothing outside the root changes, and a refused start
leaves the root as it was."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.containers.image import DEBIAN, copy_image
from tests.containers.spec import bind
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, asking, refused
from tests.kernel.trees import contents, host_mounts, snapshot

pytestmark = NEEDS_CONTAINERS

LIBS = DEBIAN.libraries
LAST_LINK = f"{LIBS}/libnvidia-ptxjitcompiler.so.1"
CACHE = "etc/ld.so.cache"
NODES = ("nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


@pytest.fixture
def canary(work: Path) -> Path:
    """A directory of the host that every test must leave alone."""
    path = work / "canary"
    for name in ("etc", "lib", "nvidia-persistenced", LIBS):
        (path / name).mkdir(parents=True)
    (path / "file").write_text("untouched")
    (path / "ld.so.cache").write_text("untouched")
    return path


def move_to_link(path: Path, target: str) -> None:
    """A link to `target` in place of the directory `path`."""
    shutil.rmtree(path)
    path.symlink_to(target)


def refusal(starter: Starter, root: Path) -> str:
    """The line of the refusal, which leaves the root's content and the host's mounts alone."""
    before = contents(root), host_mounts()
    with starter.prepared(root) as container:
        line = refused(container.create(check=False))
    assert contents(root) == before[0]
    assert host_mounts() == before[1]
    return line


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("usr/bin/nvidia-smi", "not a file in the image: nvidia-smi"),
        (LAST_LINK, "a directory of the image is in the way: libnvidia-ptxjitcompiler.so.1"),
        (CACHE, "a directory of the image is in the way: ld.so.cache"),
    ],
)
def test_directory_in_the_way(either: Starter, root: Path, target: str, why: str) -> None:
    """A directory where a file or link belongs is left alone, and what was made before it is
    taken back."""
    (root / target).unlink(missing_ok=True)
    (root / target).mkdir()
    (root / target / "kept").touch()
    assert refusal(either, root) == why


def test_failure_restores_the_image(either: Starter, root: Path) -> None:
    """Files and links of the image that were in the way are back after a start that failed."""
    libs = root / LIBS
    shutil.copy(libs / "libm.so.6", libs / "libcuda.so.999")
    (libs / "libcuda.so.1").symlink_to("libcuda.so.999")
    (libs / "libcuda.so.535.161.08").symlink_to("libcuda.so.999")
    shutil.copy(libs / "libm.so.6", libs / "libnvidia-ml.so.1")
    (root / LAST_LINK).mkdir()
    assert "in the way" in refusal(either, root)
    assert (libs / "libcuda.so.535.161.08").is_symlink()
    assert (libs / "libnvidia-ml.so.1").stat().st_size > 0


def test_failure_after_the_mounts_restores_the_image(either: Starter, root: Path) -> None:
    """So they are when the very last step fails: a loader cache that is the user's own mount."""
    libs = root / LIBS
    shutil.copy(libs / "libm.so.6", libs / "libnvidia-ml.so.1")
    own = either.work / "own.cache"
    shutil.copy(root / CACHE, own)
    before = contents(root), snapshot(own.parent / "layers/upper") and own.read_bytes()
    with either.prepared(root, mounts=[bind(own, f"/{CACHE}")]) as container:
        line = refused(container.create(check=False))
    assert "busy" in line
    assert (contents(root), own.read_bytes()) == before


def absolute(root: Path, canary: Path) -> str:
    """The host's absolute path."""
    del root
    return str(canary)


def upwards(root: Path, canary: Path) -> str:
    """Up and out of the root."""
    del root
    return "../" * 20 + str(canary)[1:]


def magic(root: Path, canary: Path) -> str:
    """Through procfs, whose links lead where their text does not say."""
    del root
    return f"/proc/self/root{canary}"


def loop(root: Path, canary: Path) -> str:
    """To a link that leads back."""
    del canary
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    return "/one"


def chain(root: Path, canary: Path) -> str:
    """More links than anyone follows."""
    for number in range(41):
        (root / f"link{number}").symlink_to(f"/link{number + 1}")
    (root / "link41").symlink_to(str(canary))
    return "/link0"


@pytest.mark.parametrize("place", [LIBS, "etc"])
@pytest.mark.parametrize("target", [absolute, upwards, magic, loop, chain])
def test_directory_is_a_link(
    either: Starter,
    root: Path,
    canary: Path,
    place: str,
    target: Callable[[Path, Path], str],
) -> None:
    """A directory of ours that is a link out of the root, to nowhere or in circles: the start is
    refused, the host's directory and the root stay as they were."""
    move_to_link(root / place, target(root, canary))
    before = snapshot(canary)
    line = refusal(either, root)
    assert "no directory in the image" in line or "link" in line
    assert snapshot(canary) == before


def test_links_inside_the_root_are_followed(either: Starter, root: Path, canary: Path) -> None:
    """A link whose text looks like a way out, but has a place in the root, leads there."""
    inside = root / str(canary)[1:] / LIBS
    inside.parent.mkdir(parents=True)
    shutil.move(root / LIBS, inside)
    (root / LIBS).symlink_to("../" * 20 + str(canary / LIBS)[1:])
    before = snapshot(canary)
    with either.started(root) as container:
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
    assert (inside / "libcuda.so.1").is_symlink()
    assert snapshot(canary) == before


def test_dev_is_a_link_out(either: Starter, root: Path, canary: Path) -> None:
    """Where the image's /dev is a link out of the root, the hook makes nothing there.

    Some runc versions make their own links there, so the same container without GPU goes first.
    """
    (root / "dev").rmdir()
    (root / "dev").symlink_to(canary)
    with either.prepared(root, env=()) as plain:
        plain.create(check=False)
    before = snapshot(canary).keys(), host_mounts()
    with either.prepared(root) as container:
        container.create(check=False)
        assert (snapshot(canary).keys(), host_mounts()) == before


def test_nodes_of_the_image_are_covered(either: Starter, root: Path) -> None:
    """Files of a volume with the nodes' names never stand for the GPU; they are covered."""
    hostile = either.work / "hostile"
    hostile.mkdir()
    for name in NODES:
        (hostile / name).write_text("plain")
    os.mknod(hostile / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # runc wants it
    volume = bind(hostile, "/dev")
    with either.started(root, mounts=[volume], env=asking("0")) as container:
        paths = [f"/dev/{name}" for name in NODES]
        kinds = container.exec("stat", "-c", "%F", *paths).stdout
    assert kinds.splitlines() == ["character special file"] * len(NODES)
    assert {(hostile / name).read_text() for name in NODES} == {"plain"}


def test_links_of_a_volume_are_not_replaced(either: Starter, root: Path) -> None:
    """A link of a volume where a node belongs refuses the start; the volume stays as it is."""
    hostile = either.work / "hostile"
    hostile.mkdir()
    for name in NODES:
        (hostile / name).symlink_to("/etc/passwd")
    before = snapshot(hostile)
    with either.prepared(root, mounts=[bind(hostile, "/dev")], env=asking("0")) as container:
        assert "place lies on a volume" in refused(container.create(check=False))
    assert snapshot(hostile) == before


@pytest.mark.parametrize("kind", ["overlay", "same file system"])
def test_nothing_is_made_on_a_volume(either: Starter, root: Path, kind: str) -> None:
    """A volume of the user's where a target lies gets no file: the start is refused, also where
    the volume lies on the file system of the root."""
    if kind != "overlay":
        root = copy_image(root, either.work / "copy")
    volume = either.work / "volume"
    volume.mkdir()
    before = contents(root)
    with either.prepared(root, mounts=[bind(volume, "/usr/lib/firmware")]) as container:
        (root / "usr/lib/firmware").mkdir()
        line = refused(container.create(check=False))
        (root / "usr/lib/firmware").rmdir()
    assert line.startswith("place lies on a volume")
    assert list(volume.iterdir()) == []
    assert contents(root) == before


@contextmanager
def memory(path: Path) -> Iterator[Path]:
    """A tmpfs of the host, as kubelet mounts one for an emptyDir in memory."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "volume", str(path)], check=True, timeout=10)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True, timeout=10)


def test_nothing_is_made_on_a_volume_in_memory(either: Starter, root: Path) -> None:
    """An emptyDir on tmpfs is the user's, unlike the tmpfs that a runtime makes for /dev."""
    (root / "usr/lib/firmware").mkdir()
    with memory(either.work / "volume") as volume:
        mounts = [bind(volume, "/usr/lib/firmware")]
        line = either.refusal(root, mounts=mounts)
        assert list(volume.iterdir()) == []
    assert line.startswith("place lies on a volume")


def test_own_tmpfs_beside_a_volume_in_memory(either: Starter, root: Path) -> None:
    """A tmpfs of the container's own takes our files, whatever volumes it has elsewhere."""
    own = {"type": "tmpfs", "source": "tmpfs", "destination": "/usr/lib/firmware"}
    with memory(either.work / "volume") as volume:
        mounts = [bind(volume, "/cache"), {**own, "options": ["mode=755"]}]
        with either.started(root, mounts=mounts) as container:
            found = container.exec("find", "/usr/lib/firmware", "-name", "gsp*.bin").stdout
        assert list(volume.iterdir()) == []
    assert found


def test_programs_of_the_image_do_not_run(either: Starter, root: Path) -> None:
    """Programs and modules of the image with names that a careless hook would run or import,
    and an environment that points to them, have no effect."""
    for name in ("sbin/ldconfig", "sbin/ldconfig.real", "bin/python3", "bin/nvidia-modprobe"):
        path = root / "usr" / name
        path.unlink(missing_ok=True)
        path.write_text("#!/bin/sh\ntouch /marker\n")
        path.chmod(0o755)
    for name in ("sitecustomize.py", "json.py", "_ctypes.py", "os.py", "hooks.py", "posix.py"):
        (root / name).write_text("open('/marker', 'w')\nraise SystemExit(0)\n")
    hostile = ("LD_PRELOAD=/proc/self/cwd/x.so", "PYTHONPATH=/proc/self/cwd", "PYTHONHOME=/")
    env = ("NVIDIA_VISIBLE_DEVICES=0", *hostile, "PYTHONSTARTUP=/sitecustomize.py")
    with either.prepared(root, env=env) as container:
        container.create()
    assert not (root / "marker").exists()
    assert either.records()[-1][5] == "ok"
