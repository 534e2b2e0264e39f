"""OCI runtime specs as containerd writes them, for containers of the test bench.

The shape is that of containerd's default Linux spec, in our words. `linux.resources` holds
device rules and nothing else: other controllers do not exist when cgroup v2 is emulated on a v1
host. Writes no file.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAPPED_ROOT = 100_000
"""Host user and group of root in a container with a user namespace."""

CAPABILITIES = tuple(
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID"),
        *("SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    )
)
MASKED = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True)
class Device:
    """A character device that the spec itself gives: node and permission."""

    path: str
    major: int
    minor: int


def make_spec(
    root: Path,
    args: Sequence[str],
    *,
    env: Iterable[str] = (),
    hooks: Json | None = None,
    mounts: Iterable[Json] = (),
    devices: Sequence[Device] = (),
    annotations: dict[str, str] | None = None,
    readonly: bool = False,
    user_namespace: bool = False,
) -> Json:
    """A whole spec for `args` in `root`, with a cgroup path of its own."""
    linux: Json = {
        "cgroupsPath": f"/gpu-agent-test-{uuid.uuid4().hex[:12]}",
        "namespaces": [{"type": t} for t in ("pid", "network", "ipc", "uts", "mount")],
        "resources": {"devices": [{"allow": False, "access": "rwm"}, *map(_rule, devices)]},
        "devices": [_node(d) for d in devices],
        "maskedPaths": list(MASKED),
        "readonlyPaths": list(READ_ONLY),
    }
    if user_namespace:
        linux["namespaces"].append({"type": "user"})
        mapping = [{"containerID": 0, "hostID": MAPPED_ROOT, "size": 65536}]
        linux |= {"uidMappings": mapping, "gidMappings": mapping}
    spec: Json = {
        "ociVersion": "1.0.2",
        "process": _process(args, env),
        "root": {"path": str(root), "readonly": readonly},
        "hostname": "bench",
        "mounts": [*_default_mounts(), *mounts],
        "linux": linux,
    }
    if hooks is not None:
        spec["hooks"] = hooks
    if annotations is not None:
        spec["annotations"] = annotations
    return spec


def create_hook(path: str, *args: str, env: Sequence[str] = ("LC_ALL=C",)) -> Json:
    """The `hooks` of a spec with one createRuntime hook; `args` follow the program's name."""
    hook = {"path": path, "args": [path, *args], "env": list(env), "timeout": 10}
    return {"createRuntime": [hook]}


def bind(source: Path, destination: str, *options: str) -> Json:
    """A bind mount for `mounts`."""
    kind = {"type": "bind", "source": str(source), "destination": destination}
    return {**kind, "options": ["rbind", "rprivate", *options]}


def spare_device(misc: Path = Path("/proc/misc")) -> tuple[int, int]:
    """The number of a device of this kernel that any root may open but containers may not.

    Raises LookupError where the kernel has none of those known to be harmless.
    """
    lines = (line.split() for line in misc.read_text().splitlines())
    registered = {name: minor for minor, name in lines}
    for name in ("loop-control", "autofs", "fuse", "hpet", "btrfs-control"):
        if name in registered:
            return 10, int(registered[name])
    raise LookupError("no loop-control, autofs or fuse device in this kernel")


def _process(args: Sequence[str], env: Iterable[str]) -> Json:
    sets = ("bounding", "effective", "permitted")
    return {
        "user": {"uid": 0, "gid": 0},
        "args": list(args),
        "env": [PATH, *env],
        "cwd": "/",
        "capabilities": {name: list(CAPABILITIES) for name in sets},
        "noNewPrivileges": True,
    }


def _default_mounts() -> list[Json]:
    shut = ["nosuid", "noexec", "nodev"]
    pts = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]
    return [
        _mount("/proc", "proc", "proc", shut),
        _mount("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        _mount("/dev/pts", "devpts", "devpts", pts),
        _mount("/dev/shm", "tmpfs", "shm", [*shut, "mode=1777", "size=65536k"]),
        _mount("/dev/mqueue", "mqueue", "mqueue", shut),
        _mount("/sys", "sysfs", "sysfs", [*shut, "ro"]),
        _mount("/run", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
    ]


def _mount(destination: str, kind: str, source: str, options: list[str]) -> Json:
    return {"destination": destination, "type": kind, "source": source, "options": options}


def _rule(device: Device) -> Json:
    number = {"major": device.major, "minor": device.minor}
    return {"allow": True, "type": "c", **number, "access": "rwm"}


def _node(device: Device) -> Json:
    owner = {"fileMode": 0o666, "uid": 0, "gid": 0}
    number = {"major": device.major, "minor": device.minor}
    return {"path": device.path, "type": "c", **number, **owner}
