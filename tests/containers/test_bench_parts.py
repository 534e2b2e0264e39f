"""The test bench itself: real containers run in it, and it leaves nothing behind."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.cgroup2 import device_programs, in_cgroup2, is_unified, rerun_unified
from tests.containers.image import (
    DEBIAN,
    LIB64,
    build_image,
    copy_image,
    missing_tools,
    session_image,
)
from tests.containers.runc import Container
from tests.containers.spec import MAPPED_ROOT, Device, bind, create_hook, make_spec, spare_device
from tests.containers.workdir import mounts_below, overlay_root, unmount_below, work_dir

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="containers need root"),
    pytest.mark.skipif(bool(missing_tools()), reason=missing_tools() or "all there"),
]


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory that may hold mounts."""
    with work_dir() as path:
        yield path


@pytest.fixture
def root(work: Path) -> Path:
    """A private copy of the image."""
    return copy_image(session_image(), work / "root")


def make_node(path: Path, number: tuple[int, int]) -> Path:
    """A character device node on the host."""
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(*number))
    return path


def test_run_gives_output_and_status(work: Path, root: Path) -> None:
    """`run` waits for the process and returns its output, environment and exit status."""
    script = 'echo "$ASKED"; echo talk >&2; exit 3'
    spec = make_spec(root, ["sh", "-c", script], env=["ASKED=all"])
    with Container(work, spec) as container:
        outcome = container.run()
    assert (outcome.status, outcome.stdout, outcome.stderr) == (3, "all\n", "talk\n")


def test_exec_in_started_container(work: Path, root: Path) -> None:
    """A created and started container runs further commands beside its first process."""
    with Container(work, make_spec(root, ["sleep", "60"])) as container:
        container.create()
        container.start()
        assert container.exec("cat", "/proc/1/comm").stdout == "sleep\n"
        assert container.exec("false").status == 1


def test_probe_dlopen_names_the_file(work: Path, root: Path) -> None:
    """The loader's choice is printed, and a library that is not there is an error."""
    probe = ["probe-dlopen", "libm.so.6", "libc.so.6=gnu_get_libc_version", "libno.so"]
    with Container(work, make_spec(root, probe)) as container:
        outcome = container.run()
    math, libc, absent = outcome.stdout.splitlines()
    assert math.split()[1].endswith(f"{DEBIAN.libraries}/libm.so.6")
    assert f"glibc {libc.split()[2]}" == os.confstr("CS_GNU_LIBC_VERSION")
    assert absent.startswith("libno.so error: ")
    assert outcome.status == 1


def test_image_with_lib64_layout(work: Path) -> None:
    """The other layout runs dynamic programs too, and fillers are in its loader cache."""
    root = build_image(work / "root", LIB64, fillers=3)
    probe = ["probe-dlopen", "libfiller0002.so.1=gpu_agent_filler:int"]
    with Container(work, make_spec(root, probe)) as container:
        assert container.run().stdout.split()[1:] == ["/usr/lib64/libfiller0002.so.1", "0"]


def test_refused_device_says_eperm(work: Path, root: Path) -> None:
    """A node whose number has no rule is refused by the cgroup, one of the spec opens."""
    number = spare_device()
    node = make_node(work / "node", number)
    probe = ["probe-open", "/dev/bound", "/dev/null", "-r", "/etc/none"]
    spec = make_spec(root, probe, mounts=[bind(node, "/dev/bound")])
    with Container(work, spec) as container:
        outcome = container.run()
    assert outcome.stdout.splitlines() == ["/dev/bound EPERM", "/dev/null ok", "/etc/none ENOENT"]
    allowed = make_spec(root, ["probe-open", "/dev/given"], devices=[Device("/dev/given", *number)])
    with Container(work, allowed) as container:
        assert container.run().stdout == "/dev/given ok\n"


def test_user_namespace(work: Path) -> None:
    """With a user namespace the container's root is the mapped one and may write its root."""
    root = copy_image(session_image(), work / "root", owner=MAPPED_ROOT)
    spec = make_spec(root, ["sh", "-c", "id -u; touch /made"], user_namespace=True)
    with Container(work, spec) as container:
        outcome = container.run()
    assert (outcome.status, outcome.stdout) == (0, "0\n"), outcome.stderr
    assert (root / "made").stat().st_uid == MAPPED_ROOT


def test_read_only_root(work: Path, root: Path) -> None:
    """A read-only root cannot be written from inside."""
    spec = make_spec(root, ["touch", "/made"], readonly=True)
    with Container(work, spec) as container:
        assert "Read-only file system" in container.run().stderr


def test_overlay_leaves_image_alone(work: Path) -> None:
    """What a container writes into an overlay is gone with it; the image never changes."""
    with overlay_root(session_image(), work / "overlay") as root:
        with Container(work, make_spec(root, ["touch", "/made"])) as container:
            assert container.run().status == 0
        assert (root / "made").exists()
    assert not (session_image() / "made").exists()
    assert not (work / "overlay").exists()


def test_hook_gets_state_and_bundle_like_containerd(work: Path, root: Path) -> None:
    """A create hook runs on the host, and its bundle path ends in namespace and id."""
    hooks = create_hook("/bin/sh", "-c", f"cat >{work}/state; pwd >{work}/where")
    with Container(work, make_spec(root, ["true"], hooks=hooks)) as container:
        container.create()
        where = (work / "where").read_text().strip()
        assert f'"pid":{container.pid}' in (work / "state").read_text()
    assert where.endswith(f"/io.containerd.runtime.v2.task/test/{container.name}")


def test_failed_hook_leaves_nothing(work: Path, root: Path) -> None:
    """A hook that fails makes `create` fail with its words; no cgroup and no state remain."""
    hooks = create_hook("/bin/sh", "-c", "echo no GPU >&2; exit 1")
    with Container(work, make_spec(root, ["true"], hooks=hooks)) as container:
        outcome = container.create(check=False)
        assert outcome.status
        assert "no GPU" in outcome.stderr
    assert container.cgroups() == []
    assert list((work / "runc/test").iterdir()) == []


def test_container_is_gone_after_an_error(work: Path, root: Path) -> None:
    """A test that fails while its container runs leaves no process and no cgroup."""

    def fail_inside() -> None:
        with container:
            container.create()
            container.start()
            pids.append(container.pid)
            assert container.cgroups()
            raise LookupError

    pids: list[int] = []
    container = Container(work, make_spec(root, ["sleep", "60"]))
    with pytest.raises(LookupError):
        fail_inside()
    assert container.cgroups() == []
    assert not os.path.exists(f"/proc/{pids[0]}/exe")


def test_cgroups_are_emptied_without_runc(work: Path, root: Path) -> None:
    """Where runc has lost its state, the processes are killed and the cgroups removed all the
    same."""
    with Container(work, make_spec(root, ["sleep", "60"])) as container:
        container.create()
        container.start()
        state = work / "runc/test" / container.name
        (state / "state.json").unlink()
    assert container.cgroups() == []


def test_leaked_bind_mount_is_not_deleted_through(work: Path) -> None:
    """The host's files survive when a bind mount of them is left below a work directory."""
    kept = work / "host"
    kept.mkdir()
    (kept / "file").touch()
    with work_dir() as inner:
        (inner / "leak").mkdir()
        subprocess.run(["mount", "--bind", str(kept), str(inner / "leak")], check=True)
        assert mounts_below(inner) == [str(inner / "leak")]
    assert (kept / "file").exists()
    assert not inner.exists()
    unmount_below(work)


@in_cgroup2
def test_unified_mode_filters_by_bpf(work: Path, root: Path) -> None:
    """In v2 mode runc's device rules are one BPF program, and it refuses what has no rule."""
    assert is_unified()
    node = make_node(work / "node", spare_device())
    spec = make_spec(root, ["sleep", "60"], mounts=[bind(node, "/dev/bound")])
    with Container(work, spec) as container:
        container.create()
        container.start()
        assert len(device_programs(container.cgroups()[0])) == 1
        assert container.exec("probe-open", "/dev/bound").stdout == "/dev/bound EPERM\n"


def test_failure_in_unified_mode_is_a_failure(work: Path) -> None:
    """A test that fails in the private namespace fails here, with its output."""
    planted = work / "test_planted.py"
    planted.write_text("def test_it() -> None:\n    assert 1 == 2\n")
    with pytest.raises(pytest.fail.Exception, match="1 failed"):
        rerun_unified(f"{planted}::test_it")


def test_skip_in_unified_mode_is_a_skip(work: Path) -> None:
    """A test that is skipped in the private namespace is not counted as passed."""
    planted = work / "test_planted.py"
    planted.write_text("import pytest\n\ndef test_it() -> None:\n    pytest.skip('not now')\n")
    with pytest.raises(pytest.skip.Exception, match="not now"):
        rerun_unified(f"{planted}::test_it")
