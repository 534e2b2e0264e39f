"""The reconciler: events, changes of the host and waiting hooks, and what is staged for them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from agent import reconcile, shelf
from agent.containerd.values import (
    Connected,
    ContainerCreated,
    ContainerDeleted,
    ContainerUpdated,
    Disconnected,
    Synced,
    TaskExited,
    TaskRecord,
    TasksListed,
    TaskStarted,
)
from agent.errors import Refused, StageError
from agent.inventory import build
from agent.plan import Entry, digest
from agent.planner import ProcPaths
from agent.policy import Policy
from agent.reconcile import Reconciler
from agent.stage import Stage
from hooks import planfile
from tests import fact_values as fv
from tests.fake_host import ABSENT, READY, SOCKET, FakeHost, driver, record, spec

TMPFS = "/dev/shm"
OTHER = "/run/k3s/containerd/containerd.sock"
Body = Callable[["Bench"], Awaitable[None]]


class Bench:
    """A reconciler on a real run directory and a fake host."""

    def __init__(self, run_dir: Path, addresses: Sequence[str] = (SOCKET,)) -> None:
        self.host = FakeHost()
        self.stage = Stage(str(run_dir))
        self.agent = Reconciler(self.stage, self.host, Policy(), ProcPaths(), addresses)

    @property
    def run_dir(self) -> Path:
        return self.stage.path

    def entry(self, content: bytes) -> planfile.Entry | None:
        """What is staged for a spec, None if nothing is."""
        try:
            return planfile.parse_entry((self.run_dir / "staged" / digest(content)).read_bytes())
        except FileNotFoundError:
            return None

    def verdict(self, content: bytes) -> str:
        """The verdict staged for a spec in the generation in force, `ask` if a hook must ask."""
        entry = self.entry(content)
        if entry is None or entry.generation.decode() != self.stage.generation():
            return "ask"
        if entry.verdict == b"plan" and not self.stage.has_plan(entry.detail.decode()):
            return "ask"
        return entry.verdict.decode()

    async def create(self, name: str, content: bytes, **where: str) -> None:
        await self.agent.handle(ContainerCreated(record(name, content, **where), 1))

    async def delete(self, name: str, **where: str) -> None:
        await self.agent.handle(ContainerDeleted(record(name, b"", **where).key))


def run(tmp_path: Path, body: Body, *, addresses: Sequence[str] = (SOCKET,)) -> None:
    """Run `body` on a bench whose first reading is done and whose containerds are synced."""

    async def whole() -> None:
        bench = Bench(tmp_path / "run", addresses)
        try:
            await bench.agent.start()
            for address in addresses:
                await bench.agent.handle(Synced(address, ()))
            with anyio.fail_after(20):
                await body(bench)
        finally:
            bench.stage.close()

    anyio.run(whole)


GPU, CPU, VOID = spec("all"), spec(None), spec("void")


def test_created_container_is_staged(tmp_path: Path) -> None:
    """After the handler of its creation a container's plan is in force, with its own data."""

    async def body(bench: Bench) -> None:
        await bench.create("one", GPU)
        assert bench.verdict(GPU) == "plan"
        entry = bench.entry(GPU)
        assert entry is not None
        assert (entry.label, entry.root) == (b"default/one", b"rootfs")
        (tracked,) = bench.agent.containers.values()
        assert (tracked.verdict, tracked.plan) == ("plan", entry.detail.decode())
        assert tracked.staged_us is not None

    run(tmp_path, body)


def test_plain_container_leaves_nothing(tmp_path: Path) -> None:
    """A spec without a word of ours needs no entry; one that declines gets `none`."""

    async def body(bench: Bench) -> None:
        await bench.create("plain", CPU)
        await bench.create("declines", VOID)
        assert (bench.entry(CPU), bench.verdict(VOID)) == (None, "none")
        assert [t.verdict for t in bench.agent.containers.values()] == ["none", "none"]

    run(tmp_path, body)


def test_refusals_are_staged_with_their_reason(tmp_path: Path) -> None:
    """An unknown GPU and a value without meaning refuse the start in the words of the error."""

    async def body(bench: Bench) -> None:
        for devices, words in (("7", b"no such GPU: 7"), ("x y", b"request: NVIDIA_VISIBLE")):
            await bench.create(devices, spec(devices))
            entry = bench.entry(spec(devices))
            assert entry is not None
            assert (entry.verdict, entry.detail[: len(words)]) == (b"refuse", words)

    run(tmp_path, body)


