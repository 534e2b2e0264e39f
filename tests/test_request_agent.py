"""Requests in the living agent: requirements beside shared plans, namespaces, configured words."""

from __future__ import annotations

import os
import platform
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from agent import standalone
from agent.config import Config, parse
from agent.containerd.values import ContainerCreated
from agent.errors import Refused
from agent.facts.values import NvmlFact
from agent.plan import digest
from agent.planner import ProcPaths
from agent.policy import EnvRequests, Policy
from agent.reconcile import Reconciler
from agent.stage import Stage
from contrib import simhost
from hooks import planfile
from tests.fake_host import SOCKET, FakeHost, record
from tests.request_specs import spec

GPU = "NVIDIA_VISIBLE_DEVICES=0"
LISTED = Policy(EnvRequests.PRIVILEGED, env_containerd_namespaces=("moby",))
HOST = Path(__file__).parent / "hosts" / "h200-580"
Body = Callable[["Bench"], Awaitable[None]]


class Bench:
    """A reconciler on a real run directory and a fake host of driver 550.54.14, CUDA 12.4."""

    def __init__(self, run_dir: Path, policy: Policy) -> None:
        self.host = FakeHost()
        self.stage = Stage(str(run_dir))
        self.agent = Reconciler(self.stage, self.host, policy, ProcPaths(), (SOCKET,))

    async def staged(self, name: str, content: bytes, namespace: str = "default") -> str:
        """Announce a container; what is staged for it: `plan <digest>`, `refuse <why>`, `none`."""
        await self.agent.handle(ContainerCreated(record(name, content, namespace=namespace), 1))
        path = self.stage.path / "staged" / digest(content)
        if not path.exists():
            return "nothing"
        entry = planfile.parse_entry(path.read_bytes())
        return f"{entry.verdict.decode()} {entry.detail.decode()}".strip()

    async def verdict(self, content: bytes, namespace: str | None) -> str:
        """What a hook finds staged after the agent's answer."""
        name = await self.agent.answer(content, stale=False, namespace=namespace)
        entry = planfile.parse_entry((self.stage.path / "staged" / name).read_bytes())
        return entry.verdict.decode()


def run(tmp_path: Path, body: Body, policy: Policy | None = None) -> None:
    """Run `body` on a bench whose first reading is done."""

    async def whole() -> None:
        bench = Bench(tmp_path / "run", policy or Policy())
        try:
            with anyio.fail_after(20):
                await bench.agent.start()
                await body(bench)
        finally:
            bench.stage.close()

    anyio.run(whole)


def test_requirements_do_not_multiply_plans(tmp_path: Path) -> None:
    """Containers that require different things share the plan that one without would get."""

    async def body(bench: Bench) -> None:
        plain = await bench.staged("plain", spec(GPU))
        before = len(bench.stage.plans())
        for number in range(20):
            required = spec(GPU, f"NVIDIA_REQUIRE_CUDA=cuda>=11.{number}")
            assert await bench.staged(f"c{number}", required) == plain
        assert len(bench.stage.plans()) == before

    run(tmp_path, body)


def test_unsatisfied_requirement_beside_a_shared_plan(tmp_path: Path) -> None:
    """A plan that is there already does not let a container pass whose requirement fails."""

    async def body(bench: Bench) -> None:
        assert (await bench.staged("plain", spec(GPU))).startswith("plan ")
        assert await bench.staged("newer", spec(GPU, "NVIDIA_REQUIRE_CUDA=cuda>=12.5")) == (
            "refuse requirement error: unsatisfied condition: cuda>=12.5, please update your "
            "driver to a newer version, or use an earlier cuda container"
        )
        for switch in ("1", "true"):
            env = (GPU, "NVIDIA_REQUIRE_CUDA=cuda>=99", f"NVIDIA_DISABLE_REQUIRE={switch}")
            assert (await bench.staged(switch, spec(*env))).startswith("plan ")

    run(tmp_path, body)


def test_node_without_requirements(tmp_path: Path) -> None:
    """With disable_require nothing that an image requires is read."""

    async def body(bench: Bench) -> None:
        for value in ("cuda>=99", "nonsense"):
            staged = await bench.staged(value, spec(GPU, f"NVIDIA_REQUIRE_CUDA={value}"))
            assert staged.startswith("plan ")

    run(tmp_path, body, Policy(disable_require=True))


