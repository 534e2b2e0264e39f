"""Images whose directories, nodes and loader files lead elsewhere, in real containers."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.plan import Link, Place
from tests.containers.image import DEBIAN, copy_image, session_image
from tests.containers.spec import MAPPED_ROOT, bind
from tests.immunity.oracles import SECRET, clean_refusal, host_untouched, some
from tests.immunity.races import Cell
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, asking, config
from tests.kernel.test_mounts import assert_sources

pytestmark = NEEDS_CONTAINERS

LIBS = DEBIAN.libraries
COMPAT = "usr/local/cuda/compat"


def put(root: Path, name: str, target: str) -> None:
    """A link to `target` at `name`, and its parents, in place of what is there."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def compat_through_procfs(root: Path, canary: Path) -> None:
    """T-0132a: a library by way of another process's directory, and a link where it would go."""
    put(root, f"{COMPAT}/libcuda.so.999.10", f"/proc/1/cwd/{LIBS}/libother.so.1")
    put(root, f"{LIBS}/libother.so.1", "/")
    put(root, f"{LIBS}/libcuda.so.999.10", str(canary))


def compat_in_two_steps(root: Path, canary: Path) -> None:
    """T-0132b: a directory that, once mounted, would change what the next entry means."""
    put(root, f"{COMPAT}/libcuda.so.999.10", f"/{LIBS}/hop")
    put(root, f"{COMPAT}/libcuda.so.999.11", "libcuda.so.999.10/file")
    put(root, f"{LIBS}/hop", str(canary))


def compat_is_a_link(target: str) -> Callable[[Path, Path], None]:
    """T-0132c: the directory itself."""

    def spoil(root: Path, canary: Path) -> None:
        del canary
        put(root, COMPAT, target)

    return spoil


def names_are_links(root: Path, canary: Path) -> None:
    """T-0132c: every name of the driver."""
    for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libcuda.so.535.161.08"):
        put(root, f"{LIBS}/{name}", str(canary / "file"))


@pytest.mark.parametrize(
    "spoil",
    [
        compat_through_procfs,
        compat_in_two_steps,
        names_are_links,
        compat_is_a_link("../../../../../.."),
        compat_is_a_link("/"),
    ],
)
def test_files_of_the_image_are_no_sources(
    every: Starter, root: Path, canary: Path, spoil: Callable[[Path, Path], None]
) -> None:
    """Whatever the image has at CUDA's and the driver's names, each mount is the plan's."""
    spoil(root, canary)
    with host_untouched(canary), every.started(root, env=asking("0")) as container:
        assert_sources(every, container)
        table = container.exec("cat", "/proc/self/mountinfo").stdout
    assert str(canary) not in table


@pytest.mark.parametrize("target", ["/proc/1/root/run", "/proc/1/cwd"])
@pytest.mark.parametrize("place", [COMPAT, LIBS])
def test_directory_is_a_magic_link(
    either: Starter, root: Path, canary: Path, place: str, target: str
) -> None:
    """A directory that is a link of procfs is not followed: the start is refused (T-0132c)."""
    put(root, place, target)
    with (
        host_untouched(canary),
        either.prepared(root, env=(*asking("0"), f"TOKEN={SECRET}")) as container,
    ):
        assert "link" in clean_refusal(either, root, container)


PARENTS = ["usr", "usr/lib", LIBS, "usr/bin", "etc", "run/nvidia-persistenced", "usr/lib/firmware"]
TARGETS = ["{canary}", "../../../..{canary}", "/nowhere", "loop", "/proc/self/root{canary}"]


@pytest.mark.parametrize("target", some(2, TARGETS))
@pytest.mark.parametrize("place", some(4, PARENTS))
def test_parent_is_a_link(
    in_cell: Callable[[Path], Cell], work: Path, canary: Path, place: str, target: str
) -> None:
    """T-0133: each directory on the way to a target in turn leads out, nowhere or in a circle;
    files appear inside of the root or not at all."""
    tree = work / "tree"
    for name in (LIBS, "usr/bin", "etc", "run"):
        (tree / name).mkdir(parents=True)
    text = Path(place).name if target == "loop" else target.format(canary=canary)
    put(tree, place, text)
    with host_untouched(canary):
        run = in_cell(tree).run()
    assert all(Path(line.split(" ")[4]).is_relative_to(tree) for line in run.mounts)
    assert run.status == 0 or run.mounts == []


def test_link_into_a_link(in_cell: Callable[[Path], Cell], work: Path, canary: Path) -> None:
    """T-0134: a link of ours below a directory that is a link lands inside of the root."""
    tree = work / "tree"
    (tree / "usr/lib/real").mkdir(parents=True)
    (tree / "etc").mkdir()
    (tree / "etc/debian_version").touch()
    put(tree, LIBS, "../../../../usr/lib/real")
    with host_untouched(canary):
        assert in_cell(tree).run().status == 0
    link = tree / "usr/lib/real/libcuda.so.1"
    assert os.readlink(link) == "libcuda.so.535.161.08"


