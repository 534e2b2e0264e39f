"""The table of the suite: every row of the plan is there and names tests that exist."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.immunity.rows import ROWS, RULES, Row
from tests.immunity.table import Result, line, main, verdict

TESTS = Path(__file__).parents[1]
PLAN = (
    *("T-0132a", "T-0132b", "T-0132c", "T-0132d", "T-0133", "T-0134", "T-0135", "T-0136"),
    *("T-23266", "T-23267", "T-24260", "T-1056", "T-PROC", "T-DEV", "T-FD", "T-CG", "T-ANN"),
    *("T-LAZY", "T-PLAN", "T-SOCK", "T-STATE", "T-CR", "T-DUP"),
)
# Dropping privileges within the hook is not built; see README.md beside this file.
WITHOUT_TEST = {"R17"}

XML = """<testsuites><testsuite>
<testcase classname="tests.immunity.test_paths" name="test_proc_is_something_else[link]"/>
<testcase classname="tests.kernel.test_bad_images" name="test_directory_is_a_link[classic-etc]">
<failure/></testcase>
<testcase classname="tests.immunity.test_races" name="test_directory_becomes_a_link[etc-40 runs]"/>
</testsuite></testsuites>"""


@functools.cache
def names(path: Path) -> set[str]:
    """The tests of one file."""
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_of_the_plan_is_there() -> None:
    """No attack and no rule is left out."""
    assert tuple(row.name for row in ROWS) == PLAN
    rules = {row.name for row in RULES}
    assert rules | WITHOUT_TEST == {f"R{number}" for number in range(1, 33)}
    assert rules & WITHOUT_TEST == set()


@pytest.mark.parametrize("row", [*ROWS, *RULES], ids=lambda row: row.name)
def test_named_tests_exist(row: Row) -> None:
    """Each row names at least one test, and each of them is in its file."""
    assert row.tests
    for test in row.tests:
        path, _, name = test.partition("::")
        assert name in names(TESTS / path), test


def test_every_row_is_described() -> None:
    """The page beside this file has a line for each row of attacks."""
    page = (TESTS / "immunity/README.md").read_text("utf-8")
    assert [row.name for row in ROWS if f"| {row.name} |" not in page] == []


def test_table_of_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What ran, where, and how it ended; a row that is not green is an error."""
    file = tmp_path / "results.xml"
    file.write_text(XML)
    assert main([str(file)]) == 1
    printed = capsys.readouterr().out
    assert "| T-PROC |" in printed
    assert "| 1 | passed |" in printed
    assert "no openat2, no open_tree" in printed
    assert "| 1 | FAILED |" in printed
    assert "| 40 | passed (not run: 1) |" in printed
    assert "DID NOT RUN" in printed


def test_skipped_is_not_passed() -> None:
    """A test that was skipped proves nothing."""
    row = ROWS[0]
    skipped = Result(row.tests[0], "", "skipped", 1)
    assert verdict([skipped]) == "DID NOT RUN"
    assert "DID NOT RUN (not run: 1)" in line(row, [skipped])
