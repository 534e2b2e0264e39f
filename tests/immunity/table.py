"""The table of the immunity suite, made of what really ran.

    .venv/bin/python -m pytest tests --junitxml=results.xml
    .venv/bin/python -m tests.immunity.table results.xml >table.md

A row without a test that ran, or with one that failed, makes the exit status 1.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as xml
from collections.abc import Iterable
from dataclasses import dataclass

from tests.immunity.rows import ROWS, RULES, Row

# Words in a test's parameters that name a runtime or a mode.
RUNTIMES = ("runc", "crun")
KERNELS = {"detached": "new kernel", "classic": "no openat2, no open_tree"}


@dataclass(frozen=True, slots=True)
class Result:
    """One test that was collected: its node id below tests/, parameters, outcome and runs."""

    test: str
    parameters: str
    outcome: str
    runs: int

    @property
    def modes(self) -> set[str]:
        """Where it ran, as far as its name and parameters say."""
        words = self.parameters.replace(" ", "-").split("-")
        found = {KERNELS[word] for word in words if word in KERNELS}
        found |= {word for word in words if word.startswith(RUNTIMES)}
        found.add(
            "cgroup v2"
            if "in_v2" in self.test or "test_v2" in self.test
            else "cgroup as on the host"
        )
        return found


def read(path: str) -> list[Result]:
    """The results in a JUnit file that pytest has written."""
    return [_result(case) for case in xml.parse(path).iter("testcase")]


def _result(case: xml.Element) -> Result:
    name, _, parameters = case.get("name", "").partition("[")
    module = case.get("classname", "").removeprefix("tests.").replace(".", "/")
    outcome = next((c.tag for c in case if c.tag in ("failure", "error", "skipped")), "passed")
    runs = re.search(r"(\d+) runs", parameters)
    count = int(runs[1]) if runs else 1
    return Result(f"{module}.py::{name}", parameters.rstrip("]"), outcome, count)


def verdict(results: Iterable[Result]) -> str:
    """`passed`, `failed`, or what is missing."""
    outcomes = {result.outcome for result in results}
    if outcomes & {"failure", "error"}:
        return "FAILED"
    return "passed" if "passed" in outcomes else "DID NOT RUN"


def line(row: Row, results: list[Result]) -> str:
    """One row in Markdown."""
    own = [result for result in results if result.test in row.tests]
    ran = [result for result in own if result.outcome != "skipped"]
    modes = ", ".join(sorted(set().union(*(result.modes for result in ran))))
    tests = ", ".join(f"`{test}`" for test in row.tests)
    missing = {*row.tests} - {result.test for result in ran}
    result = verdict(own) + (f" (not run: {len(missing)})" if missing else "")
    runs = sum(result.runs for result in ran)
    return f"| {row.name} | {row.attack} | {tests} | {modes} | {runs} | {result} |"


def table(results: list[Result]) -> str:
    """The whole table in Markdown."""
    head = "| row | attack or rule | tests | modes | runs | result |\n|---|---|---|---|---|---|"
    return "\n".join([head, *(line(row, results) for row in (*ROWS, *RULES))])


def main(arguments: list[str]) -> int:
    """Print the table of a results file; 1 if any row is not green."""
    results = read(arguments[0])
    sys.stdout.write(f"{table(results)}\n")
    own = [[r for r in results if r.test in row.tests] for row in (*ROWS, *RULES)]
    return int(any(verdict(found) != "passed" for found in own))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
