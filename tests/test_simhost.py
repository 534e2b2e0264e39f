"""The simulated host: what is built is what was recorded, and it goes away again."""

from __future__ import annotations

import json
import os
import platform
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrib.simhost import SimHost, SimHostError, build, load, remove, toolchain
from contrib.simhost.__main__ import main
from contrib.simhost.answers import answers_text
from contrib.simhost.numbers import assign, kernel_stand_ins, proc_devices, stand_ins
from contrib.simhost.record import NodeRecord
from contrib.simhost.tree import MARK, mig_minors

HOSTS = Path(__file__).parent / "hosts"
NAMES = sorted(p.name for p in HOSTS.iterdir() if (p / "tree.txt").is_file())
DEVICES_CGROUP = Path("/sys/fs/cgroup/devices")

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the recorded hosts are x86_64"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")

IDENTIFY = """
import ctypes, sys
for path in sys.argv[1:]:
    library = ctypes.CDLL(path)
    library.simhost_name.restype = library.simhost_version.restype = ctypes.c_char_p
    print(path, library.simhost_name().decode(), library.simhost_version().decode())
"""


@pytest.fixture
def h200(tmp_path: Path) -> Iterator[SimHost]:
    """The H200 host, built."""
    host = build(HOSTS / "h200-580", tmp_path / "root")
    yield host
    remove(host.root)


def write_host(folder: Path, tree: str, nodes: str = "") -> Path:
    """A recorded host from the texts of its two files."""
    folder.mkdir()
    (folder / "tree.txt").write_text(tree)
    (folder / "nodes.txt").write_text(nodes)
    return folder


def cached(root: Path) -> set[str]:
    """The entries of a loader cache as ldconfig prints them."""
    done = subprocess.run(
        ["/sbin/ldconfig", "-r", str(root), "-p"], capture_output=True, text=True, check=True
    )
    return {line.strip() for line in done.stdout.splitlines() if "=>" in line}


