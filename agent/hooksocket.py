"""Where a hook asks when it finds nothing staged: `<run_dir>/hook.sock`.

One question a connection: `ask <missing|stale> <length>[ <namespace>]\\n` and the container's spec
as bytes; it names no path. The namespace is containerd's, where the hook can prove it. One line
answers: `staged <digest>` (look again), `refuse <why>`, or `unable <why>` (plan without me). Only
root is answered, and no peer can make the agent wait or hold much.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from agent.errors import AgentError, Refused, StageError, UsageError, one_line

log = logging.getLogger(__name__)

SOCKET = "hook.sock"
SPEC_LIMIT = 16 << 20
HEADER_LIMIT = 128
DEADLINE_S = 3.5
"""Less than the hook waits, so that it gets an answer and not silence."""
CONCURRENT = 64
BACKLOG = 1024
"""Connections that wait; a hook that finds no room is told so at once and plans alone."""

_NAMESPACE = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,75}")


Answer = Callable[[bytes, bool, str | None], Awaitable[str]]


async def serve(
    run_dir: str, answer: Answer, started: Callable[[], None], *, deadline_s: float = DEADLINE_S
) -> None:
    """Answer hooks until cancelled. `answer(spec, stale, namespace)` stages and gives the digest.

    Each conversation ends after `deadline_s`. Raises StageError if no socket can be made.
    """
    path = Path(run_dir) / SOCKET
    # A socket that a dead agent left; the run directory's lock says that no living one has it.
    try:
        path.unlink(missing_ok=True)
        listener = await anyio.create_unix_listener(path, mode=0o600, backlog=BACKLOG)
    except OSError as e:
        raise StageError(str(path), f"no hook socket: {e.strerror}") from e
    limiter = anyio.CapacityLimiter(CONCURRENT)

    async def one(stream: anyio.abc.SocketStream) -> None:
        async with limiter, stream:
            await _converse(stream, answer, deadline_s)

    async with listener:
        started()
        await listener.serve(one)


async def _converse(stream: anyio.abc.SocketStream, answer: Answer, deadline_s: float) -> None:
    try:
        with anyio.fail_after(deadline_s):
            if _peer_uid(stream) != os.geteuid():
                return
            reply = await _reply(answer, *await _question(stream))
            await stream.send(f"{one_line(reply)}\n".encode())
    except TimeoutError:
        log.warning("hook not answered", extra={"error": f"no end after {deadline_s} s"})
    except (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead) as e:
        log.debug("hook went away", extra={"error": type(e).__name__})
    except (anyio.DelimiterNotFound, UsageError) as e:
        log.warning("hook not understood", extra={"error": str(e)})
    except Exception:  # the task group's edge: one bad question must not end the agent
        log.exception("hook not answered")


async def _reply(answer: Answer, spec: bytes, stale: bool, namespace: str | None) -> str:
    try:
        return f"staged {await answer(spec, stale, namespace)}"
    except (Refused, UsageError) as e:
        return f"refuse {e}"
    except AgentError as e:
        return f"unable {e}"


async def _question(stream: anyio.abc.SocketStream) -> tuple[bytes, bool, str | None]:
    buffered = BufferedByteReceiveStream(stream)
    header = await buffered.receive_until(b"\n", HEADER_LIMIT)
    match header.split(b" "):
        case [b"ask", b"missing" | b"stale" as reason, length, *more] if length.isdigit():
            size, namespace = int(length), _namespace(more)
        case _:
            raise UsageError(f"hook socket: {header!r}: not a question")
    if size > SPEC_LIMIT:
        raise UsageError(f"hook socket: a spec of {size} bytes is too large")
    return await buffered.receive_exactly(size), reason == b"stale", namespace


def _namespace(words: list[bytes]) -> str | None:
    """The last word of a question, which hooks of an older version do not have."""
    match words:
        case []:
            return None
        case [word] if _NAMESPACE.fullmatch(word):
            return word.decode()
    raise UsageError(f"hook socket: {words!r}: not a containerd namespace")


def _peer_uid(stream: anyio.abc.SocketStream) -> int:
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid
