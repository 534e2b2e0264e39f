"""Answers in words and tables for people, and as JSON for programs.

It formats and decides nothing. What the agent says may come from a container, so control
characters never reach the terminal. rich is imported only when a table is printed.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Sequence

from google.protobuf.message import Message

from agent._pb.agent.v1 import agent_pb2 as pb

_LABEL_WIDTH = 12


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2))


def as_dict(message: Message) -> dict[str, object]:
    """Every field of a message by its name; what is unset is None."""
    made: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        unset = field.has_presence and not message.HasField(field.name)
        made[field.name] = None if unset else _plain(getattr(message, field.name))
    return made


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return as_dict(value)
    if isinstance(value, str | int | float):
        return value
    assert isinstance(value, Iterable)  # a repeated field
    return [_plain(item) for item in value]


def show_status(report: pb.StatusReport) -> None:
    """`agentctl status`."""
    _line("agent", f"{report.version}, up {age(report.uptime_s)}, pid {report.pid}")
    _show_driver(report.driver)
    generation = report.generation
    _line("generation", f"{generation.id}, {age(generation.age_s)} old: {generation.why}")
    for c in report.containerds:
        _line("containerd", _containerd(c))
    _line("containers", f"{report.containers}, {report.containers_with_gpus} with GPUs")
    _line("staged", f"{report.plans_staged} plans for {report.entries_staged} containers")
    _show_replays(report.replays)
    _show_gpus(report.gpus)


def show_inventory(report: pb.InventoryReport) -> None:
    """`agentctl inventory`."""
    _line("generation", report.generation)
    _show_driver(report.driver)
    for note in report.notes:
        _line("note", note)
    _show_gpus(report.gpus)
    migs = [(str(g.index), str(m.ordinal), m.uuid, m.name) for g in report.gpus for m in g.migs]
    _table("MIG devices", ("GPU", "#", "UUID", "profile"), migs)
    nodes = [(n.name, f"{n.major}:{n.minor}", n.path) for n in report.nodes]
    _table("control nodes", ("container path", "number", "host path"), nodes)
    libraries = [(f.name, f.soname, f.machine, f.path) for f in report.libraries]
    _table("libraries", ("name", "SONAME", "machine", "host path"), libraries)
    for title, files in (
        ("programs", report.programs),
        ("files", report.files),
        ("sockets", report.ipc),
    ):
        _table(title, ("name", "host path"), [(f.name, f.path) for f in files])


def show_containers(report: pb.ContainersReport) -> None:
    """`agentctl containers`."""
    if not report.containers:
        print("no containers")
    rows = [
        (c.namespace, c.id, c.verdict, ", ".join(c.devices), _outcome(c), c.address)
        for c in report.containers
    ]
    _table("", ("namespace", "id", "verdict", "devices", "replay", "containerd"), rows)


def show_plan(report: pb.PlanReport) -> None:
    """`agentctl plan`."""
    _line("plan", report.plan)
    _line("generation", f"{report.generation}, driver {report.driver_version}")
    _line("devices", ", ".join(report.devices) or "none")
    _line("capabilities", ", ".join(report.capabilities) or "none")
    for number, step in enumerate(report.steps, 1):
        print(f"{number:>4}  {clean(step)}")


def show_container(report: pb.ContainerReport) -> None:
    """`agentctl explain`."""
    _line("container", f"{report.namespace}/{report.id}")
    _line("containerd", report.address)
    _line("verdict", report.verdict)
    _line("why", report.why)
    if report.devices or report.capabilities:
        _line("devices", ", ".join(report.devices) or "none")
        _line("capabilities", ", ".join(report.capabilities) or "none")
    _line("generation", report.generation)
    if report.HasField("plan"):
        _line("plan", report.plan)
    if report.HasField("replay"):
        replay = report.replay
        when = age(max(time.time() - replay.at, 0.0))
        _line("replay", f"{_outcome(report)}, {when} ago")
        _line("phases", _phases(replay.phases))
    else:
        _line("replay", "none yet")


def age(seconds: float) -> str:
    """A length of time, in the two largest units."""
    total = int(seconds)
    days, hours, minutes = total // 86400, total // 3600 % 24, total // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {total % 60} s"
    return f"{seconds:.1f} s"


def clean(text: str) -> str:
    """`text` with nothing in it that a terminal acts on."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _line(label: str, text: str) -> None:
    print(f"{label:<{_LABEL_WIDTH}}  {clean(text)}")


def _show_driver(driver: pb.DriverReport) -> None:
    kernel, user = driver.kernel_version or "none", driver.user_version or "none"
    cuda = f", CUDA {driver.cuda_version}" if driver.cuda_version else ""
    reason = f": {driver.reason}" if driver.reason else ""
    _line("driver", f"{driver.state}, kernel {kernel}, user space {user}{cuda}{reason}")


def _containerd(report: pb.ContainerdReport) -> str:
    if not report.connected:
        reason = report.last_error or "not connected yet"
        return f"{report.address}: not connected for {age(report.since_s)}: {reason}"
    last = f", last {age(report.last_event_age_s)} ago" if report.events else ""
    version = f"{report.version}, " if report.version else ""
    error = f", last error: {report.last_error}" if report.last_error else ""
    return (
        f"{report.address}: {version}connected {age(report.since_s)}, "
        f"{report.events} events{last}{error}"
    )


def _show_replays(replays: pb.ReplaySummary) -> None:
    kinds = ("staged", "asked", "standalone", "none")
    counts = ", ".join(f"{getattr(replays, kind)} {kind}" for kind in kinds)
    _line("replays", f"{replays.count}: {counts}; {replays.failures} failed")
    if replays.HasField("median_ms"):
        _line("times", f"median {replays.median_ms:.1f} ms, p99 {replays.p99_ms:.1f} ms")
        _line("phases", f"median {_phases(replays.phases)}")
        _line("", f"p99 {_phases(replays.phases_p99)}")
        _line("slowest", replays.slowest)
    if replays.HasField("last_failure"):
        _line("last failure", replays.last_failure)


def _phases(phases: Iterable[pb.Phase]) -> str:
    return ", ".join(f"{p.name} {p.ms:.2f} ms" for p in phases) or "none recorded"


def _outcome(report: pb.ContainerReport) -> str:
    if not report.HasField("replay"):
        return ""
    replay = report.replay
    if not replay.ok:
        return f"failed: {replay.error}"
    return f"{replay.path}, {replay.total_ms:.1f} ms"


def _show_gpus(gpus: Sequence[pb.GpuReport]) -> None:
    if not gpus:
        _line("GPUs", "none")
    rows = [(str(g.index), str(g.minor), g.uuid, g.bus_id, g.name, g.health) for g in gpus]
    _table("", ("index", "minor", "UUID", "bus id", "name", "health"), rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, or nothing where it would be empty; never cut when it goes to a file."""
    if not rows:
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(clean(cell) for cell in row))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
    Console(width=width, markup=False, highlight=False, emoji=False).print(table)
