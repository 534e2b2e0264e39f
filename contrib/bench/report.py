"""What every bench shares: spread, ratios and budgets as a table, as JSON, and on the terminal.

A report holds numbers that were measured side by side in one run on one machine; the load of the
machine at that moment goes with them. Nothing here measures, and no number is left out: what was
not measured is a line without a spread that says why.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from agent.replays import quantile
from contrib.bench.bars import Bar, Group, draw

T = TypeVar("T")
Command = Callable[..., None]
PYTHON = "/usr/bin/python3"
PIPE_WIDTH = 120
"""Columns where there is no terminal that has some."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Measured values in five numbers: median, quartiles, 99th percentile, how many."""

    median: float
    low: float
    high: float
    p99: float
    n: int


@dataclass(frozen=True, slots=True)
class Line:
    """One of the things compared. `ratio` is over the panel's base; `note` is for people."""

    name: str
    spread: Spread | None
    ratio: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines in one unit. `base` names what their ratios are over, "" if they have none."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    base: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """A promise and what was measured; a `least` one must be reached, others not exceeded."""

    what: str
    value: float | None
    limit: float
    unit: str
    least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether it is kept; None where nothing was measured."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to one question."""

    question: str
    panels: tuple[Panel, ...]
    budgets: tuple[Budget, ...] = ()
    remarks: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=lambda: machine())


def spread(values: Iterable[float]) -> Spread:
    """The spread of at least one value."""
    known = sorted(values)
    low, _, high = statistics.quantiles(known, method="inclusive") if known[1:] else known * 3
    p99 = quantile(known, 0.99)
    return Spread(
        statistics.median(known), low, high, known[-1] if p99 is None else p99, len(known)
    )


def ratio(value: Spread | None, base: Spread | None) -> float | None:
    """How many times `base` a median is; None where one of them is missing or zero."""
    if value is None or base is None or not base.median:
        return None
    return value.median / base.median


def panel(title: str, unit: str, values: Mapping[str, Sequence[float]], base: str = "") -> Panel:
    """A panel of measured values by name, with ratios over the one that is named `base`."""
    spreads = {name: spread(v) if v else None for name, v in values.items()}
    below = spreads.get(base)
    lines = tuple(Line(name, s, ratio(s, below)) for name, s in spreads.items())
    return Panel(title, unit, lines, base)


def machine() -> dict[str, Any]:
    """What the numbers depend on, and how busy the machine was."""
    return {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "runc": first_line("runc", "--version").removeprefix("runc version "),
        "python": first_line(PYTHON, "--version").removeprefix("Python "),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def first_line(*command: str) -> str:
    """The first line a program says about its version, "" if it is not there."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return ""
    return done.stdout.partition("\n")[0].strip()


def as_json(report: Report) -> str:
    """The report as one JSON object."""
    return json.dumps(fields(report))


def fields(report: Report) -> dict[str, Any]:
    """The report as JSON knows it; what was not measured is null."""
    return {
        "question": report.question,
        "panels": [_rounded(asdict(p)) for p in report.panels],
        "budgets": [{**_rounded(asdict(b)), "met": b.met} for b in report.budgets],
        "remarks": list(report.remarks),
        "machine": report.machine,
    }


def as_table(panel: Panel) -> Table:
    """One panel for people."""
    over = [f"x {panel.base}"] if panel.base else []
    notes = [""] if any(line.note for line in panel.lines) else []
    heads = ["", f"median {panel.unit}", "quartiles", "p99", "n", *over, *notes]
    table = Table(*heads, title=panel.title, title_justify="left")
    for line in panel.lines:
        s = line.spread
        cells = ["not measured", "", "", ""] if s is None else _cells(s)
        times = [_times(line.ratio)] if over else []
        table.add_row(line.name, *cells, *times, *([line.note] if notes else []))
    return table


def picture(report: Report) -> str:
    """The report as an SVG picture."""
    return draw(report.question, [_group(panel) for panel in report.panels])


def _group(panel: Panel) -> Group:
    bars = tuple(
        Bar(line.name, s.median, s.low, s.high, _label(s, line.ratio, panel))
        for line in panel.lines
        if (s := line.spread) is not None
    )
    return Group(f"{panel.title} ({panel.unit})", bars)


def output_options(command: Command) -> Command:
    """The options `--json` and `--svg FILE` that every bench has."""
    command = click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")(
        command
    )
    return click.option(
        "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw a picture too."
    )(command)


def show(report: Report, as_object: bool, svg: Path | None) -> None:
    """Print a report as the output options say."""
    if svg is not None:
        svg.write_text(picture(report))
    if as_object:
        click.echo(as_json(report))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    for shown in report.panels:
        console.print(as_table(shown))
    for budget in report.budgets:
        console.print(_verdict(budget), highlight=False)
    for remark in report.remarks:
        console.print(remark, highlight=False)
    console.print(", ".join(f"{k} {v}" for k, v in report.machine.items()), highlight=False)


def progress(items: Sequence[T], what: str) -> Iterable[T]:
    """The items, with a bar on stderr while they are gone through if somebody looks."""
    talk = Console(stderr=True)
    return track(items, what, console=talk, transient=True, disable=not talk.is_terminal)


@contextmanager
def edge(missing: str, *expected: type[Exception]) -> Iterator[None]:
    """The edge of a command: what is `missing` or fails as `expected` is one line, exit 1.

    SIGTERM then unwinds the stack as Ctrl-C does, so that containers, mounts and processes go.
    """
    if missing:
        raise click.ClickException(missing)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except expected as e:
        raise click.ClickException(str(e)) from e
    except BaseExceptionGroup as group:
        # What ends a task group comes wrapped.
        known, other = group.split(expected)
        if known is None or other is not None:
            raise
        raise click.ClickException(str(_first(known))) from group
    finally:
        signal.signal(signal.SIGTERM, before)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def _terminate(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)


def _verdict(budget: Budget) -> str:
    words = {True: "kept", False: "MISSED", None: "not measured"}
    sign = ">=" if budget.least else "<="
    value = "" if budget.value is None else f"{number(budget.value)} "
    return (
        f"budget {words[budget.met]}: {budget.what}: {value}{sign} {budget.limit:g} {budget.unit}"
    )


def _label(s: Spread, times: float | None, panel: Panel) -> str:
    return f"{number(s.median)} {panel.unit}" + (f", {_times(times)} x" if times else "")


def _cells(s: Spread) -> list[str]:
    return [number(s.median), f"{number(s.low)} - {number(s.high)}", number(s.p99), str(s.n)]


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 0.1 else f"{value:.2f}"


def number(value: float) -> str:
    """A number with as many digits as mean something."""
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, 4)
        case dict():
            return {key: _rounded(v) for key, v in value.items()}
        case list() | tuple():
            return [_rounded(v) for v in value]
    return value
