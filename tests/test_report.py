"""Report values: replays in numbers, containers by name, inventory for people."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import AmbiguousContainer, UnknownContainer
from agent.facts.values import IpcFact
from agent.plan import BindIpc, Plan
from agent.replays import ReplayPath, ReplayRecord, quantile, summarise
from agent.report import (
    ContainerReport,
    container_name,
    find_container,
    inventory_report,
    plan_report,
)
from agent.request import Capability, Request
from tests.fake_source import INVENTORY, MIG


def record(
    path: ReplayPath, total_ms: float, at: float, *, error: str | None = None, mount_ms: float = 1.0
) -> ReplayRecord:
    return ReplayRecord(
        f"default/c{at:g}", error is None, path, total_ms, (("mount", mount_ms),), error, at
    )


def test_summary_counts_and_times() -> None:
    """Counts are of all replays, times only of those that gave a container its GPU."""
    summary = summarise(
        [
            record(ReplayPath.STAGED, 10.0, 1, mount_ms=4.0),
            record(ReplayPath.STAGED, 12.0, 2, mount_ms=5.0),
            record(ReplayPath.ASKED, 40.0, 3, mount_ms=6.0),
            record(ReplayPath.STANDALONE, 400.0, 4, error="older failure"),
            record(ReplayPath.NONE, 0.1, 5),
            record(ReplayPath.NONE, 900.0, 6, error="no agent"),
        ]
    )
    assert (summary.count, summary.failures) == (6, 2)
    assert (summary.staged, summary.asked, summary.standalone, summary.none) == (2, 1, 1, 1)
    assert summary.last_failure == "default/c6: no agent"
    assert (summary.median_ms, summary.p99_ms) == (12.0, 40.0)
    assert summary.phases == (("mount", 5.0),)
    assert summary.phases_p99 == (("mount", 6.0),)


def test_summary_names_the_slowest_and_what_made_it_slow() -> None:
    """Not its longest phase, which may be long in every replay, but the one that stands out."""
    phases = [(("interpreter", 8.0), ("mounts", 1.0))] * 3 + [
        (("interpreter", 9.0), ("mounts", 7.0))
    ]
    summary = summarise(
        ReplayRecord(f"default/c{n}", True, ReplayPath.STAGED, sum(ms for _, ms in p), p, None, n)
        for n, p in enumerate(phases)
    )
    assert summary.slowest == "default/c3: 16.0 ms, of it mounts 7.0 ms"


def test_summary_of_nothing() -> None:
    """An agent that has seen no replay has no times, not zero."""
    summary = summarise([])
    assert (summary.count, summary.median_ms, summary.p99_ms) == (0, None, None)
    assert (summary.last_failure, summary.phases, summary.slowest) == (None, (), None)


@given(st.permutations([record(p, float(i), i) for i, p in enumerate(ReplayPath)]))
def test_summary_does_not_depend_on_order(records: list[ReplayRecord]) -> None:
    """Records picked up in another order give the same numbers."""
    assert summarise(records) == summarise(sorted(records, key=lambda r: r.at))


@pytest.mark.parametrize(
    ("count", "q", "expected"),
    [
        (1, 0.5, 1),
        (2, 0.5, 1),
        (3, 0.5, 2),
        (100, 0.99, 99),
        (101, 0.99, 100),
        (5, 1, 5),
        (5, 0, 1),
    ],
)
def test_quantile_is_nearest_rank(count: int, q: float, expected: float) -> None:
    """A quantile is a value that really occurred."""
    assert quantile([float(n) for n in range(count, 0, -1)], q) == expected


def container(namespace: str, name: str, address: str = "/run/a.sock") -> ContainerReport:
    return ContainerReport(address, namespace, name, "none", "", "")


KNOWN = (
    container("k8s.io", "abc123"),
    container("k8s.io", "abd456"),
    container("default", "web"),
    container("default", "web-2"),
    container("moby", "twin"),
    container("moby", "twin", "/run/b.sock"),
)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        *(("abc123", 0), ("abc", 0), ("k8s.io/abd", 1), ("default/web-", 3)),
        *(("web", 2), ("default/web", 2), ("/run/b.sock:moby/twin", 5)),
    ],
)
def test_container_is_found(asked: str, found: int) -> None:
    """Ids, beginnings of ids and full names; an exact id wins over longer ones."""
    assert find_container(asked, KNOWN) is KNOWN[found]


@pytest.mark.parametrize("asked", ["ab", "twin", "moby/twin", "k8s.io/"])
def test_ambiguous_names_list_candidates(asked: str) -> None:
    """What fits two containers is not guessed; every candidate is listed by its full name."""
    with pytest.raises(AmbiguousContainer) as caught:
        find_container(asked, KNOWN)
    fitting = [c for c in KNOWN if asked in f"{c.namespace}/{c.id}"]
    for candidate in fitting:
        assert container_name(candidate) in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("asked", ["", "zzz", "bc123", "/run/c.sock:moby/twin"])
def test_unknown_container(asked: str) -> None:
    """A name that fits nothing is wrong input."""
    with pytest.raises(UnknownContainer, match="no such container"):
        find_container(asked, KNOWN)


def test_inventory_report_has_what_people_need() -> None:
    """Versions in words, GPUs with health and MIG devices, host paths."""
    made = inventory_report(INVENTORY)
    assert made.driver.cuda_version == "13.0"
    assert [g.health for g in made.gpus] == ["ok", "the GPU is lost"]
    assert made.gpus[0].migs[0].uuid == MIG
    assert made.nodes[0].path == "/dev/nvidiactl"
    assert made.programs[0].path == "/usr/bin/nvidia-smi"
    without = inventory_report(dataclasses.replace(INVENTORY, cuda_version=None))
    assert without.driver.cuda_version is None


def test_plan_report_is_the_plan_in_words() -> None:
    """Steps keep their order and the request stands beside them."""
    step = BindIpc(IpcFact("/run/x", "/host/x", "socket"))
    plan = Plan("0123456789abcdef", "580.1", "/proc/v", "text", (step, step))
    made = plan_report(plan, "d" * 32, Request(("0",), (Capability.COMPUTE,), "X"))
    assert made.steps == (step.describe(), step.describe())
    assert (made.devices, made.capabilities) == (("0",), ("compute",))
    assert (made.plan, made.driver_version) == ("d" * 32, "580.1")
