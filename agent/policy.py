"""Who may ask for what on this node: the rules that stand between a spec and a request.

Pure: it knows the node's settings and facts about a container that somebody else read. It does
not parse specs, and it cannot widen a request: every rule only ignores or denies.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.errors import RequestDenied
from agent.request import Capability

if TYPE_CHECKING:  # the config model costs an import that the standalone planner need not pay
    from agent.config import PolicySettings


class EnvRequests(enum.StrEnum):
    """Whose environment counts as a request.

    ALL is what the usual tools do by default: any image that carries NVIDIA_VISIBLE_DEVICES
    gets GPUs. PRIVILEGED ignores the environment of every container that could not reach the
    devices anyway; ignored means that it starts as a plain container.
    """

    ALL = "all"
    PRIVILEGED = "privileged"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one node. `supported_capabilities` is the upper bound of every request."""

    env_requests: EnvRequests = EnvRequests.ALL
    supported_capabilities: tuple[Capability, ...] = tuple(sorted(Capability))

    def objection_to_env(self, *, privileged: bool) -> str | None:
        """Why the environment of this container does not count, or None when it does."""
        if privileged or self.env_requests is EnvRequests.ALL:
            return None
        return "the container is not privileged and policy.env_requests is privileged"

    def bounded(self, capabilities: Iterable[Capability]) -> tuple[Capability, ...]:
        """Those of `capabilities` that this node supports, sorted."""
        return tuple(sorted(set(capabilities) & set(self.supported_capabilities)))

    def granted(self, capabilities: Iterable[Capability], where: str) -> tuple[Capability, ...]:
        """`capabilities`, sorted; raises RequestDenied when one is above the node's bound."""
        wanted = sorted(set(capabilities))
        if above := [c for c in wanted if c not in self.supported_capabilities]:
            bound = ", ".join(self.supported_capabilities) or "nothing"
            raise RequestDenied(f"{where}={','.join(above)}", f"this node supports {bound}")
        return tuple(wanted)


def policy_of(settings: PolicySettings) -> Policy:
    """The policy that the config file's [policy] table describes."""
    return Policy(
        env_requests=EnvRequests(settings.env_requests),
        supported_capabilities=tuple(
            sorted({Capability(name) for name in settings.supported_capabilities})
        ),
    )
