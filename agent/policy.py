"""Who may ask for what on this node: the rules that stand between a spec and a request.

Pure: it knows the node's settings and facts about a container that somebody else read. It does
not parse specs, and it cannot widen a request: every rule only ignores or denies.

An annotation is by default no request (R22): whoever writes a pod can write annotations, which
of them reach the spec is up to containerd's pass-through lists, and `cdi.k8s.io/` is containerd's
own to serve. A node whose annotations come only from a device plugin may list that prefix.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.errors import RequestDenied
from agent.features import OptOut, opt_outs
from agent.request import Capability
from agent.sources import Asker

if TYPE_CHECKING:  # the config model costs an import that the standalone planner need not pay
    from agent.config import PolicySettings


class EnvRequests(enum.StrEnum):
    """Whose environment counts as a request.

    ALL is what the usual tools do by default: any image that carries NVIDIA_VISIBLE_DEVICES
    gets GPUs. PRIVILEGED ignores the environment of every container that could not reach the
    devices anyway, unless its namespace is listed; ignored means that it starts as a plain
    container.
    """

    ALL = "all"
    PRIVILEGED = "privileged"


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one node; config.PolicySettings describes each.

    `supported_capabilities` is the upper bound of every request, `opt_out` is for all of them.
    """

    env_requests: EnvRequests = EnvRequests.ALL
    supported_capabilities: tuple[Capability, ...] = tuple(sorted(Capability))
    env_containerd_namespaces: tuple[str, ...] = ()
    env_pod_namespaces: tuple[str, ...] = ()
    swarm_resources: tuple[str, ...] = ()
    accept_volume_mounts: bool = False
    annotation_prefixes: tuple[str, ...] = ()
    disable_require: bool = False
    ignore_imex_channels: bool = False
    opt_out: tuple[OptOut, ...] = ()

    @property
    def words(self) -> tuple[bytes, ...]:
        """What a spec can contain that asks for a GPU, besides the hook's own words."""
        return tuple(name.encode() for name in self.swarm_resources)

    def objection_to_env(self, asker: Asker) -> str | None:
        """Why the environment of this container does not count, or None when it does.

        Raises RequestDenied where the answer lies in a containerd namespace that nobody knows.
        """
        if asker.privileged or self.env_requests is EnvRequests.ALL:
            return None
        if asker.pod_namespace is not None and asker.pod_namespace in self.env_pod_namespaces:
            return None
        if asker.containerd_namespace is None and self.env_containerd_namespaces:
            # To ignore it could start a GPU container without its GPU.
            rule = "policy.env_containerd_namespaces decides, and its namespace is not known yet"
            raise RequestDenied("by environment", rule)
        if asker.containerd_namespace in self.env_containerd_namespaces:
            return None
        if self.env_containerd_namespaces or self.env_pod_namespaces:
            return "the container is not privileged and its namespace is not listed in policy"
        return "the container is not privileged and policy.env_requests is privileged"

    def allows_annotation(self, key: str) -> bool:
        """Whether an annotation of this name may say anything to us."""
        return key.startswith(self.annotation_prefixes)

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
        env_containerd_namespaces=settings.env_containerd_namespaces,
        env_pod_namespaces=settings.env_pod_namespaces,
        swarm_resources=settings.swarm_resources,
        accept_volume_mounts=settings.accept_volume_mounts,
        annotation_prefixes=settings.annotation_prefixes,
        disable_require=settings.disable_require,
        ignore_imex_channels=settings.ignore_imex_channels,
        opt_out=opt_outs(settings.opt_out),
    )
