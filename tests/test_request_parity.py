"""The table of inputs, parity-requests.md: its tests exist, and every row has one or a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = TESTS / "parity-requests.md"


def rows() -> list[list[str]]:
    """The cells of every row below a table's head."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "input"]


def existing() -> set[str]:
    """Every test function of this directory."""
    return {
        node.name
        for path in TESTS.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_named_tests_exist() -> None:
    """Every test that the table names is there."""
    named = {name for row in rows() for name in re.findall(r"`(test_\w+)`", row[2])}
    assert len(named) > 60
    assert named - existing() == set()


def test_every_row_has_a_test_or_a_reason() -> None:
    """A row without a test says why its input has no meaning here."""
    assert [len(row) for row in rows()] == [3] * len(rows())
    silent = [row[0] for row in rows() if "`test_" not in row[2] and "no meaning" not in row[1]]
    assert silent == []
