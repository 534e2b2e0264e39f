"""The plans of the inventory in force: one a request, made once, shared by its containers.

It publishes plans through the stage and takes back those that nobody uses. What a container's
entry says is not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from agent.errors import Refused
from agent.inventory import DriverState, Inventory
from agent.plan import Plan
from agent.planner import ProcPaths, plan
from agent.policy import Policy
from agent.request import DEFAULT_CAPABILITIES, Request
from agent.stage import Stage

PLANS_KEPT = 500
"""Plans after which those that no container uses are dropped."""


class Shelf:
    """Published plans by request. `in_use` gives the digests that containers' entries name."""

    def __init__(
        self, stage: Stage, proc: ProcPaths, in_use: Callable[[], Collection[str]]
    ) -> None:
        self._stage = stage
        self._proc = proc
        self._in_use = in_use
        self._plans: dict[Request, tuple[str, Plan]] = {}

    def clear(self) -> None:
        """Forget every plan: the inventory is another one."""
        self._plans.clear()

    def names(self) -> frozenset[str]:
        """The digests of the plans in here."""
        return frozenset(name for name, _ in self._plans.values())

    def planned(self, inventory: Inventory, request: Request) -> Plan:
        """The plan for a request, not published. Raises what the planner raises."""
        found = self._plans.get(request)
        return found[1] if found else plan(inventory, request, self._proc)

    def staged(self, inventory: Inventory, request: Request) -> str:
        """The digest of the plan for a request, published; raises StageError too."""
        found = self._plans.get(request)
        # Who looks for it may have found that it is gone, so it is looked for.
        if found is not None and self._stage.has_plan(found[0]):
            return found[0]
        made = self.planned(inventory, request)
        name = self._stage.put_plan(made)
        self._plans[request] = (name, made)
        if len(self._plans) > PLANS_KEPT:
            self._drop({name, *self._in_use()})
        return name

    def prepare(self, inventory: Inventory, policy: Policy) -> None:
        """Plans for the requests that nearly every container makes, before one exists."""
        if inventory.state is not DriverState.READY:
            return
        usual = policy.bounded(DEFAULT_CAPABILITIES)
        base = Request(("all",), usual, "NVIDIA_VISIBLE_DEVICES", opt_out=policy.opt_out)
        singles = [replace(base, devices=(str(gpu.index),)) for gpu in inventory.gpus]
        for request in (base, *singles):
            try:
                self.staged(inventory, request)
            except Refused:
                # A GPU with a problem has no plan; whoever asks for it is told why.
                continue

    def _drop(self, used: Collection[str]) -> None:
        for request, (name, _) in list(self._plans.items()):
            if name not in used:
                del self._plans[request]
                self._stage.withdraw_plan(name)
