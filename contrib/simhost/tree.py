"""Write a recorded host into a directory, and take it away again.

The root is marked by a file of its own; `remove` refuses a directory without that mark and one
with something mounted in it. `build` refuses a directory that is not empty.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from contrib.simhost import numbers, toolchain
from contrib.simhost.answers import answers_text
from contrib.simhost.numbers import Numbered
from contrib.simhost.record import Entry, NodeRecord, Recording, SimHostError, load
from contrib.simhost.toolchain import Identity

MARK = ".simhost"
ANSWERS = "nvml.answers"
PROC_MASK = "/proc/driver"
"""Without the nvidia module a container's procfs ends here, so the mask is laid here."""

CAPS_PER_GPU = 15
CAPS_PER_INSTANCE = 8


@dataclass(frozen=True, slots=True)
class SimNode:
    """A node that was made. `stand_in` names the device behind it, "" for a recorded number."""

    target: str
    source: str
    major: int
    minor: int
    recorded: tuple[int, int]
    stand_in: str


@dataclass(frozen=True, slots=True)
class SimHost:
    """A built host; paths are absolute. `nvml_library` is None on a host without the driver."""

    root: Path
    version: str
    nodes: tuple[SimNode, ...]
    nvml_library: Path | None

    def settings(self) -> dict[str, str]:
        """The values of the agent's `[host]` table for this host.

        Stand-ins are not the numbers that the driver would have, so the agent leaves them alone.
        """
        return {
            "driver_root": str(self.root),
            "dev_root": str(self.root),
            "proc_root": str(self.root / "proc"),
            "sys_root": str(self.root / "sys"),
            "proc_mask": PROC_MASK,
            "device_nodes": "leave" if any(n.stand_in for n in self.nodes) else "replace",
        }

    def config(self) -> str:
        """The same as the text of a config file."""
        lines = [f'{key} = "{value}"' for key, value in self.settings().items()]
        return "\n".join(["[host]", *lines, ""])

    def node(self, target: str) -> SimNode:
        """The node with that container path; raises SimHostError when there is none."""
        for node in self.nodes:
            if node.target == target:
                return node
        raise SimHostError(target, "no such node on this host")


def build(host: Path, root: Path, *, real_numbers: bool = False) -> SimHost:
    """Build the recorded `host` in the new or empty directory `root`.

    Nodes get stand-in numbers unless `real_numbers`. Raises SimHostError; leaves nothing then.
    """
    recording = load(host)
    root = root.absolute()
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise SimHostError(str(root), "not empty")
    (root / MARK).write_text(f"{host.name}\n")
    try:
        return fill(recording, root, real_numbers)
    except OSError as e:
        remove(root)
        raise SimHostError(str(root), f"cannot be built: {e}") from e
    except BaseException:
        remove(root)
        raise


def fill(recording: Recording, root: Path, real_numbers: bool) -> SimHost:
    """Everything below the marked root, in an order in which links find their directories."""
    links_first = sorted(recording.entries, key=lambda e: (e.kind != "dir", e.kind != "link"))
    nvml = None
    for entry in links_first:
        path = place(root, entry.path)
        write_entry(recording, root, entry, path)
        if entry.kind == "library" and path.name.startswith("libnvidia-ml.so"):
            nvml = path
    for relative in recording.copied():
        shutil.copy(recording.folder / relative, place(root, str(relative)))
    if recording.nvml is not None:
        (root / ANSWERS).write_text(answers_text(recording.nvml))
    available = [] if real_numbers else numbers.kernel_stand_ins()
    numbered = numbers.assign(recording.nodes, available)
    nodes = tuple(make_node(root, n) for n in numbered)
    rewrite_devices(root / "proc/devices", numbered)
    if (root / "etc/ld.so.conf").exists():
        toolchain.loader_cache(root)
    return SimHost(root, recording.version, nodes, nvml)


def place(root: Path, relative: str) -> Path:
    """The path of an entry, its parent made; refuses a parent that leads out of the root."""
    path = root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(root.resolve()):
        raise SimHostError(relative, "a link leads out of the root")
    return path


def write_entry(recording: Recording, root: Path, entry: Entry, path: Path) -> None:
    """Make what one line of `tree.txt` says."""
    identity = Identity(path.name, recording.version, entry.word, str(root / ANSWERS))
    match entry.kind:
        case "dir":
            path.mkdir(exist_ok=True)
        case "link":
            path.symlink_to(entry.word)
        case "library" if path.name.startswith("libnvidia-ml.so"):
            path.write_bytes(toolchain.nvml_library(identity))
        case "library":
            path.write_bytes(toolchain.library(identity))
        case "library32":
            path.write_bytes(toolchain.library(identity, bits=32))
        case "program":
            path.write_bytes(toolchain.program(identity))
            path.chmod(0o755)
        case "firmware":
            path.write_bytes(f"firmware {path.name} {recording.version}\n".encode())
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o666)
        case "mig-minors":
            path.write_text(mig_minors(int(entry.word)))


def mig_minors(gpus: int) -> str:
    """The driver's table of capability minors, which lists instances that do not exist too."""
    lines, minor = ["config 1", "monitor 2"], 3
    for gpu in range(gpus):
        for instance in range(CAPS_PER_GPU):
            lines.append(f"gpu{gpu}/gi{instance}/access {minor}")
            lines += [
                f"gpu{gpu}/gi{instance}/ci{ci}/access {minor + 1 + ci}"
                for ci in range(CAPS_PER_INSTANCE)
            ]
            minor += 1 + CAPS_PER_INSTANCE
    return "\n".join(lines) + "\n"


def make_node(root: Path, numbered: Numbered) -> SimNode:
    """One device node with its owner and mode; needs CAP_MKNOD."""
    record: NodeRecord = numbered.node
    path = place(root, record.path)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(numbered.major, numbered.minor))
    os.chown(path, record.uid, record.gid)
    path.chmod(record.mode)
    return SimNode(
        target=f"/{record.path}",
        source=str(path),
        major=numbered.major,
        minor=numbered.minor,
        recorded=(record.major, record.minor),
        stand_in=numbered.stand_in,
    )


def rewrite_devices(path: Path, numbered: tuple[Numbered, ...]) -> None:
    """Make the simulated /proc/devices agree with the nodes."""
    if path.exists():
        path.write_text(numbers.proc_devices(path.read_text(), numbered))


def remove(root: Path) -> None:
    """Delete a built host; raises SimHostError for anything that is not one, or is in use."""
    if not (root / MARK).is_file():
        raise SimHostError(str(root), "not a simulated host")
    inside = f"{root.resolve()}/"
    with open("/proc/self/mountinfo") as mounts:
        if used := [w[4] for w in map(str.split, mounts) if f"{w[4]}/".startswith(inside)]:
            raise SimHostError(str(root), f"still mounted: {used[0]}")
    shutil.rmtree(root)