def test_deleted_container_leaves_nothing(tmp_path: Path) -> None:
    """Deletion withdraws the entry; again, or of an unknown id, it changes nothing."""

    async def body(bench: Bench) -> None:
        await bench.create("one", GPU)
        for name in ("one", "one", "never-seen"):
            await bench.delete(name)
        assert bench.stage.entries() == frozenset()
        assert bench.agent.containers == {}

    run(tmp_path, body)


def test_duplicate_creation_changes_nothing(tmp_path: Path) -> None:
    """The same announcement twice is one container with one entry, gone at one deletion."""

    async def body(bench: Bench) -> None:
        for _ in range(3):
            await bench.create("one", GPU)
        assert bench.verdict(GPU) == "plan"
        assert len(bench.agent.containers) == 1
        await bench.delete("one")
        assert bench.stage.entries() == frozenset()

    run(tmp_path, body)


def test_events_out_of_order(tmp_path: Path) -> None:
    """An update before the creation tracks the container; a deletion before it is not kept."""

    async def body(bench: Bench) -> None:
        await bench.delete("one")
        await bench.agent.handle(ContainerUpdated(record("one", GPU)))
        assert bench.verdict(GPU) == "plan"
        await bench.create("one", GPU)
        assert len(bench.agent.containers) == 1

    run(tmp_path, body)


def test_update_with_another_spec_moves_the_entry(tmp_path: Path) -> None:
    """A changed spec is staged under its own digest, and the old one is withdrawn."""

    async def body(bench: Bench) -> None:
        await bench.create("one", GPU)
        await bench.agent.handle(ContainerUpdated(record("one", spec("0"))))
        assert bench.stage.entries() == {digest(spec("0"))}

    run(tmp_path, body)


def test_id_used_again_gets_an_entry_of_its_own(tmp_path: Path) -> None:
    """Docker makes a container of the same id anew: its spec's entry replaces the old one."""

    async def body(bench: Bench) -> None:
        await bench.create("same", spec("0"))
        await bench.create("same", spec("1"))  # the deletion in between was lost
        assert bench.stage.entries() == {digest(spec("1"))}
        await bench.delete("same")
        await bench.create("same", spec("0"))
        assert bench.verdict(spec("0")) == "plan"
        assert len(bench.agent.containers) == 1

    run(tmp_path, body)


def test_shared_spec_lives_as_long_as_its_last_container(tmp_path: Path) -> None:
    """Byte for byte equal specs share an entry, which goes with the last of their containers."""

    async def body(bench: Bench) -> None:
        for name in ("one", "two"):
            await bench.create(name, GPU)
        await bench.delete("one")
        assert bench.verdict(GPU) == "plan"
        await bench.delete("two")
        assert bench.entry(GPU) is None

    run(tmp_path, body)


def test_equal_names_in_two_containerds(tmp_path: Path) -> None:
    """The same (namespace, id) in two containerds is two containers."""

    async def body(bench: Bench) -> None:
        await bench.create("same", spec("0"))
        await bench.create("same", spec("1"), address=OTHER)
        assert (bench.verdict(spec("0")), bench.verdict(spec("1"))) == ("plan", "plan")
        await bench.delete("same")
        assert (bench.verdict(spec("0")), bench.verdict(spec("1"))) == ("ask", "plan")
        await bench.agent.handle(Synced(SOCKET, ()))
        assert bench.verdict(spec("1")) == "plan"

    run(tmp_path, body, addresses=(SOCKET, OTHER))


def test_sync_is_the_truth(tmp_path: Path) -> None:
    """A list removes what is gone and adds what was missed, and foreign entries go with it."""

    async def body(bench: Bench) -> None:
        await bench.create("gone", spec("0"))
        await bench.create("stays", spec("1"))
        bench.stage.put_entry("f" * 32, Entry("none", "", "", "", (0, 0), ""))
        missed = (record("stays", spec("1")), record("missed", GPU))
        await bench.agent.handle(Synced(SOCKET, missed))
        assert bench.stage.entries() == {digest(spec("1")), digest(GPU)}
        assert {k.id for k in bench.agent.containers} == {"stays", "missed"}

    run(tmp_path, body)


