"""The worker's half of reading NVML: the calls, and what their failures mean.

Runs in a process of its own (see `agent.facts.nvml`) and is the only importer of pynvml. It loads
the one library it is given by absolute path and never searches for another. Every call may fail
on its own: a dead GPU spoils no other, and a question that the GPU does not know is no error.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.errors import one_line
from agent.facts.values import NvmlFact, NvmlGpu, NvmlMig


class Meaning(enum.StrEnum):
    """What a failed NVML call says about the thing that was asked for."""

    ABSENT = "absent"
    UNSUPPORTED = "unsupported"
    LOST = "lost"
    DENIED = "denied"
    MISMATCH = "driver-mismatch"
    NOT_READY = "not ready"
    FAULTY = "faulty"
    INTERNAL = "internal"


MEANINGS: Mapping[int, Meaning] = {
    1: Meaning.INTERNAL,  # uninitialized
    2: Meaning.INTERNAL,  # invalid argument
    3: Meaning.UNSUPPORTED,
    4: Meaning.DENIED,  # no permission
    5: Meaning.INTERNAL,  # already initialized
    6: Meaning.ABSENT,  # not found
    7: Meaning.INTERNAL,  # insufficient size
    8: Meaning.FAULTY,  # insufficient power
    9: Meaning.ABSENT,  # driver not loaded
    10: Meaning.NOT_READY,  # timeout
    11: Meaning.FAULTY,  # interrupts do not arrive
    12: Meaning.ABSENT,  # library not found
    13: Meaning.UNSUPPORTED,  # the library is older than the function
    14: Meaning.FAULTY,  # corrupted infoROM
    15: Meaning.LOST,
    16: Meaning.FAULTY,  # reset required
    17: Meaning.DENIED,  # the operating system blocked it
    18: Meaning.MISMATCH,  # library and module
    19: Meaning.NOT_READY,  # in use
    20: Meaning.INTERNAL,  # memory
    21: Meaning.ABSENT,  # no data
    22: Meaning.UNSUPPORTED,  # ECC under vGPU
    23: Meaning.INTERNAL,  # insufficient resources
    24: Meaning.UNSUPPORTED,  # frequency
    25: Meaning.UNSUPPORTED,  # structure version
    26: Meaning.UNSUPPORTED,  # deprecated
    27: Meaning.NOT_READY,
    28: Meaning.ABSENT,  # GPU not found
    29: Meaning.NOT_READY,  # invalid state
    30: Meaning.UNSUPPORTED,  # reset type
    999: Meaning.INTERNAL,  # unknown
}
INVALID, NOT_FOUND, UNKNOWN = 2, 6, 999
GET_GPU = "nvmlDeviceGetHandleByIndex"
GET_MIG = "nvmlDeviceGetMigDeviceHandleByIndex"

BRANDS = (
    *("Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "TITAN", "VApps", "VPC", "VCS"),
    *("VWS", "CloudGaming", "QuadroRTX", "NvidiaRTX", "Nvidia", "GeForceRTX", "TitanRTX"),
    *("DLA", "VGameDev", "NPU"),
)
"""NVML's brand numbers in the words that NVIDIA_REQUIRE_* uses."""


def meaning_of(call: str, code: int) -> Meaning:
    """What it means that `call` failed with NVML's `code`."""
    # A GPU that fell off the bus without an Xid has no better name than "unknown error".
    if code == UNKNOWN and call == GET_GPU:
        return Meaning.LOST
    return MEANINGS.get(code, Meaning.INTERNAL)


@dataclass(slots=True)
class Asker:
    """Asks pynvml about one thing; keeps the first failure that is one."""

    nvml: Any
    error: str | None = None
    lost: bool = False

    def ask(
        self, call: str, *arguments: object, quiet: tuple[int, ...] = (), unsupported: Any = None
    ) -> Any:
        """The call's answer, None if it fails; codes in `quiet` are no failures.

        `unsupported` is the answer of a GPU or library that does not know the question.
        """
        try:
            return getattr(self.nvml, call)(*arguments)
        except self.nvml.NVMLError as e:
            if e.value in quiet:
                return None
            meaning = meaning_of(call, e.value)
            if meaning is Meaning.UNSUPPORTED:
                return unsupported
            self.lost = self.lost or meaning is Meaning.LOST
            self.error = self.error or f"{call}: {meaning}: {e}"
        except UnicodeDecodeError:
            self.error = self.error or f"{call}: {Meaning.FAULTY}: the text is not UTF-8"
        return None


