"""NVML's answers, asked for by a worker process that lives for one question.

An open NVML pins the kernel module, a call into a sick driver may never return, and a loaded
library stays the old one after an upgrade; a process of its own has none of these troubles.
`python -m agent.facts.nvml <library>` is that worker. This module runs it and believes nothing
of what it says before it is checked; it imports no pynvml and decides nothing about a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agent.errors import one_line
from agent.facts.values import NvmlFact, NvmlGpu, NvmlMig

if TYPE_CHECKING:
    from anyio.abc import Process

ANSWER_LIMIT = 1 << 20
TEXT_LIMIT = 256
MAX_GPUS = 256
EXIT_WAIT_S = 1.0
"""How long a worker may take to go, after its answer and again after it was killed; one that
hangs inside the driver may never die."""

UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,90}")
BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")


class NoAnswer(Exception):
    """The worker gave nothing usable; the text is the fact's reason."""


async def read_nvml(library: str | None, timeout_s: float) -> NvmlFact:
    """Ask NVML through the library at that absolute path; never raises for a broken driver.

    After `timeout_s` the worker is killed and the fact has a reason instead of answers.
    """
    if library is None:
        return NvmlFact(reason="no libnvidia-ml of the loaded driver")
    if not os.path.isabs(library):
        return NvmlFact(reason=f"{one_line(library)}: not an absolute path")
    try:
        return decode(await ask_worker(library, timeout_s))
    except (NoAnswer, OSError) as e:
        return NvmlFact(reason=one_line(f"{library}: {e}"))


async def ask_worker(library: str, timeout_s: float) -> bytes:
    """The worker's whole answer; raises NoAnswer, and leaves no worker behind."""
    import anyio  # here, because the worker is this module too and must not pay for it

    process = await anyio.open_process(
        [sys.executable, "-I", "-m", "agent.facts.nvml", library, str(timeout_s + EXIT_WAIT_S)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if not k.startswith("LD_")},
        start_new_session=True,
    )
    answer = b""
    try:
        with anyio.move_on_after(timeout_s) as deadline:
            answer = await receive(process)
            with anyio.move_on_after(EXIT_WAIT_S):  # NVML shuts down after the answer
                await process.wait()
    finally:
        code = await end(process)
    if deadline.cancelled_caught and not answer:
        raise NoAnswer(f"no answer within {timeout_s:g} s")
    if not answer:
        raise NoAnswer(f"the worker died: {f'signal {-code}' if code and code < 0 else code}")
    return answer


async def receive(process: Process) -> bytes:
    """All of the worker's standard output; raises NoAnswer when it is too long."""
    assert process.stdout is not None  # it was opened with a pipe
    answer = bytearray()
    async for chunk in process.stdout:
        answer += chunk
        if len(answer) > ANSWER_LIMIT:
            raise NoAnswer(f"the answer is longer than {ANSWER_LIMIT} bytes")
    return bytes(answer)


async def end(process: Process) -> int | None:
    """Kill what still runs and free it; None for a worker that does not die in time."""
    import anyio

    with anyio.move_on_after(EXIT_WAIT_S, shield=True):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await process.aclose()
    return process.returncode


def decode(answer: bytes) -> NvmlFact:
    """The worker's JSON as a fact; raises NoAnswer for anything the worker would not write."""
    try:
        raw = json.loads(answer)
        gpus = [
            NvmlGpu(**{**gpu, "migs": tuple(NvmlMig(**mig) for mig in gpu["migs"])})
            for gpu in raw.pop("gpus")
        ]
        fact = NvmlFact(**raw)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise NoAnswer(f"the answer is not understood: {type(e).__name__}") from e
    checked = tuple(checked_gpu(gpu) for gpu in gpus[:MAX_GPUS])
    return NvmlFact(
        driver_version=text(fact.driver_version),
        cuda_version=pair(fact.cuda_version),
        gpus=checked,
        reason=text(fact.reason),
    )


def checked_gpu(gpu: NvmlGpu) -> NvmlGpu:
    """`gpu` with every value that is not what it should be replaced by None."""
    return NvmlGpu(
        index=number(gpu.index) or 0,
        uuid=text(gpu.uuid, UUID),
        minor=number(gpu.minor),
        bus_id=text(gpu.bus_id, BUS_ID),
        name=text(gpu.name),
        brand=text(gpu.brand),
        compute_capability=pair(gpu.compute_capability),
        mig_enabled=gpu.mig_enabled if isinstance(gpu.mig_enabled, bool) else None,
        migs=tuple(checked_migs(gpu.migs)),
        error=text(gpu.error),
        lost=gpu.lost is True,
        persistent=gpu.persistent if isinstance(gpu.persistent, bool) else None,
    )


def checked_migs(migs: Sequence[NvmlMig]) -> Iterator[NvmlMig]:
    """The MIG devices whose identity is whole."""
    for mig in migs:
        numbers = [number(n) for n in (mig.ordinal, mig.gi, mig.ci)]
        uuid = text(mig.uuid, UUID)
        if uuid is not None and None not in numbers:
            yield dataclasses.replace(mig, uuid=uuid, name=text(mig.name))


def text(value: object, form: re.Pattern[str] | None = None) -> str | None:
    """`value` as one printable line, None unless it is text of that form."""
    if not isinstance(value, str) or not value:
        return None
    return one_line(value, TEXT_LIMIT) if form is None or form.fullmatch(value) else None


def number(value: object) -> int | None:
    """`value` if it is a number that a device can have."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 20:
        return value
    return None


def pair(value: object) -> tuple[int, int] | None:
    """`value` if it is two such numbers."""
    numbers = [number(v) for v in value] if isinstance(value, list | tuple) else []
    match numbers:
        case [int(first), int(second)]:
            return first, second
    return None


if __name__ == "__main__":
    from agent.facts.nvmlworker import main

    raise SystemExit(main(sys.argv[1:]))