@needs_root
@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_host_builds_and_goes(name: str, tmp_path: Path) -> None:
    """Every 64-bit library loads and says which file it is; nothing is left after removal."""
    host = build(HOSTS / name, tmp_path / "root")
    paths = {str(host.root / e.path) for e in load(HOSTS / name).entries if e.kind == "library"}
    command = [sys.executable, "-c", IDENTIFY, *sorted(paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = [line.split() for line in done.stdout.splitlines()]
    assert {path for path, _, _ in said} == paths
    assert all(Path(path).name == own and v == host.version for path, own, v in said)
    remove(host.root)
    assert not host.root.exists()


@needs_root
def test_loader_cache_is_that_of_the_real_host(h200: SimHost) -> None:
    """The real ldconfig finds the driver's libraries under the names the real host recorded."""
    recorded = h200.root / "recorded"
    (recorded / "etc").mkdir(parents=True)
    (recorded / "etc/ld.so.cache").write_bytes((HOSTS / "h200-580/etc/ld.so.cache").read_bytes())
    driver = {line for line in cached(recorded) if "/usr/local/nvidia/lib64/" in line}
    assert driver == {line for line in cached(h200.root) if "/usr/local/nvidia/lib64/" in line}
    assert any(line.startswith("libcuda.so.1 (libc6,x86-64)") for line in driver)


@needs_root
def test_programs_run_and_the_script_stays_a_script(h200: SimHost) -> None:
    """nvidia-smi below /usr/local is an ELF program, that in /usr/bin is the recorded script."""
    program = h200.root / "usr/local/nvidia/bin/nvidia-debugdump"
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "nvidia-debugdump 580.159.04 (simulated)\n"
    assert (h200.root / "usr/local/nvidia/bin/nvidia-smi").read_bytes()[:4] == b"\x7fELF"
    assert (h200.root / "usr/bin/nvidia-smi").read_text().startswith("#!/bin/sh\n")
    assert (h200.root / "usr/bin/nvidia-smi").stat().st_mode & 0o111


@needs_root
def test_settings_name_the_roots(h200: SimHost) -> None:
    """The printed config has the `[host]` table that the agent needs for this root."""
    assert tomllib.loads(h200.config()) == {
        "host": {
            "driver_root": str(h200.root),
            "dev_root": str(h200.root),
            "proc_root": f"{h200.root}/proc",
            "sys_root": f"{h200.root}/sys",
            "proc_mask": "/proc/driver",
            "device_nodes": "leave",
        }
    }


@needs_root
def test_stand_ins_open_and_procfs_agrees(h200: SimHost) -> None:
    """A node with a stand-in opens for reading and writing; /proc/devices lists its major."""
    devices = (h200.root / "proc/devices").read_text()
    opened = [n for n in h200.nodes if n.stand_in]
    assert opened, "this kernel has none of the devices that can stand in"
    for node in opened:
        os.close(os.open(node.source, os.O_RDWR | os.O_NONBLOCK))
        assert f"{node.major:3d} nvidia" in devices
    assert len({(n.major, n.minor) for n in h200.nodes}) == len(h200.nodes)


@needs_root
def test_real_numbers_and_modes_are_kept(tmp_path: Path) -> None:
    """With real numbers the nodes and /proc/devices are as recorded, owner and mode too."""
    host = build(HOSTS / "l40s-lost", tmp_path / "root", real_numbers=True)
    try:
        found = os.stat(host.node("/dev/nvidia1").source)
        assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (195, 1)
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o660, 0, 44)
        recorded = (HOSTS / "l40s-lost/proc/devices").read_text()
        assert (host.root / "proc/devices").read_text() == recorded
    finally:
        remove(host.root)


@pytest.fixture
def denying_cgroup() -> Iterator[Path]:
    """A cgroup of version 1 in which no device may be used."""
    if os.geteuid() != 0 or not (DEVICES_CGROUP / "devices.deny").exists():
        pytest.skip("needs root and the devices controller of cgroup v1")
    group = DEVICES_CGROUP / f"simhost-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "devices.deny").write_text("a")
        yield group
    finally:
        group.rmdir()


def open_inside(group: Path, node: str) -> str:
    """The error that opening `node` for reading and writing gives inside the cgroup, or `ok`."""
    code = (
        "import errno, os, sys\n"
        "with open(sys.argv[1], 'w') as procs: procs.write('0')\n"
        "try: os.open(sys.argv[2], os.O_RDWR | os.O_NONBLOCK)\n"
        "except OSError as e: print(errno.errorcode[e.errno])\n"
        "else: print('ok')\n"
    )
    command = [sys.executable, "-S", "-c", code, str(group / "cgroup.procs"), node]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@needs_root
def test_stand_ins_show_the_device_rule(h200: SimHost, denying_cgroup: Path) -> None:
    """A stand-in is refused without a device rule and opens with one."""
    for node in (n for n in h200.nodes if n.stand_in):
        assert open_inside(denying_cgroup, node.source) == "EPERM"
        (denying_cgroup / "devices.allow").write_text(f"c {node.major}:{node.minor} rw")
        assert open_inside(denying_cgroup, node.source) == "ok"


def test_stand_ins_come_from_the_kernels_lists() -> None:
    """Only devices that the kernel lists are offered; kmsg only where reading it is free."""
    misc = "235 autofs\n200 tun\n229 fuse\n"
    devices = "Character devices:\n  7 vcs\n\nBlock devices:\n203 cpu/cpuid\n"
    vcs = [("vcs 0", 7, 0), ("vcs 64", 7, 64), ("vcs 128", 7, 128)]
    assert stand_ins(misc, devices, "1\n") == [("autofs", 10, 235), ("fuse", 10, 229), *vcs]
    assert stand_ins(misc, devices, "0\n")[0] == ("kmsg", 1, 11)
    assert stand_ins("", "", "") == []


def test_stand_ins_are_given_once() -> None:
    """Nodes that find none left, and capability nodes, keep their recorded number."""
    nodes = [
        NodeRecord("dev/nvidia0", 195, 0, 0o666, 0, 0),
        NodeRecord("dev/nvidia-caps/nvidia-cap1", 241, 1, 0o400, 0, 0),
        NodeRecord("dev/nvidiactl", 195, 255, 0o666, 0, 0),
    ]
    given = assign(nodes, [("fuse", 10, 229)])
    assert [(n.major, n.minor, n.stand_in) for n in given] == [
        (10, 229, "fuse"),
        (241, 1, ""),
        (195, 255, ""),
    ]


def test_proc_devices_follows_the_nodes() -> None:
    """Majors that no node has any more are replaced; lines of others and blocks stay."""
    node = NodeRecord("dev/nvidia-uvm", 238, 0, 0o666, 0, 0)
    recorded = "Character devices:\n  1 mem\n238 nvidia-uvm\n\nBlock devices:\n238 x\n"
    moved = proc_devices(recorded, assign([node], [("fuse", 10, 229)]))
    assert moved == "Character devices:\n  1 mem\n 10 nvidia-uvm\n\nBlock devices:\n238 x\n"
    assert proc_devices(recorded, assign([node], [])) == recorded


def test_kernel_offers_distinct_stand_ins() -> None:
    """No two stand-ins of the running kernel share a number."""
    numbers = [(major, minor) for _, major, minor in kernel_stand_ins()]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    ("tree", "nodes"),
    [
        ("library usr/lib/libcuda.so.1", ""),
        ("thing usr/lib/x", ""),
        ("program /usr/bin/x", ""),
        ("program usr/../../x", ""),
        ("", "dev/nvidia0 195 0666 0:0"),
        ("", "dev/nvidia0 195:0 rw 0:0"),
        ("", "/dev/nvidia0 195:0 0666 0:0"),
    ],
)
def test_a_bad_line_is_named(tree: str, nodes: str, tmp_path: Path) -> None:
    """An entry that is not understood or leaves the root is refused with its file and line."""
    with pytest.raises(SimHostError, match=r"host/(tree|nodes)\.txt:1: "):
        load(write_host(tmp_path / "host", tree, nodes))