def test_nothing_is_swept_before_all_have_answered(tmp_path: Path) -> None:
    """Until every containerd has listed, entries of an agent before us stay usable."""

    async def body() -> None:
        first = Bench(tmp_path / "run", (SOCKET, OTHER))
        await first.agent.start()
        await first.create("one", GPU)
        await first.create("two", spec("0"), address=OTHER)
        first.stage.close()
        second = Bench(tmp_path / "run", (SOCKET, OTHER))
        await second.agent.start()
        await second.agent.handle(Synced(SOCKET, ()))
        assert (second.verdict(GPU), second.verdict(spec("0"))) == ("plan", "plan")
        await second.agent.handle(Synced(OTHER, (record("two", spec("0"), address=OTHER),)))
        assert (second.verdict(GPU), second.verdict(spec("0"))) == ("ask", "plan")
        second.stage.close()

    anyio.run(body)


def test_tasks_tell_pids(tmp_path: Path) -> None:
    """Starts, exits and lists of tasks keep the pid; those of unknown containers are ignored."""

    async def body(bench: Bench) -> None:
        await bench.create("one", GPU)
        key, unknown = record("one", b"").key, record("x", b"").key
        pids = []
        for event in (
            TaskStarted(key, 10),
            TaskStarted(unknown, 11),
            TaskExited(key, 10, 0),
            TasksListed(SOCKET, (TaskRecord(key, 12, "running"), TaskRecord(unknown, 1, ""))),
        ):
            await bench.agent.handle(event)
            pids.append(bench.agent.containers[key].pid)
        assert pids == [10, 10, 0, 12]

    run(tmp_path, body)


def test_connections_are_counted(tmp_path: Path) -> None:
    """Whether a containerd is connected, since when, and why not, is known at every moment."""

    async def body(bench: Bench) -> None:
        connection = bench.agent.connections[SOCKET]
        await bench.agent.handle(Connected(SOCKET, "1.7.24", "uuid"))
        await bench.create("one", GPU)
        assert (connection.connected, connection.version, connection.events) == (True, "1.7.24", 1)
        await bench.agent.handle(Disconnected(SOCKET, "gone"))
        assert (connection.connected, connection.synced, connection.error) == (False, False, "gone")
        assert bench.verdict(GPU) == "plan"

    run(tmp_path, body)


def test_new_generation_stages_all_anew(tmp_path: Path) -> None:
    """After a driver change every container has a plan of it, and no old plan file is left."""

    async def body(bench: Bench) -> None:
        await bench.create("one", GPU)
        await bench.create("two", VOID)
        old = bench.stage.plans()
        bench.host.facts = driver("550.54.15")
        await bench.agent.refresh("test")
        assert (bench.verdict(GPU), bench.verdict(VOID)) == ("plan", "none")
        assert bench.agent.change_reason == "test"
        assert bench.stage.plans() & old == frozenset()
        await bench.agent.refresh("again")
        assert bench.agent.change_reason == "test"

    run(tmp_path, body)


def test_old_plans_go_even_if_a_containerd_never_answers(tmp_path: Path) -> None:
    """A configured containerd that is not installed does not make plans pile up."""

    async def body() -> None:
        bench = Bench(tmp_path / "run", (SOCKET, OTHER))
        await bench.agent.start()
        counts = []
        for n in range(15, 20):
            bench.host.facts = driver(f"550.54.{n}")
            await bench.agent.refresh("test")
            counts.append(len(bench.stage.plans()))
        assert counts == [3] * 5  # all, 0 and 1
        bench.stage.close()

    anyio.run(body)


class Watched(Stage):
    """A stage that notes whether a generation was in force when an entry was written."""

    def __init__(self, run_dir: str) -> None:
        super().__init__(run_dir)
        self.seen: list[str | None] = []

    def put_entry(self, spec_digest: str, entry: Entry) -> None:
        self.seen.append(self.generation())
        super().put_entry(spec_digest, entry)


def test_hooks_ask_during_a_change(tmp_path: Path) -> None:
    """While entries of the new generation are written, none is in force: hooks must ask."""

    async def body() -> None:
        stage = Watched(str(tmp_path / "run"))
        host = FakeHost()
        agent = Reconciler(stage, host, Policy(), ProcPaths(), [SOCKET])
        await agent.start()
        for n in range(3):
            await agent.handle(ContainerCreated(record(str(n), spec(more=str(n))), 1))
        stage.seen.clear()
        host.facts = driver("550.54.15")
        await agent.refresh("test")
        assert stage.seen == [None, None, None]
        assert agent.inventory is not None
        assert stage.generation() == agent.inventory.generation
        stage.close()

    anyio.run(body)


