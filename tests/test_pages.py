"""The pages that list every input with its test: nothing is left out, and each test exists.

`contrib/features` makes the README's feature table of them, which is compared here.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrib import features
from contrib.features import Row

TESTS = Path(__file__).parent
INPUTS = (
    *("B001", "B025", "B035", "B039", "B050", "B052", "B056", "B061", "B063", "B069", "B084"),
    *("B086", "B098", "B111", "B117", "B119", "B125", "B139", "B145", "B171", "B187"),
)
"""Every input of the collection of public bug reports that the project was given."""
CHECKLIST = tuple(f"I{n}" for n in range(1, 16))
"""Every item of its checklist for a replacement of the usual tools."""


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """All rows of all pages."""
    return features.read()


@functools.cache
def collected(name: str) -> frozenset[str]:
    """The tests of one file as pytest names them, without parameters; empty where there is none."""
    path = TESTS / name
    return frozenset(_tests(ast.parse(path.read_text()))) if path.is_file() else frozenset()


def _tests(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            yield f"{prefix}{node.name}"
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _tests(node, f"{prefix}{node.name}::")


def test_named_tests_exist(rows: list[Row]) -> None:
    """Every test that a page names is one that pytest collects."""
    named = {test for row in rows for test in row.tests}
    assert len(named) > 300
    gone = [n for n in named if n.partition("::")[2] not in collected(n.partition("::")[0])]
    assert sorted(gone) == []


def test_every_row_has_a_test_or_a_reason(rows: list[Row]) -> None:
    """A row without a test says why the thing has no meaning here, or what is not there yet."""
    assert [r.thing for r in rows if not (r.tests or r.excused or r.missing)] == []
    # A cell that names a test in another form would count for nothing, silently.
    odd = [r.thing for r in rows if len(r.tests) != r.pinned.count("::test_") or "`" in r.section]
    assert odd == []


def test_no_thing_twice(rows: list[Row]) -> None:
    """A thing stands once in its section, so that no two rows say different things of it."""
    places = [(row.page, row.section, row.thing) for row in rows]
    assert sorted(set(places)) == sorted(places)


def test_every_bug_input_has_its_row(rows: list[Row]) -> None:
    """The page of bug inputs has each number once, and nothing else."""
    things = [r.thing.split(" ")[0] for r in rows if r.page == "tests/bug-inputs.md"]
    assert tuple(things) == INPUTS


def test_every_item_of_the_checklist_is_there(rows: list[Row]) -> None:
    """Each item of the checklist has at least one row."""
    found = {row.thing.split(" ")[0] for row in rows if row.page == "tests/parity-checklist.md"}
    assert sorted(set(CHECKLIST) - found) == []


def test_readme_has_the_table_of_the_pages(rows: list[Row]) -> None:
    """The README's feature table is what `contrib/features` makes of the pages."""
    readme = features.README.read_text("utf-8")
    assert features.written(readme, rows) == readme, "run contrib/features"


def test_table_tells_what_is_missing() -> None:
    """A section without gaps works, one with gaps names them, one of reasons says so."""
    text = """# page
## Sound & whole
| a | b | c |
|---|---|---|
| x | the same | `test_x.py::test_y` |

## Holed
| a | b | c |
|---|---|---|
| x | the same | `kernel/test_x.py::TestA::test_y` |
| z | half; not yet: the other half of z | `test_x.py::test_y` |

## Foreign
| a | b | c |
|---|---|---|
| w | no meaning: WSL2 only | |
"""
    assert features.table(list(features.rows_of("p.md", text)))[2:] == [
        "| [Sound & whole](p.md#sound--whole) | works |",
        "| [Holed](p.md#holed) | works, but not yet: the other half of z |",
        "| [Foreign](p.md#foreign) | no meaning here, with the reason |",
    ]


def test_row_of_another_form_is_refused() -> None:
    """A row with a cell too many is an error that shows it, as is a README without the marks."""
    with pytest.raises(ValueError, match=r"p.md: 4 cells, 3 expected: \| a \| b"):
        list(features.rows_of("p.md", "| h | h | h |\n|---|---|---|\n| a | b | c | d |\n"))
    with pytest.raises(ValueError, match=r"README.md: .* expected"):
        features.written(f"text {features.END}", [])
