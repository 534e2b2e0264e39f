"""Replays that hooks recorded, and what they come to in numbers.

Pure: whoever reads the hook's records makes ReplayRecords of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


class ReplayPath(enum.StrEnum):
    """How a hook came to its plan.

    NONE: there was none to come to, as the container asks for no GPU or the hook failed first.
    """

    STAGED = "staged"
    ASKED = "asked"
    STANDALONE = "standalone"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """One run of the hook, as it recorded it. `at` is Unix time, `phases` (name, ms) in order."""

    label: str
    ok: bool
    path: ReplayPath
    total_ms: float
    phases: tuple[tuple[str, float], ...]
    error: str | None
    at: float


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """Many replays in numbers.

    `count` is all of them, `none` those that had nothing to do, `failures` those that refused.
    The times are of the others only: replays that gave a container its GPU. `phases` are
    medians and `phases_p99` 99th percentiles (name, ms), in the order in which a replay goes
    through them. `slowest` names the container that took longest, and the phase that lies
    furthest above its median there.
    """

    count: int
    staged: int
    asked: int
    standalone: int
    none: int
    failures: int
    last_failure: str | None
    median_ms: float | None
    p99_ms: float | None
    phases: tuple[tuple[str, float], ...]
    phases_p99: tuple[tuple[str, float], ...]
    slowest: str | None


def summarise(records: Iterable[ReplayRecord]) -> ReplaySummary:
    """Replays in numbers; the same records give the same summary, in any order."""
    known = sorted(records, key=lambda r: (r.at, r.label))
    failed = [r for r in known if not r.ok]
    timed = [r for r in known if r.ok and r.path is not ReplayPath.NONE]
    totals = [r.total_ms for r in timed]
    by_phase: dict[str, list[float]] = {}
    for record in timed:
        for name, ms in record.phases:
            by_phase.setdefault(name, []).append(ms)
    return ReplaySummary(
        count=len(known),
        staged=sum(r.path is ReplayPath.STAGED for r in known),
        asked=sum(r.path is ReplayPath.ASKED for r in known),
        standalone=sum(r.path is ReplayPath.STANDALONE for r in known),
        none=sum(r.ok and r.path is ReplayPath.NONE for r in known),
        failures=len(failed),
        last_failure=f"{failed[-1].label}: {failed[-1].error}" if failed else None,
        median_ms=quantile(totals, 0.5),
        p99_ms=quantile(totals, 0.99),
        phases=_each(by_phase, 0.5),
        phases_p99=_each(by_phase, 0.99),
        slowest=_slowest(timed, dict(_each(by_phase, 0.5))),
    )


def _each(by_phase: Mapping[str, Sequence[float]], q: float) -> tuple[tuple[str, float], ...]:
    return tuple((name, quantile(values, q) or 0.0) for name, values in by_phase.items())


def _slowest(timed: Sequence[ReplayRecord], medians: Mapping[str, float]) -> str | None:
    if not timed:
        return None
    record = max(timed, key=lambda r: r.total_ms)
    name, ms = max(record.phases, key=lambda p: p[1] - medians[p[0]], default=("nothing", 0.0))
    return f"{record.label}: {record.total_ms:.1f} ms, of it {name} {ms:.1f} ms"


def quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest value that at least the part `q` (0 to 1) of `values` does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    rank = -(-len(ordered) * q // 1)  # nearest rank, rounded up
    return ordered[max(int(rank), 1) - 1]