def test_refusals_heal_when_the_driver_comes(tmp_path: Path) -> None:
    """Containers created before the driver was there are staged for it when it is."""

    async def body(bench: Bench) -> None:
        bench.host.facts = ABSENT
        await bench.agent.refresh("gone")
        await bench.create("one", GPU)
        entry = bench.entry(GPU)
        assert entry is not None
        assert (entry.verdict, b"no-driver" in entry.detail) == (b"refuse", True)
        bench.host.facts = READY
        await bench.agent.refresh("there")
        assert bench.verdict(GPU) == "plan"
        (tracked,) = bench.agent.containers.values()
        assert (tracked.verdict, "asks for all" in tracked.why) == ("plan", True)

    run(tmp_path, body)


def test_events_before_the_first_reading(tmp_path: Path) -> None:
    """What containerd says before the host is read is staged with the first inventory."""

    async def body() -> None:
        bench = Bench(tmp_path / "run")
        await bench.agent.handle(Synced(SOCKET, (record("one", GPU),)))
        await bench.create("two", spec("0"))
        assert bench.stage.entries() == frozenset()
        await bench.agent.start()
        assert (bench.verdict(GPU), bench.verdict(spec("0"))) == ("plan", "plan")
        bench.stage.close()

    anyio.run(body)


def test_many_refreshes_are_two_readings(tmp_path: Path) -> None:
    """Any number of callers at one moment share one reading that began after they came."""

    async def body(bench: Bench) -> None:
        before = bench.host.readings
        bench.host.gate = anyio.Event()
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(bench.agent.refresh, "test")
            await anyio.wait_all_tasks_blocked()
            bench.host.facts = driver("550.54.15")  # the reading under way misses this
            bench.host.gate.set()
        assert bench.host.readings - before == 2
        inventory = bench.agent.inventory
        assert inventory is not None
        assert inventory.driver_version == "550.54.15"

    run(tmp_path, body)


def test_cancelled_reading_is_done_by_the_next(tmp_path: Path) -> None:
    """A hook that gives up during a reading does not take it away from those who wait."""

    async def body(bench: Bench) -> None:
        bench.host.gate = anyio.Event()
        async with anyio.create_task_group() as group:
            with anyio.move_on_after(0.01):
                await bench.agent.refresh("impatient")
            bench.host.facts = driver("550.54.15")
            group.start_soon(bench.agent.refresh, "patient")
            bench.host.gate.set()
        assert bench.agent.inventory is not None
        assert bench.agent.inventory.driver_version == "550.54.15"

    run(tmp_path, body)


def test_slow_nvml_holds_up_nobody(tmp_path: Path) -> None:
    """A driver change is published while NVML hangs; its answer follows when it comes."""

    async def body(bench: Bench) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(bench.agent.follow_nvml)
            bench.host.nvml_gate = anyio.Event()
            bench.host.facts = driver("550.54.15")
            await bench.create("one", GPU)
            await bench.agent.refresh("test")
            assert bench.verdict(GPU) == "plan"
            first = bench.stage.generation()
            await anyio.wait_all_tasks_blocked()
            bench.host.nvml = replace(READY.nvml, driver_version="550.54.15")
            bench.host.nvml_gate.set()
            await bench.host.news.wait()
            await anyio.wait_all_tasks_blocked()
            assert bench.stage.generation() != first
            assert bench.verdict(GPU) == "plan"
            group.cancel_scope.cancel()

    run(tmp_path, body)


