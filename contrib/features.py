"""The feature table of README.md, made of the pages that list every input and its test.

    contrib/features             write the table between its marks in README.md
    contrib/features --check     change nothing; exit 1 where the table is not that of the pages

A page is a list of tables of three columns: a thing, what is done with it here, and the tests that
pin that. A row without a test says "no meaning: ..." or "not yet: ..."; the table is made of
nothing else, so nobody can claim a feature in one place and lack it in the other.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = (
    "tests/parity-content.md",
    "tests/parity-requests.md",
    "tests/parity-checklist.md",
    "tests/bug-inputs.md",
)
BEGIN = "<!-- made by contrib/features: begin -->"
END = "<!-- made by contrib/features: end -->"

TEST = re.compile(r"`((?:\w+/)*test_\w+\.py(?:::\w+)+)`")
"""A test as pytest names it, below tests/ and without parameters."""
NO_MEANING = re.compile(r"\bno meaning: (.+)")
NOT_YET = re.compile(r"\bnot yet: (.+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a page. `thing`, `here` and `pinned` are its cells, `section` its heading."""

    page: str
    section: str
    thing: str
    here: str
    pinned: str

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests it names."""
        return tuple(TEST.findall(self.pinned))

    @property
    def missing(self) -> str | None:
        """What is not there yet, None if nothing is."""
        found = NOT_YET.search(self.here)
        return found[1] if found else None

    @property
    def excused(self) -> bool:
        """Whether the thing has no meaning here, with the reason."""
        return not self.tests and NO_MEANING.search(self.here) is not None


def rows_of(page: str, text: str) -> Iterator[Row]:
    """The rows of a page's tables. Raises ValueError for a table line of other than 3 cells."""
    section = ""
    head = True
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:].strip()
        if not line.startswith("|"):
            head = True
        elif head:
            head = False
        elif not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) != 3:
                raise ValueError(f"{page}: {len(cells)} cells, 3 expected: {line[:60]}")
            yield Row(page, section, *cells)


def read(pages: Iterable[str] = PAGES) -> list[Row]:
    """All rows of the pages, in their order."""
    return [row for page in pages for row in rows_of(page, (ROOT / page).read_text("utf-8"))]


def table(rows: Sequence[Row]) -> list[str]:
    """The lines of the feature table: one a section, with what it lacks by name."""
    lines = ["| what | state |", "|---|---|"]
    for page, section in dict.fromkeys((row.page, row.section) for row in rows):
        own = [row for row in rows if (row.page, row.section) == (page, section)]
        lines.append(f"| [{section}]({page}#{_anchor(section)}) | {_state(own)} |")
    return lines


def _state(rows: Sequence[Row]) -> str:
    missing = "; ".join(row.missing for row in rows if row.missing)
    if all(row.excused for row in rows):
        return "no meaning here, with the reason"
    if not any(row.tests for row in rows):
        return f"not yet: {missing}"
    return f"works, but not yet: {missing}" if missing else "works"


def written(readme: str, rows: Sequence[Row]) -> str:
    """The README with the table of these rows. Raises ValueError where it has not both marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md: {BEGIN} and {END} expected")
    return "\n".join([f"{before}{BEGIN}", *table(rows), f"{END}{after}"])


def main(arguments: Sequence[str]) -> int:
    """The command; 2 for wrong usage or a page that cannot be read."""
    if list(arguments) not in ([], ["--check"]):
        print("usage: contrib/features [--check]", file=sys.stderr)
        return 2
    old = README.read_text("utf-8")
    try:
        new = written(old, read())
    except (ValueError, OSError) as e:
        print(f"features: {e}", file=sys.stderr)
        return 2
    if new == old:
        return 0
    if arguments:
        print("features: README.md is older than its pages: run contrib/features", file=sys.stderr)
        return 1
    README.write_text(new, "utf-8")
    return 0


def _anchor(heading: str) -> str:
    """The anchor that a Markdown heading has: lower case, no punctuation, dashes for spaces."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
