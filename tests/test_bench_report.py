"""The benches' arithmetic and their three outputs: table, JSON, picture."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from click import ClickException
from rich.console import Console

from contrib.bench.report import (
    Budget,
    Line,
    Panel,
    Report,
    Spread,
    as_json,
    as_table,
    edge,
    fields,
    panel,
    picture,
    spread,
)

SVG = "{http://www.w3.org/2000/svg}"


def report(*panels: Panel, budgets: tuple[Budget, ...] = ()) -> Report:
    """A report of a machine that does not matter."""
    return Report("which <way> is quicker?", panels, budgets, ("a remark",), {"cpus": 2})


def test_spread_in_five_numbers() -> None:
    """Median and quartiles interpolate, p99 is a value that was measured."""
    assert spread(range(1, 102)) == Spread(51, 26, 76, 100, 101)


def test_spread_of_one_value() -> None:
    """One value is its own median, quartiles and tail."""
    assert spread([7.0]) == Spread(7, 7, 7, 7, 1)


def test_ratios_are_over_the_base() -> None:
    """The base has ratio 1, others theirs over its median; what was not measured has none."""
    made = panel("t", "ms", {"base": [2.0], "twice": [4.0], "none": []}, base="base")
    assert [line.ratio for line in made.lines] == [1, 2, None]
    assert made.lines[2].spread is None


def test_base_of_zero_gives_no_ratio() -> None:
    """Nothing is infinitely slower than something that takes no time."""
    assert panel("t", "ms", {"base": [0.0], "other": [1.0]}, base="base").lines[1].ratio is None


@pytest.mark.parametrize(
    ("value", "least", "met"),
    [
        (5.0, False, True),
        (5.1, False, False),
        (None, False, None),
        (5.0, True, True),
        (4, True, False),
    ],
)
def test_budget_is_a_limit_or_a_least(value: float | None, least: bool, met: bool | None) -> None:
    """A budget is kept at its limit exactly, and unknown where nothing was measured."""
    assert Budget("b", value, 5.0, "ms", least=least).met is met


def test_json_holds_everything() -> None:
    """Panels, budgets with their verdict, remarks and the machine, in one object."""
    made = report(panel("p", "ms", {"a": [1.0]}), budgets=(Budget("b", 1.0, 2.0, "ms"),))
    answer = json.loads(as_json(made))
    assert answer == fields(made)
    assert answer["panels"][0]["lines"][0]["spread"]["median"] == 1.0
    assert answer["budgets"][0]["met"] is True
    assert (answer["remarks"], answer["machine"]) == (["a remark"], {"cpus": 2})


def test_table_says_what_was_not_measured() -> None:
    """A line without a spread stays in the table."""
    console = Console(width=120)
    with console.capture() as capture:
        console.print(as_table(Panel("p", "ms", (Line("a", None, note="no GPU"),))))
    assert "not measured" in capture.get()
    assert "no GPU" in capture.get()


def test_picture_draws_to_scale() -> None:
    """Bars of one panel share a scale from zero, panels do not; text is escaped."""
    made = report(panel("p", "ms", {"a": [1.0], "b": [4.0]}), panel("q", "MiB", {"c": [1.0]}))
    page = ElementTree.fromstring(picture(made))
    widths = [float(r.get("width", "")) for r in page.iter(f"{SVG}rect") if r.get("x")]
    assert widths[1] == pytest.approx(4 * widths[0])
    assert widths[2] == widths[1]
    assert "which <way> is quicker?" in [t.text for t in page.iter(f"{SVG}text")]


def test_picture_leaves_out_what_was_not_measured() -> None:
    """No bar stands for a number that does not exist."""
    page = ElementTree.fromstring(picture(report(panel("p", "ms", {"a": []}))))
    assert [r for r in page.iter(f"{SVG}rect") if r.get("x")] == []


def test_expected_failure_is_one_line() -> None:
    """What a bench expects to fail becomes one line, also out of a task group."""
    with pytest.raises(ClickException, match=r"^no room$"), edge("", OSError):
        raise OSError("no room")
    with pytest.raises(ClickException, match=r"^no room$"), edge("", OSError):
        raise ExceptionGroup("g", [ExceptionGroup("h", [OSError("no room")])])


def test_defect_is_not_hidden() -> None:
    """Any other error keeps its traceback, beside an expected one too."""
    with pytest.raises(ExceptionGroup), edge("", OSError):
        raise ExceptionGroup("g", [OSError("no room"), KeyError("defect")])


def test_missing_tool_ends_at_once() -> None:
    """Where something is missing nothing is measured."""
    with pytest.raises(ClickException, match="not installed: runc"), edge("not installed: runc"):
        pytest.fail("measured")
