"""What a gRPC failure means: one place turns status codes into `ContainerdError`.

It looks at the socket file where gRPC's own words would not tell an absent containerd from
something else that listens there. It decides nothing about retrying.
"""

from __future__ import annotations

import enum
import socket

import grpc

from agent.errors import ContainerdError


class Trouble(enum.StrEnum):
    """Kinds of failure; `ContainerdError.kind` has one of these words."""

    ABSENT = "absent"  # nothing listens, or no longer
    SILENT = "silent"  # something listens and does not answer in time
    NOT_CONTAINERD = "not containerd"  # it answers, but not as containerd does
    DENIED = "denied"  # we may not
    MISSING = "not found"  # the thing asked for does not exist
    REFUSED = "refused"  # containerd rejects the question
    FAILED = "failed"  # containerd tried and could not


_Code = grpc.StatusCode

MEANING = {
    # A stream that ends well is still one that ended; containerd never does that by itself.
    _Code.OK: Trouble.ABSENT,
    _Code.UNAVAILABLE: Trouble.ABSENT,
    _Code.CANCELLED: Trouble.ABSENT,
    _Code.DEADLINE_EXCEEDED: Trouble.SILENT,
    _Code.UNIMPLEMENTED: Trouble.NOT_CONTAINERD,
    _Code.PERMISSION_DENIED: Trouble.DENIED,
    _Code.UNAUTHENTICATED: Trouble.DENIED,
    _Code.NOT_FOUND: Trouble.MISSING,
    _Code.INVALID_ARGUMENT: Trouble.REFUSED,
    _Code.FAILED_PRECONDITION: Trouble.REFUSED,
    _Code.OUT_OF_RANGE: Trouble.REFUSED,
    _Code.ALREADY_EXISTS: Trouble.REFUSED,
    _Code.UNKNOWN: Trouble.FAILED,
    _Code.INTERNAL: Trouble.FAILED,
    _Code.ABORTED: Trouble.FAILED,
    _Code.DATA_LOSS: Trouble.FAILED,
    _Code.RESOURCE_EXHAUSTED: Trouble.FAILED,
}
"""Every status code that a call can end with."""


def translate(
    address: str, method: str, code: grpc.StatusCode, details: str, greeted: bool
) -> ContainerdError:
    """The error for a call that ended with `code`; `greeted` says if any call had an answer."""
    trouble = MEANING[code]
    if trouble is Trouble.SILENT:
        return failure(address, trouble, f"no answer to {method} in time")
    if trouble is not Trouble.ABSENT:
        said = f": {details}" if details else ""
        return failure(address, trouble, f"{method}{said}")
    if (problem := socket_problem(address)) is not None:
        return problem
    if greeted:
        return failure(address, trouble, f"connection lost in {method}: {details}")
    return failure(address, Trouble.NOT_CONTAINERD, f"what listens does not speak gRPC: {details}")


def failure(address: str, trouble: Trouble, why: str) -> ContainerdError:
    """A `ContainerdError` of this kind."""
    return ContainerdError(address, f"{trouble}: {why}", hint=_HINTS.get(trouble, ""), kind=trouble)


_HINTS = {
    Trouble.ABSENT: "is containerd running, and is this its socket?",
    Trouble.DENIED: "containerd's socket belongs to root",
}


def socket_problem(address: str) -> ContainerdError | None:
    """Why nobody can connect to `address` now, or None; never waits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except BlockingIOError:
            return None  # the backlog is full: somebody listens, slowly
        except FileNotFoundError:
            return failure(address, Trouble.ABSENT, "no such socket")
        except ConnectionRefusedError:
            return failure(address, Trouble.ABSENT, "nothing listens on this socket")
        except PermissionError:
            return failure(address, Trouble.DENIED, "no permission to connect")
        except OSError as e:
            return failure(address, Trouble.REFUSED, str(e))
    return None