def test_legacy_image_needs_its_cuda(tmp_path: Path) -> None:
    """CUDA_VERSION of a legacy image is checked like a requirement."""

    async def body(bench: Bench) -> None:
        assert (await bench.staged("old", spec("CUDA_VERSION=9.1.85"))).startswith("plan ")
        newer = await bench.staged("new", spec("CUDA_VERSION=12.6.1"))
        assert newer.startswith("refuse requirement error: unsatisfied condition: cuda>=12.6, ")

    run(tmp_path, body)


def test_waiting_hook_learns_what_only_nvml_knows(tmp_path: Path) -> None:
    """A condition about a GPU's brand is checked with NVML before its hook is refused."""

    async def body(bench: Bench) -> None:
        known = bench.host.nvml
        bench.host.nvml = NvmlFact(reason="the driver is busy")
        await bench.agent.refresh("test")
        await bench.host.ask_nvml()
        await bench.agent.refresh("test")
        content = spec(GPU, "NVIDIA_REQUIRE_CUDA=brand=nvidia")
        assert await bench.staged("one", content) == (
            "refuse requirement error: cannot check condition: brand=nvidia: "
            "the brand of GPU 0 is not known"
        )
        bench.host.nvml = known
        assert await bench.agent.answer(content, stale=False) == digest(content)
        with pytest.raises(Refused, match="unsatisfied condition: brand=tesla"):
            await bench.agent.answer(spec(GPU, "NVIDIA_REQUIRE_X=brand=tesla"), stale=False)

    run(tmp_path, body)


def test_namespace_of_the_record_decides(tmp_path: Path) -> None:
    """The containerd namespace of the record is the one that policy looks at."""

    async def body(bench: Bench) -> None:
        assert (await bench.staged("a", spec(GPU), "moby")).startswith("plan ")
        assert await bench.staged("b", spec(GPU, "X=1"), "k8s.io") == "none"

    run(tmp_path, body, LISTED)


def test_hook_before_its_container(tmp_path: Path) -> None:
    """A hook is answered for the namespace that it proves, or that of its announced container."""

    async def body(bench: Bench) -> None:
        content = spec(GPU)
        with pytest.raises(Refused, match="its namespace is not known yet"):
            await bench.agent.answer(content, stale=False)
        assert await bench.verdict(content, "moby") == "plan"
        assert await bench.verdict(content, "k8s.io") == "none"
        await bench.staged("a", content, "moby")
        assert await bench.verdict(content, None) == "plan"
        # The same spec in another namespace is another container.
        assert await bench.verdict(content, "k8s.io") == "none"

    run(tmp_path, body, LISTED)


def test_configured_words_are_looked_for(tmp_path: Path) -> None:
    """A spec that names a swarm variable, and nothing of NVIDIA's, gets its plan."""

    async def body(bench: Bench) -> None:
        assert (await bench.staged("a", spec("DOCKER_RESOURCE_GPU=0"))).startswith("plan ")
        assert await bench.staged("b", spec("DOCKER_RESOURCE_CPU=0")) == "nothing"

    run(tmp_path, body, Policy(swarm_resources=("DOCKER_RESOURCE_GPU",)))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """The config of the recorded H200 host (driver 580.159.04), with its NVML answers."""
    if os.geteuid() != 0 or platform.machine() != "x86_64":
        pytest.skip("mknod needs root, and the recorded hosts are x86_64")
    root = tmp_path_factory.mktemp("host") / "root"
    try:
        yield parse(simhost.build(HOST, root).config().encode(), "simulated")
    finally:
        simhost.remove(root)


@pytest.mark.parametrize(
    ("requirement", "nvml", "answer"),
    [
        ("cuda>=13.0", False, ""),
        ("cuda>=13.1", False, "unsatisfied condition: cuda>=13.1, please update your driver"),
        ("arch>=9.0", True, ""),
        ("arch>=9.0", False, "cannot check condition: arch>=9.0: the arch of GPU 0 is not known"),
        ("arch>=10", True, "unsatisfied condition: arch>=10"),
    ],
)
def test_standalone_planner_checks_requirements(
    simulated: Config, requirement: str, nvml: bool, answer: str
) -> None:
    """Without the agent requirements hold too; NVML is asked for what only it knows."""
    config = replace(simulated, host=replace(simulated.host, nvml=nvml))
    content = spec(GPU, f"NVIDIA_REQUIRE_CUDA={requirement}")
    entry, made = standalone.answer(content, config)
    assert (entry.verdict, made is not None) == (("refuse", False) if answer else ("plan", True))
    assert answer in entry.detail
