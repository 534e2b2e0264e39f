"""What the container's mount table and file tree show after a start."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.plan import Link, Place
from tests.containers.image import DEBIAN, LIB64, copy_image, session_image
from tests.containers.runc import Container
from tests.containers.spec import MAPPED_ROOT
from tests.containers.workdir import overlay_root, unmount_below
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, asking, build_old_kernel, config
from tests.kernel.trees import host_mounts, placed

pytestmark = NEEDS_CONTAINERS

MASK = "/proc/driver"
CACHE = "etc/ld.so.cache"


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of a mount table; `shared` is its propagation, empty for private."""

    device: str
    source: str
    options: frozenset[str]
    shared: tuple[str, ...]


def mounts(container: Container) -> dict[str, Mount]:
    """The container's mount table by mount point."""
    found = {}
    for line in container.exec("cat", "/proc/self/mountinfo").stdout.splitlines():
        words = line.split(" ")
        optional = tuple(words[6 : words.index("-")])
        found[words[4]] = Mount(words[2], words[3], frozenset(words[5].split(",")), optional)
    return found


def assert_sources(starter: Starter, container: Container, libs: str = DEBIAN.libraries) -> None:
    """Each of the plan's files is mounted from its source with its flags, private."""
    plan = starter.node.stage_spec(config(container))
    assert plan is not None
    seen = mounts(container)
    expected = placed(plan, libs)
    assert len(expected) > 20
    for target, (source, options) in expected.items():
        # The image's /lib leads to /usr/lib.
        mount = seen.get(target) or seen[f"/usr{target}"]
        device = os.stat(source).st_dev
        assert mount.device == f"{os.major(device)}:{os.minor(device)}", target
        assert source.endswith(mount.source), target
        assert set(options.split(",")) <= mount.options, target
        assert mount.shared == (), target


def test_mounts_come_from_the_plan(either: Starter, root: Path) -> None:
    """Every mount that a GPU adds is one of the plan's, with its flags, private; the host has
    none of them."""
    before = host_mounts()
    with either.started(root, env=()) as plain:
        usual = set(mounts(plain))
    with either.started(root, env=asking("0")) as container:
        assert_sources(either, container)
        plan = either.node.stage_spec(config(container))
        assert plan is not None
        added = {p.removeprefix("/usr/lib/firmware") for p in set(mounts(container)) - usual}
        known = {p.removeprefix("/lib/firmware") for p in placed(plan, DEBIAN.libraries)}
        gpu = f"{MASK}/nvidia/gpus/00000000:07:00.0"
        assert added - known == {MASK, gpu}
        assert host_mounts() == before


def test_kernel_before_open_tree_attr(starter: Starter, root: Path, tmp_path: Path) -> None:
    """Before Linux 6.15 a mount's flags take a call of their own, and are the same."""
    launcher = build_old_kernel(tmp_path / "before-6.15", "-DABSENT=467")
    older = Starter(starter.work, starter.node, (str(launcher),))
    with older.started(root, env=asking("0")) as container:
        assert_sources(older, container)


def test_links_are_there(either: Starter, root: Path) -> None:
    """Every link of the plan exists in the container with the plan's text."""
    with either.started(root) as container:
        plan = either.node.stage_spec(config(container))
        assert plan is not None
        links = [s for s in plan.steps if isinstance(s, Link) and s.place is Place.LIBS]
        assert len(links) > 10
        paths = [f"/{DEBIAN.libraries}/{link.target}" for link in links]
        texts = [container.exec("readlink", path).stdout.strip() for path in paths]
    assert texts == [link.points_to for link in links]


def test_only_the_own_gpu_in_procfs(either: Starter, root: Path) -> None:
    """The mask shows the driver's version, the own GPU, and parameters that stop the driver's
    libraries from making nodes; it cannot be written."""
    with either.started(root, env=asking("0")) as container:
        below = f"{MASK}/nvidia"
        assert container.exec("ls", f"{below}/gpus").stdout.split() == ["00000000:07:00.0"]
        information = container.exec("cat", f"{below}/gpus/00000000:07:00.0/information").stdout
        assert "Device Minor: \t 2" in information
        assert "ModifyDeviceFiles: 0" in container.exec("cat", f"{below}/params").stdout
        version = container.exec("cat", f"{below}/version").stdout
        assert version == (either.node.host.root / "proc/driver/nvidia/version").read_text()
        assert "Read-only" in container.exec("touch", f"{below}/made").stderr
        mask = mounts(container)[MASK]
    assert {"ro", "nosuid", "nodev", "noexec"} <= mask.options
    assert mask.shared == ()


