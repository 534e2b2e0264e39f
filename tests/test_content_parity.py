"""The table of contents, parity-content.md: its tests exist, and every row has one or a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = TESTS / "parity-content.md"
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def rows() -> list[list[str]]:
    """The cells of every row below a table's head."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "thing"]


def functions_in(name: str) -> set[str]:
    """The test functions of one file below this directory; empty where there is none."""
    path = TESTS / name
    body = ast.parse(path.read_text()).body if path.is_file() else []
    return {n.name for n in body if isinstance(n, ast.FunctionDef)}


def test_named_tests_exist() -> None:
    """Every test that the table names is there."""
    named = {pair for row in rows() for pair in NAMED.findall(row[2])}
    assert len(named) > 80
    assert sorted(pair for pair in named if pair[1] not in functions_in(pair[0])) == []


def test_every_row_has_a_test_or_a_reason() -> None:
    """A row without a test says why the thing has no meaning here."""
    assert [len(row) for row in rows()] == [3] * len(rows())
    silent = [row[0] for row in rows() if not NAMED.search(row[2]) and "no meaning: " not in row[1]]
    assert silent == []