def test_answers_say_every_slot_and_error() -> None:
    """MIG devices come with their slots, failures with their function and GPU."""
    mig = answers_text(json.loads((HOSTS / "a100-mig/nvml.json").read_text()))
    assert "slot 2\nuuid MIG-a1000316-0000-5000-8000-000000000005\ninstance 5 0\n" in mig
    lost = answers_text(json.loads((HOSTS / "l40s-lost/nvml.json").read_text()))
    assert lost.split("gpu 1\n")[1].split("gpu 2\n")[0].endswith("_v2 15\n")


def test_mig_minors_count_as_the_driver_does() -> None:
    """The table of 32 GPUs ends where the recorded host's next capability begins, at 4323."""
    lines = mig_minors(32).splitlines()
    assert lines[:4] == ["config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4"]
    assert "gpu1/gi0/access 138" in lines
    assert lines[-1] == "gpu31/gi14/ci7/access 4322"


def test_only_an_empty_place_is_built_in(tmp_path: Path) -> None:
    """A directory with something in it is left as it is."""
    (tmp_path / "precious").touch()
    with pytest.raises(SimHostError, match="not empty"):
        build(HOSTS / "no-driver", tmp_path)
    assert os.listdir(tmp_path) == ["precious"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """When an entry cannot be made, what was made before it is deleted."""
    host = write_host(tmp_path / "host", "dir a\nfirmware a/b\nfirmware a/b/c\n")
    with pytest.raises(SimHostError, match="cannot be built"):
        build(host, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_a_link_leads_nothing_out_of_the_root(tmp_path: Path) -> None:
    """An entry below a link that points outside is refused before it is written."""
    host = write_host(tmp_path / "host", f"link out {tmp_path}\nfirmware out/file\n")
    with pytest.raises(SimHostError, match="leads out of the root"):
        build(host, tmp_path / "root")
    assert not (tmp_path / "file").exists()


def test_only_a_simulated_host_is_removed(tmp_path: Path) -> None:
    """A directory without the mark is not deleted."""
    with pytest.raises(SimHostError, match="not a simulated host"):
        remove(tmp_path)
    assert tmp_path.exists()


@pytest.mark.root
@needs_root
def test_a_root_with_mounts_is_not_removed(tmp_path: Path) -> None:
    """Deleting would go through the mount into someone else's files, so it is refused."""
    root, precious = tmp_path / "root", tmp_path / "precious"
    (root / "inner").mkdir(parents=True)
    (root / MARK).touch()
    precious.mkdir()
    (precious / "file").touch()
    code = "import sys; from contrib.simhost.__main__ import main; sys.exit(main(sys.argv[1:]))"
    script = f'mount --bind "{precious}" "{root}/inner" && exec "$0" -c "{code}" remove "{root}"'
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "still mounted" in done.stderr) == (2, True)
    assert (precious / "file").exists()


def test_a_missing_tool_is_one_line() -> None:
    """Without gcc or ldconfig the error says what is missing."""
    with pytest.raises(SimHostError, match="no-such-tool: not installed"):
        toolchain.run_tool("no-such-tool")


def test_a_name_too_long_is_refused() -> None:
    """A SONAME that does not fit its place is not cut silently."""
    with pytest.raises(SimHostError, match="too long"):
        toolchain.library(toolchain.Identity("x", "1", "lib" + "x" * 200))


@needs_root
def test_the_command_builds_by_name_and_removes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`build NAME ROOT` prints a config, `remove ROOT` deletes, a second one says why not."""
    root = str(tmp_path / "root")
    assert main(["build", "no-driver", root]) == 0
    assert tomllib.loads(capsys.readouterr().out)["host"]["driver_root"] == root
    assert main(["remove", root]) == 0
    assert main(["remove", root]) == 2
    assert capsys.readouterr().err == f"simulated host: {root}: not a simulated host\n"
