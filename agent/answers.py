"""agentctl's questions, answered from the reconciler and the replay log; changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from importlib.metadata import version

from agent.containerd.values import ContainerKey
from agent.errors import DriverNotReady, Refused
from agent.inventory import GROUP_NOTE, Inventory
from agent.plan import digest, encode
from agent.reconcile import Reconciler
from agent.replaylog import ReplayLog
from agent.replays import summarise
from agent.report import (
    ContainerdReport,
    ContainerReport,
    GenerationReport,
    PlanReport,
    StatusReport,
    container_name,
    driver_report,
    find_container,
    gpu_reports,
    plan_report,
)
from agent.request import Request, ask
from agent.tracked import Connection, Tracked


class Answers:
    """`agent.control.Source` over the living state."""

    def __init__(self, reconciler: Reconciler, replays: ReplayLog) -> None:
        self._state = reconciler
        self._replays = replays
        self._started = time.monotonic()

    async def status(self) -> StatusReport:
        """The whole agent at this moment."""
        inventory = self._inventory()
        self._replays.read()
        state = self._state
        return StatusReport(
            version=version("gpu-agent"),
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._started,
            driver=driver_report(inventory),
            generation=GenerationReport(
                inventory.generation, time.time() - state.changed_at, state.change_reason
            ),
            gpus=gpu_reports(inventory),
            containerds=tuple(_connection(c) for c in state.connections.values()),
            containers=len(state.containers),
            containers_with_gpus=sum(t.verdict == "plan" for t in state.containers.values()),
            plans_staged=len(state.stage.plans()),
            entries_staged=len(state.stage.entries()),
            replays=summarise(self._replays.records),
        )

    async def inventory(self) -> Inventory:
        """The current inventory."""
        return self._inventory()

    async def containers(self) -> Sequence[ContainerReport]:
        """Every container known, those without a GPU too."""
        self._replays.read()
        return [self._container(t) for _, t in sorted(self._state.containers.items())]

    async def plan(self, devices: Sequence[str], capabilities: Sequence[str]) -> PlanReport:
        """The plan such a request would get; nothing is staged."""
        request = ask(",".join(devices), ",".join(capabilities), self._state.policy, "agentctl")
        if request is None:
            raise Refused("no plan: this asks for no GPU")
        return self._planned(request)

    async def plan_of(self, container: str) -> PlanReport:
        """The plan of an existing container."""
        report = find_container(container, await self.containers())
        tracked = self._state.containers[ContainerKey(report.address, report.namespace, report.id)]
        if tracked.verdict != "plan" or tracked.reading is None or tracked.reading.request is None:
            raise Refused(f"no plan: {container_name(report)}: {tracked.why}")
        return self._planned(tracked.reading.request)

    async def explain(self, container: str) -> ContainerReport:
        """Why a container got what it got, or nothing."""
        return find_container(container, await self.containers())

    def _planned(self, request: Request) -> PlanReport:
        made = self._state.planned(request)
        return plan_report(made, digest(encode(made)), request)

    def _inventory(self) -> Inventory:
        if self._state.inventory is None:
            raise DriverNotReady("starting", "the agent has not read the host yet")
        return self._state.inventory

    def _container(self, tracked: Tracked) -> ContainerReport:
        request = tracked.reading.request if tracked.reading else None
        inventory = self._state.inventory
        return ContainerReport(
            address=tracked.key.address,
            namespace=tracked.key.namespace,
            id=tracked.key.id,
            verdict=tracked.verdict,
            why=self._why(tracked),
            generation=inventory.generation if inventory else "",
            devices=request.devices if request else (),
            capabilities=tuple(map(str, request.capabilities)) if request else (),
            plan=tracked.plan,
            replay=self._replays.by_spec.get(tracked.spec_digest),
        )

    def _why(self, tracked: Tracked) -> str:
        parts = [tracked.why]
        if tracked.verdict == "plan" and tracked.reading and tracked.reading.user:
            notes = self._state.inventory.notes if self._state.inventory else ()
            parts += [note for note in notes if note.startswith(GROUP_NOTE)]
        if self._state.trouble:
            parts.append(f"run directory: {self._state.trouble}")
        return "; ".join(parts)


def _connection(connection: Connection) -> ContainerdReport:
    now = time.monotonic()
    last = connection.last_event
    return ContainerdReport(
        address=connection.address,
        connected=connection.connected,
        version=connection.version,
        since_s=now - connection.since,
        events=connection.events,
        last_event_age_s=None if last is None else now - last,
        last_error=connection.error,
    )