def test_first_inventory_does_not_wait_long_for_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NVML that hangs at start delays the first plans by a bounded time."""
    monkeypatch.setattr(reconcile, "FIRST_NVML_S", 0.05)

    async def body() -> None:
        bench = Bench(tmp_path / "run")
        bench.host.nvml_gate = anyio.Event()
        with anyio.fail_after(5):
            await bench.agent.start()
        assert bench.stage.generation() == build(READY_WITHOUT_NVML).generation
        bench.host.nvml_gate.set()
        async with anyio.create_task_group() as group:
            group.start_soon(bench.agent.follow_nvml)
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert bench.stage.generation() == build(READY).generation
        bench.stage.close()

    anyio.run(body)


READY_WITHOUT_NVML = replace(READY, nvml=FakeHost().answered)


def test_hook_is_answered_for_a_container_nobody_announced(tmp_path: Path) -> None:
    """A hook ahead of its event gets its plan staged, and the event then changes nothing."""

    async def body(bench: Bench) -> None:
        assert await bench.agent.answer(GPU, False) == digest(GPU)
        assert bench.verdict(GPU) == "plan"
        await bench.agent.handle(Synced(SOCKET, ()))
        assert bench.verdict(GPU) == "plan"
        await bench.create("one", GPU)
        await bench.delete("one")
        assert bench.entry(GPU) is None

    run(tmp_path, body)


def test_hook_waits_for_the_first_inventory(tmp_path: Path) -> None:
    """A hook that comes while the agent starts is answered when the host is read."""

    async def body() -> None:
        bench = Bench(tmp_path / "run")
        async with anyio.create_task_group() as group:
            group.start_soon(bench.agent.answer, GPU, False)
            await anyio.wait_all_tasks_blocked()
            assert bench.entry(GPU) is None
            await bench.agent.start()
        assert bench.verdict(GPU) == "plan"
        bench.stage.close()

    anyio.run(body)


def test_stale_answer_reads_the_host_again(tmp_path: Path) -> None:
    """A hook that found a changed source gets a plan of the host as it is now, without NVML."""

    async def body(bench: Bench) -> None:
        asked = bench.host.asked
        bench.host.facts = driver("550.54.15")
        await bench.agent.answer(GPU, True)
        entry = bench.entry(GPU)
        assert entry is not None
        plan = planfile.parse_plan((bench.run_dir / "plans" / entry.detail.decode()).read_bytes())
        assert plan.driver == b"550.54.15"
        assert bench.host.asked == asked

    run(tmp_path, body)


def test_refused_hook_has_the_host_read_first(tmp_path: Path) -> None:
    """A device that came a moment ago is found before its container is refused."""

    async def body(bench: Bench) -> None:
        with pytest.raises(Refused, match="no such GPU: 2"):
            await bench.agent.answer(spec("2"), False)
        three = tuple(fv.nvml_gpu(n) for n in range(3))
        bench.host.facts = replace(READY, gpus=tuple(fv.proc_gpu(n) for n in range(3)))
        bench.host.nvml = fv.nvml(*three)
        assert await bench.agent.answer(spec("2"), False) == digest(spec("2"))
        assert bench.verdict(spec("2")) == "plan"

    run(tmp_path, body)


def test_nonsense_is_refused_without_reading_the_host(tmp_path: Path) -> None:
    """No reading can give meaning to a value that has none."""

    async def body(bench: Bench) -> None:
        before = (bench.host.readings, bench.host.asked)
        for content in (spec("x y"), b"{", b"\xff"):
            with pytest.raises(Refused, match="request: "):
                await bench.agent.answer(content, False)
        assert (bench.host.readings, bench.host.asked) == before

    run(tmp_path, body)


def test_refusal_does_not_wait_for_a_hanging_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook gets its refusal in time although NVML does not answer."""
    monkeypatch.setattr(reconcile, "HEAL_S", 0.05)

    async def body(bench: Bench) -> None:
        bench.host.nvml_gate = anyio.Event()
        with pytest.raises(Refused, match="no such GPU: 9"):
            await bench.agent.answer(spec("9"), False)

    run(tmp_path, body)