def read(nvml: Any) -> NvmlFact:
    """All answers of an initialised NVML."""
    system = Asker(nvml)
    count = system.ask("nvmlDeviceGetCount")
    if count is None:
        return NvmlFact(reason=system.error or "nvmlDeviceGetCount: unsupported")
    cuda = system.ask("nvmlSystemGetCudaDriverVersion_v2")
    version = system.ask("nvmlSystemGetDriverVersion")
    return NvmlFact(
        driver_version=version,
        cuda_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
        gpus=tuple(read_gpu(nvml, index) for index in range(count)),
    )


def read_gpu(nvml: Any, index: int) -> NvmlGpu:
    """One GPU, whatever state it is in."""
    gpu = Asker(nvml)
    handle = gpu.ask(GET_GPU, index)
    if handle is None:
        return NvmlGpu(index, None, None, None, None, None, None, None, (), gpu.error, gpu.lost)
    brand = gpu.ask("nvmlDeviceGetBrand", handle)
    bus = gpu.ask("nvmlDeviceGetPciInfo", handle)
    mode = gpu.ask("nvmlDeviceGetMigMode", handle, unsupported=(0, 0))
    kept = gpu.ask("nvmlDeviceGetPersistenceMode", handle)
    answers = {
        "uuid": gpu.ask("nvmlDeviceGetUUID", handle),
        "minor": gpu.ask("nvmlDeviceGetMinorNumber", handle),
        "bus_id": None if bus is None else bus.busId,
        "name": gpu.ask("nvmlDeviceGetName", handle),
        "brand": None if brand is None else BRANDS[brand if brand < len(BRANDS) else 0],
        "compute_capability": gpu.ask("nvmlDeviceGetCudaComputeCapability", handle),
        # Current, not pending: the other takes effect at the next reset of the GPU.
        "mig_enabled": None if mode is None else mode[0] == 1,
        "persistent": None if kept is None else kept == 1,
    }
    migs = tuple(read_migs(gpu, handle)) if answers["mig_enabled"] else ()
    return NvmlGpu(index=index, migs=migs, error=gpu.error, lost=gpu.lost, **answers)


def read_migs(gpu: Asker, handle: object) -> Iterator[NvmlMig]:
    """The MIG devices of a GPU, over slots that are empty while it is reconfigured."""
    ordinal = 0
    for slot in range(gpu.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        mig = gpu.ask(GET_MIG, handle, slot, quiet=(NOT_FOUND, INVALID))
        if mig is None:
            continue
        uuid = gpu.ask("nvmlDeviceGetUUID", mig)
        gi = gpu.ask("nvmlDeviceGetGpuInstanceId", mig)
        ci = gpu.ask("nvmlDeviceGetComputeInstanceId", mig)
        if uuid is not None and gi is not None and ci is not None:
            yield NvmlMig(ordinal, uuid, gi, ci, gpu.ask("nvmlDeviceGetName", mig))
        ordinal += 1


def load(library: str) -> Any:
    """pynvml, bound to exactly this file; raises OSError when it cannot be loaded."""
    import pynvml

    # pynvml asks the loader for "libnvidia-ml.so.1". That finds a file of this SONAME that is
    # loaded already; the assignment spares it the question, whatever the file's SONAME is.
    pynvml.nvmlLib = ctypes.CDLL(library)
    return pynvml


def main(arguments: Sequence[str]) -> int:
    """`<library> [seconds]`: write an NvmlFact as JSON on standard output."""
    library, *limit = arguments
    # An agent that dies must not leave a worker behind that pins the module.
    signal.setitimer(signal.ITIMER_REAL, float(limit[0]) if limit else 0)
    # The library may write to standard output; nothing but the answer may go there.
    with os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace") as out:
        os.dup2(2, 1)
        nvml, fact = ask_library(library)
        json.dump(dataclasses.asdict(fact), out)
    if nvml is not None:
        Asker(nvml).ask("nvmlShutdown")
    return 0


def ask_library(library: str) -> tuple[Any, NvmlFact]:
    """The initialised pynvml, or None, and the answers or the reason for none."""
    try:
        nvml = load(library)
    except OSError as e:
        return None, NvmlFact(reason=one_line(f"{library}: cannot be loaded: {e}"))
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as e:
        return None, NvmlFact(reason=f"nvmlInit: {meaning_of('nvmlInit', e.value)}: {e}")
    return nvml, read(nvml)