def test_firmware_and_sockets(either: Starter, root: Path) -> None:
    """Firmware and the daemons' sockets are where programs look for them."""
    with either.started(root) as container:
        firmware = container.exec("cat", "/lib/firmware/nvidia/535.161.08/gsp_ga10x.bin").stdout
        assert firmware == "firmware gsp_ga10x.bin 535.161.08\n"
        kinds = container.exec("stat", "-c", "%F", "/run/nvidia-persistenced/socket").stdout
        assert kinds == "socket\n"
        assert container.exec("nvidia-smi").status == 0


def test_injected_files_cannot_be_written(either: Starter, root: Path) -> None:
    """The host's files are read-only in the container, whoever asks."""
    with either.started(root) as container:
        written = container.exec("sh", "-c", ": >/usr/bin/nvidia-smi")
    assert "Read-only file system" in written.stderr


def test_read_only_container(either: Starter, root: Path) -> None:
    """`root.readonly` changes nothing: the runtime makes the root read-only after the hook."""
    with either.started(root, readonly=True) as container:
        assert_sources(either, container)
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
        assert "Read-only" in container.exec("touch", "/made").stderr


def test_user_namespace(either: Starter, work: Path) -> None:
    """With a user namespace everything is there too, and what is made belongs to its root."""
    root = copy_image(session_image(), work / "root", owner=MAPPED_ROOT)
    with either.started(root, user_namespace=True) as container:
        assert_sources(either, container)
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
        opened = container.exec("probe-open", "/dev/nvidiactl").stdout
        assert opened == "/dev/nvidiactl ok\n"
    made = [root / CACHE, root / DEBIAN.libraries / "libcuda.so.1", root / "usr/lib/firmware"]
    assert {path.lstat().st_uid for path in made} == {MAPPED_ROOT}


@contextmanager
def read_only_mount(source: Path, target: Path) -> Iterator[Path]:
    """`source`, mounted read-only at `target`."""
    target.mkdir()
    subprocess.run(["mount", "--bind", str(source), str(target)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)
        yield target
    finally:
        unmount_below(target)


def used_root(starter: Starter, root: Path, **options: bool) -> None:
    """Start a container in `root` once, so that it has every mount point, then put its old
    loader cache back."""
    old = (root / CACHE).read_bytes()
    with starter.started(root, **options):
        pass
    assert (root / CACHE).read_bytes() != old
    (root / CACHE).write_bytes(old)


def test_root_on_a_read_only_mount(either: Starter, work: Path, root: Path) -> None:
    """A root that cannot be written gets its loader cache as a mount; no file of it is left in
    the run directory."""
    used_root(either, root)
    with (
        read_only_mount(root, work / "ro") as shut,
        either.started(shut, readonly=True) as container,
    ):
        assert_sources(either, container)
        assert {"ro", "nosuid", "nodev"} <= mounts(container)[f"/{CACHE}"].options
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
    assert not [p for p in either.node.run_dir.iterdir() if p.name.startswith(".")]


def test_read_only_mount_in_a_user_namespace(either: Starter, work: Path) -> None:
    """The same in a user namespace, whose root may not write the run directory."""
    root = copy_image(session_image(), work / "root", owner=MAPPED_ROOT)
    used_root(either, root, user_namespace=True)
    with (
        read_only_mount(root, work / "ro") as shut,
        either.started(shut, readonly=True, user_namespace=True) as container,
    ):
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0


def test_lib64_layout(either: Starter, work: Path) -> None:
    """Without Debian's mark the files go to lib64, and no directory of Debian's appears."""
    with overlay_root(session_image(LIB64), work / "layers64") as root:
        with either.started(root) as container:
            assert_sources(either, container, LIB64.libraries)
        assert not (root / DEBIAN.libraries).exists()


def test_unmerged_image(either: Starter, root: Path) -> None:
    """Where /lib is a directory of its own, the firmware goes there."""
    (root / "lib").unlink()
    (root / "lib").mkdir()
    with either.started(root) as container:
        assert_sources(either, container)
        assert (root / "lib/firmware/nvidia").is_dir()
        assert not (root / "usr/lib/firmware").exists()
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0


def test_runtime_with_a_strict_umask(starter: Starter, root: Path, work: Path) -> None:
    """What the hook makes can be read by every user of the container, whatever the umask."""
    hooks = starter.hooks()
    entry = hooks["createRuntime"][0]
    entry["args"] = ["sh", "-c", 'umask 077; exec "$@"', "sh", *entry["args"]]
    entry["path"] = "/bin/sh"
    with starter.started(root, hooks=hooks):
        assert (root / "usr/lib/firmware").stat().st_mode & 0o777 == 0o755
        assert (root / CACHE).stat().st_mode & 0o777 == 0o644
    shutil.copyfile(session_image() / CACHE, root / CACHE)
    with (
        read_only_mount(root, work / "ro") as shut,
        starter.started(shut, readonly=True, hooks=hooks) as container,
    ):
        assert container.exec("stat", "-c", "%a", f"/{CACHE}").stdout == "644\n"
