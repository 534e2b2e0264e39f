"""A small source of answers for the control API's tests: fixed values, and errors on demand."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence

import anyio
from anyio.from_thread import start_blocking_portal

from agent import control
from agent.errors import UnknownGpu
from agent.facts.values import DataFact, FileId, IpcFact, LibraryFact, NodeFact, ProgramFact
from agent.inventory import DriverState, Gpu, Inventory, Mig
from agent.replays import ReplayPath, ReplayRecord, summarise
from agent.report import (
    ContainerdReport,
    ContainerReport,
    GenerationReport,
    PlanReport,
    StatusReport,
    driver_report,
    find_container,
    gpu_reports,
)

SOCKET = "/run/containerd/containerd.sock"
UUID = "GPU-11111111-2222-3333-4444-555555555555"
MIG = "MIG-66666666-7777-8888-9999-000000000000"


def file(path: str) -> FileId:
    """A host file of no importance but its path."""
    return FileId(path, 1, 2, 3, 4)


def node(name: str, major: int, minor: int) -> NodeFact:
    """A node of /dev on the host's own root."""
    return NodeFact(f"/dev/{name}", f"/dev/{name}", major, minor, 0o666, 0, 0)


INVENTORY = Inventory(
    generation="0123456789abcdef",
    state=DriverState.READY,
    reason=None,
    driver_version="580.1",
    user_version="580.1",
    cuda_version=(13, 0),
    version_text="NVRM version: 580.1\n",
    gpus=(
        Gpu(
            0,
            3,
            UUID,
            "0000:3b:00.0",
            "NVIDIA H200",
            "Nvidia",
            (9, 0),
            node("nvidia3", 195, 3),
            True,
            (Mig(0, MIG, 1, 0, "1g.18gb", None, None),),
            None,
        ),
        Gpu(
            1,
            0,
            UUID.replace("1", "a"),
            "0000:5e:00.0",
            None,
            None,
            None,
            None,
            False,
            (),
            "the GPU is lost",
        ),
    ),
    libraries=(
        LibraryFact("libcuda.so.580.1", "libcuda.so.1", "x86_64", file("/usr/lib/libcuda.so")),
        LibraryFact("libodd\udcff.so.580.1", None, "i386", file("/usr/lib32/libodd\udcff.so")),
    ),
    programs=(ProgramFact("nvidia-smi", file("/usr/bin/nvidia-smi")),),
    firmware=(DataFact("/lib/firmware/gsp.bin", file("/lib/firmware/gsp.bin")),),
    ipc=(IpcFact("/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket", "socket"),),
    control=(node("nvidiactl", 195, 255),),
    proc_files=(("version", "NVRM"),),
    notes=("libodd is in no class: compute",),
)

REPLAYED = ReplayRecord(
    "default/one", True, ReplayPath.STAGED, 12.5, (("find", 0.5), ("mount", 9.0)), None, 1000.0
)
FAILED = ReplayRecord("k8s.io/two", False, ReplayPath.ASKED, 3.0, (), "driver replaced", 2000.0)

CONTAINERS = (
    ContainerReport(
        SOCKET,
        "default",
        "one",
        "plan",
        "NVIDIA_VISIBLE_DEVICES asks for all",
        "0123456789abcdef",
        ("all",),
        ("compute", "utility"),
        "d1" * 16,
        REPLAYED,
    ),
    ContainerReport(
        SOCKET,
        "k8s.io",
        "two",
        "refuse",
        "no such GPU: 7",
        "0123456789abcdef",
        ("7",),
        replay=FAILED,
    ),
    ContainerReport(SOCKET, "k8s.io", "one", "none", "\x1b[31mnot set", "0123456789abcdef"),
)

STATUS = StatusReport(
    version="0.1.0",
    pid=42,
    uptime_s=3700.0,
    driver=driver_report(INVENTORY),
    generation=GenerationReport("0123456789abcdef", 61.0, "agent started"),
    gpus=gpu_reports(INVENTORY),
    containerds=(
        ContainerdReport(SOCKET, True, "1.6.20", 60.0, 7, 1.5, None),
        ContainerdReport("/run/k3s/c.sock", False, None, 5.0, 0, None, "no such socket"),
    ),
    containers=3,
    containers_with_gpus=1,
    plans_staged=1,
    entries_staged=3,
    replays=summarise((REPLAYED, FAILED)),
)


class FakeSource:
    """Answers with the values above; `asked` records the plans that were asked for.

    The device `bug` makes it fail as no source should, `wait` never answers.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    async def status(self) -> StatusReport:
        return STATUS

    async def inventory(self) -> Inventory:
        return INVENTORY

    async def containers(self) -> Sequence[ContainerReport]:
        return CONTAINERS

    async def plan(self, devices: Sequence[str], capabilities: Sequence[str]) -> PlanReport:
        self.asked.append((tuple(devices), tuple(capabilities)))
        if "bug" in devices:
            raise ZeroDivisionError("secret")
        if "wait" in devices:
            await anyio.sleep_forever()
        if "7" in devices:
            raise UnknownGpu(["7"], [UUID])
        return PlanReport(
            "d1" * 16,
            "0123456789abcdef",
            "580.1",
            tuple(devices),
            tuple(capabilities),
            ("bind /dev/nvidia3 on /dev/nvidia3", "link <libs>/libcuda.so -> libcuda.so.1"),
        )

    async def plan_of(self, container: str) -> PlanReport:
        found = find_container(container, CONTAINERS)
        return await self.plan(found.devices, found.capabilities)

    async def explain(self, container: str) -> ContainerReport:
        return find_container(container, CONTAINERS)


@contextlib.contextmanager
def run_directory() -> Iterator[str]:
    """A run directory with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ga-", dir="/tmp") as path:
        yield path


@contextlib.contextmanager
def running(source: control.Source, run_dir: str) -> Iterator[str]:
    """A real control server in a thread of its own while inside; gives its socket's path."""

    @contextlib.asynccontextmanager
    async def server() -> AsyncIterator[str]:
        async with control.serving(run_dir, source) as path:
            yield path

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(server()) as path:
        yield path
