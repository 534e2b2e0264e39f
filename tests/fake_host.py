"""A host for the reconciler's tests: inventories at will, and readings that can be held up."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import anyio

from agent.containerd.values import ContainerKey, ContainerRecord
from agent.facts.values import HostFacts, NvmlFact
from agent.inventory import Inventory, build
from tests import fact_values as fv

SOCKET = "/run/containerd/containerd.sock"
READY = fv.HOST
ABSENT = replace(fv.HOST, driver=replace(fv.DRIVER, version=None, reason="no module"))


def driver(version: str) -> HostFacts:
    """A READY host with another driver version; NVML's answers are those of the old one."""
    libraries = tuple(fv.library(stem, version) for stem in ("libcuda", "libnvidia-ml"))
    return replace(READY, driver=replace(fv.DRIVER, version=version), libraries=libraries)


@dataclass
class FakeHost:
    """`facts` is the host, `nvml` what NVML will answer next; NVML is silent until asked.

    A reading takes its picture, then waits for `gate`; a question to NVML waits for `nvml_gate`.
    """

    facts: HostFacts = READY
    nvml: NvmlFact = READY.nvml
    gate: anyio.Event | None = None
    nvml_gate: anyio.Event | None = None
    readings: int = 0
    asked: int = 0
    answered: NvmlFact = field(default_factory=lambda: NvmlFact(reason="not asked"))
    news: anyio.Event = field(default_factory=anyio.Event)

    async def read(self) -> Inventory:
        """The host as it was when the reading began."""
        self.readings += 1
        inventory = build(replace(self.facts, nvml=self.answered))
        if self.gate is not None:
            await self.gate.wait()
        return inventory

    async def ask_nvml(self) -> bool:
        """Whether the answers are others; `news` is set when they have been taken over."""
        self.asked += 1
        if self.nvml_gate is not None:
            await self.nvml_gate.wait()
        changed = self.answered != self.nvml
        self.answered = self.nvml
        self.news.set()
        self.news = anyio.Event()
        return changed


def spec(devices: str | None = "all", more: str = "") -> bytes:
    """A spec that asks for `devices`; `more` makes it another one."""
    env = ["PATH=/bin", f"MORE={more}"]
    if devices is not None:
        env += [f"NVIDIA_VISIBLE_DEVICES={devices}", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    return json.dumps({"root": {"path": "rootfs"}, "process": {"env": env}}).encode()


def record(
    name: str, content: bytes, *, address: str = SOCKET, namespace: str = "default"
) -> ContainerRecord:
    """A container of that spec."""
    key = ContainerKey(address, namespace, name)
    return ContainerRecord(key, 1, "image", "io.containerd.runc.v2", (), content)