def test_emptied_run_directory_is_filled_again(tmp_path: Path) -> None:
    """Whoever removed plans, entries or the generation: the next hook that asks heals it all."""

    async def body(bench: Bench) -> None:
        await bench.create("one", GPU)
        await bench.create("two", spec("0"))
        for path in (*bench.run_dir.glob("plans/*"), bench.run_dir / "staged" / digest(GPU)):
            path.unlink()
        await bench.agent.answer(GPU, False)
        assert bench.verdict(GPU) == "plan"
        (bench.run_dir / "generation").unlink()
        await bench.agent.answer(GPU, False)
        assert (bench.verdict(GPU), bench.verdict(spec("0"))) == ("plan", "plan")

    run(tmp_path, body)


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Specs are not kept, and neither unannounced hooks nor odd requests pile anything up."""
    monkeypatch.setattr(reconcile, "ASKED_KEPT", 5)
    monkeypatch.setattr(shelf, "PLANS_KEPT", 5)

    async def body(bench: Bench) -> None:
        big = spec("0,1", "x" * 1_000_000)
        before = sys.getrefcount(big)
        await bench.create("big", big)
        gc.collect()
        assert sys.getrefcount(big) == before
        for n in range(40):
            await bench.agent.answer(spec(("0", "1", "0,1", "1,0", "all")[n % 5], str(n)), False)
        assert len(bench.stage.entries()) == 6
        for devices in ("0", "1", "all", "none"):
            for words in (b"compute", b"utility", b"compute,utility", b"graphics"):
                asked = spec(devices).replace(b"compute,utility", words)
                await bench.agent.answer(asked, False)
                assert bench.verdict(asked) == "plan"
        assert len(bench.stage.plans()) <= 6
        assert bench.verdict(big) == "plan"

    run(tmp_path, body)


@contextmanager
def small_tmpfs(where: Path) -> Iterator[Path]:
    """A tmpfs with room for a few plans, unmounted afterwards whatever happens."""
    where.mkdir(mode=0o700)
    options = "mode=700,size=256k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "gpu-agent-test", where], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_full_run_directory_heals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without room hooks ask and are told so; with room again publish() makes everything good."""

    async def body(bench: Bench) -> None:
        await bench.create("one", GPU)
        filler = bench.run_dir / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(1 << 20))
        await bench.create("late", spec("1"))
        assert (bench.agent.published, bench.verdict(GPU), bench.verdict(spec("1"))) == (
            *(False, "plan", "ask"),
        )
        bench.host.facts = driver("550.54.15")
        await bench.agent.refresh("test")
        assert (bench.agent.published, bench.stage.generation()) == (False, None)
        for _ in range(3):
            with pytest.raises(StageError, match="No space left"):
                await bench.agent.answer(GPU, False)
        await bench.delete("one")
        filler.unlink()
        bench.agent.publish()
        assert (bench.agent.published, bench.verdict(spec("1"))) == (True, "plan")
        assert bench.stage.entries() == {digest(spec("1"))}
        assert len([r for r in caplog.records if r.message == "not published"]) <= 4

    with small_tmpfs(tmp_path / "run"):
        run(tmp_path, body)


@pytest.mark.skipif(not os.path.isdir(TMPFS), reason="no tmpfs, which the run directory is on")
def test_nothing_blocks_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """200 containers, one by one, as a list and in a change of generation, hold up no callback."""

    async def body(run_dir: Path) -> None:
        asyncio.get_running_loop().slow_callback_duration = 0.1
        bench = Bench(run_dir)
        await bench.agent.start()
        records = [record(str(n), spec("all", "x" * 6000 + str(n))) for n in range(200)]
        await bench.agent.handle(Synced(SOCKET, tuple(records[:100])))
        for made in records[100:]:
            await bench.agent.handle(ContainerCreated(made, 1))
            await asyncio.sleep(0)
        bench.host.facts = driver("550.54.15")
        await asyncio.sleep(0)
        await bench.agent.refresh("test")
        await asyncio.sleep(0)  # what follows is the test's own time
        assert all(bench.verdict(r.spec) == "plan" for r in records)
        bench.stage.close()

    with tempfile.TemporaryDirectory(prefix="ga-", dir=TMPFS) as home:
        anyio.run(body, Path(home) / "run", backend_options={"debug": True})
    assert [r.message for r in caplog.records if r.name == "asyncio" and "took" in r.message] == []


def test_long_list_leaves_turns_to_others(tmp_path: Path) -> None:
    """While 1,000 listed containers are handled, whoever waits gets a turn every 50 of them."""

    async def body(bench: Bench) -> None:
        turns: list[int] = []

        async def watch() -> None:
            while True:
                turns.append(len(bench.agent.containers))
                await asyncio.sleep(0)

        records = tuple(record(str(n), spec("all", str(n))) for n in range(1000))
        async with anyio.create_task_group() as others:
            others.start_soon(watch)
            await asyncio.sleep(0)
            await bench.agent.handle(Synced(SOCKET, records))
            others.cancel_scope.cancel()
        steps = [after - before for before, after in itertools.pairwise([*turns, 1000])]
        assert (sum(steps), max(steps)) == (1000, reconcile.AT_ONCE)
        assert all(bench.verdict(made.spec) == "plan" for made in records)

    run(tmp_path, body)
