"""The error tree. Every message is worded here, in the class, from its arguments.

    AgentError                      exit code 1
    ├── UsageError                  2   the caller's input is wrong
    │   ├── ConfigError             2   mistakes in the config file, all of them
    │   ├── RequestError            2   what a container asks for cannot be understood
    │   ├── UnknownContainer        2   the agent knows no container of this name
    │   └── AmbiguousContainer      2   a name that fits several containers
    ├── Refused                     3   understood, but not in this state
    │   ├── UnknownGpu              3   a request names a GPU this host has not
    │   ├── RequestDenied           3   policy says no
    │   ├── UnhealthyGpu            3   a request names a GPU that is lost
    │   ├── MissingNode             3   a request needs a device node that is not there
    │   ├── Unsatisfied             3   an image requires another driver or another GPU
    │   └── DriverNotReady          3   no driver, or kernel and user space differ
    ├── ContainerdError             1   containerd is absent, silent, or not containerd
    ├── StageError                  1   the run directory cannot be trusted or written
    └── Unreachable                 4   the agent's own socket does not answer

A message is "what: which thing: why", lower case, without a full stop; advice is in `hint`.
Messages reach pod events that tenants read: no environment, no spec, no control characters.
"""

from __future__ import annotations

from collections.abc import Sequence

MESSAGE_LIMIT = 1024
"""Bytes of one refusal line; more than 64 KiB on a hook's stderr hangs `runc create`."""


def one_line(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """`text` without control characters, cut to `limit` bytes of UTF-8."""
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return clean.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


class AgentError(Exception):
    """Base of every error this project raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(one_line(message))
        self.hint = one_line(hint)


class UsageError(AgentError):
    """The caller gave something that cannot be used."""

    exit_code = 2


class ConfigError(UsageError):
    """A config file with at least one mistake; `mistakes` has each with its place."""

    def __init__(self, source: str, mistakes: Sequence[str]) -> None:
        self.mistakes = tuple(one_line(m) for m in mistakes)
        super().__init__(f"config: {source}: {'; '.join(self.mistakes)}")


class RequestError(UsageError):
    """A variable, mount or annotation of a container has a value without meaning."""

    def __init__(self, where: str, value: str, expected: str) -> None:
        super().__init__(f"request: {where}={value[:200]!r}: expected {expected}")


class UnknownContainer(UsageError):
    """No container that the agent knows has this id."""

    def __init__(self, asked: str, known: int) -> None:
        super().__init__(
            f"no such container: {asked}: the agent knows {known} containers",
            "agentctl containers lists them",
        )


class AmbiguousContainer(UsageError):
    """An id that fits several containers; the message lists their full names."""

    def __init__(self, asked: str, names: Sequence[str]) -> None:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        super().__init__(
            f"ambiguous container: {asked}: it fits {', '.join(names[:8])}{more}",
            "give more of the id, or <namespace>/<id>, or <socket>:<namespace>/<id>",
        )


class Refused(AgentError):
    """A sound request that cannot be met now."""

    exit_code = 3


class UnknownGpu(Refused):
    """A request names GPUs that this host does not have."""

    def __init__(self, asked: Sequence[str], known: Sequence[str]) -> None:
        have = ", ".join(known[:32]) or "none"
        named = ", ".join(a[:80] for a in asked[:8])
        super().__init__(f"no such GPU: {named}: this host has {have}")


class RequestDenied(Refused):
    """The policy of this node does not let this container ask in this way."""

    def __init__(self, what: str, rule: str) -> None:
        super().__init__(f"request denied: {what}: {rule}")


class UnhealthyGpu(Refused):
    """A request names a GPU that the driver no longer reaches."""

    def __init__(self, gpu: str, reason: str) -> None:
        super().__init__(f"GPU unusable: {gpu}: {reason}")


class MissingNode(Refused):
    """A request needs a device node that this host does not have."""

    def __init__(self, asked: str, node: str) -> None:
        super().__init__(f"no such device: {asked}: this host has no {node}")


class Unsatisfied(Refused):
    """The driver or a chosen GPU is not what the image's NVIDIA_REQUIRE_* variables demand.

    The wording is the one that people and scripts know from the usual tools. With `unknown`,
    the condition could not be checked, and that says why.
    """

    def __init__(self, condition: str, have: str = "", *, unknown: str = "") -> None:
        if unknown:
            super().__init__(f"requirement error: cannot check condition: {condition}: {unknown}")
            return
        advice = (
            ", please update your driver to a newer version, or use an earlier cuda container"
            if condition.lower().startswith("cuda>=")
            else ""
        )
        super().__init__(f"requirement error: unsatisfied condition: {condition}{advice}", have)


class DriverNotReady(Refused):
    """There is no driver to inject, or its two halves have different versions."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(f"driver not ready: {state}: {reason}")


class ContainerdError(AgentError):
    """One containerd cannot be used; the message names its socket.

    `kind` is a word for programs: a value of `agent.containerd.status.Trouble`, or "".
    """

    def __init__(self, address: str, reason: str, hint: str = "", kind: str = "") -> None:
        super().__init__(f"containerd: {address}: {reason}", hint)
        self.reason = one_line(reason)
        self.kind = kind


class StageError(AgentError):
    """The run directory or a file in it is not what only root could have made."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"stage: {path}: {reason}")


class Unreachable(AgentError):
    """The agent's control socket is absent or does not answer."""

    exit_code = 4

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"agent unreachable: {path}: {reason}", "is agentd running?")