@pytest.mark.parametrize("text", ["", "/etc/passwd", "../../../../etc/passwd", "new\nline", "a\tb"])
def test_odd_link_text(starter: Starter, root: Path, canary: Path, text: str) -> None:
    """T-0134: a link's text is written as the plan has it, or refuses; nothing follows it."""
    link = Link(Place.ABSOLUTE, "/usr/lib/made", text)
    with host_untouched(canary), starter.prepared(root) as container:
        starter.stage_more(config(container), link)
        if not text:
            assert "No such file" in clean_refusal(starter, root, container)
            return
        container.create()
    assert os.readlink(root / "usr/lib/made") == text


def fifo(path: Path) -> None:
    """A pipe that nobody writes to."""
    os.mkfifo(path)


def device(path: Path) -> None:
    """A device that never ends."""
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


def sparse(path: Path) -> None:
    """More than any memory holds."""
    path.touch()
    os.truncate(path, 1 << 40)


def to(target: str) -> Callable[[Path], None]:
    """A link."""
    return lambda path: path.symlink_to(target)


SPOILT = [fifo, device, sparse, *map(to, ("/dev/zero", "/proc/kmsg", "/proc/kcore", "ld.so.cache"))]


@pytest.mark.parametrize("spoil", some(5, SPOILT))
def test_loader_cache_is_something_else(
    starter: Starter, root: Path, canary: Path, spoil: Callable[[Path], None]
) -> None:
    """T-23267: what is no plain file of the image is not read; the start nstarter blocks nor
    writes through it."""
    (root / "etc/ld.so.cache").unlink()
    spoil(root / "etc/ld.so.cache")
    put(root, "etc/ld.so.cache~", str(canary / "ld.so.cache"))
    put(root, "var/cache/ldconfig", str(canary))
    (root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf\ninclude /proc/kmsg\n")
    with host_untouched(canary), starter.started(root) as container:
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
    assert (root / "etc/ld.so.cache").is_file()
    assert not (root / "etc/ld.so.cache").is_symlink()


def test_monstrous_library_directory(starter: Starter, root: Path) -> None:
    """T-23267: a directory of the image's with 5,000 names is not listed, so it costs nothing."""
    for number in range(5_000):
        (root / f"{LIBS}/lib{number}.so").symlink_to("/nowhere")
    fifo(root / f"{LIBS}/libx.so")
    with starter.prepared(root) as container:
        container.create()
    assert int(starter.records()[-1][6].rpartition("mounts=")[2]) < 1_000_000


def test_secret_of_a_volume_stays_there(work: Path, starter: Starter) -> None:
    """A container's root user, mapped to nobody, cannot have the hook read a volume's file for it
    that it may not read itself, and put it into the image (R4)."""
    root = copy_image(session_image(), work / "copy", owner=MAPPED_ROOT)
    volume = work / "volume"
    volume.mkdir()
    (volume / "secret").write_text(f"/{SECRET}\n")
    (volume / "secret").chmod(0o600)
    (root / "lib/ld-musl-x86_64.so.1").touch()
    put(root, "etc/ld-musl-x86_64.path", "/volume/secret")
    (root / "volume").mkdir()
    mounts = [bind(volume, "/volume")]
    with starter.started(root, mounts=mounts, user_namespace=True) as container:
        seen = container.exec("cat", "/etc/ld-musl-x86_64.path").stdout
        denied = container.exec("cat", "/volume/secret")
    assert denied.status != 0
    assert SECRET not in seen


@pytest.mark.parametrize("kind", ["link", "file", "another device"])
def test_node_is_something_else(every: Starter, root: Path, canary: Path, kind: str) -> None:
    """T-DEV: where the image's /dev has links, files or other devices, the nodes that a container
    sees are the host's, with their numbers."""
    for name in ("null", "console", "pts", "char", "nvidia2", "nvidiactl"):
        path = root / "dev" / name
        if kind == "link":
            path.symlink_to(canary / "file")
        elif kind == "file":
            path.write_text("image")
        else:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    with host_untouched(canary), every.started(root, env=asking("0")) as container:
        seen = container.exec("stat", "-c", "%t:%T", "/dev/nvidia2", "/dev/nvidiactl").stdout
    nodes = [every.node.host.node(n) for n in ("/dev/nvidia2", "/dev/nvidiactl")]
    assert seen.split() == [f"{n.major:x}:{n.minor:x}" for n in nodes]


@pytest.mark.parametrize("kind", ["directory", "link", "tmpfs"])
def test_proc_is_something_else(
    in_cell: Callable[[Path], Cell], work: Path, canary: Path, kind: str
) -> None:
    """T-PROC: where the image's /proc is no procfs, its lookalike is not covered but refused."""
    tree = work / "tree"
    for name in (LIBS, "etc", "proc"):
        (tree / name).mkdir(parents=True)
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "none", str(tree / "proc")], check=True, timeout=9)
    if kind == "link":
        (tree / "proc").rmdir()
        (tree / "proc").symlink_to("lookalike")
        (tree / "lookalike").mkdir()
    (tree / "proc/driver").mkdir()
    with host_untouched(canary):
        run = in_cell(tree).run()
    assert "in the container is not procfs" in run.line
    assert run.mounts == []
