"""The README's table of tested versions names what the tests really run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.containers.runtimes import PACKAGES, PROGRAMS, other_release
from tests.debian_pool import NotObtainable

README = Path(__file__).parents[1] / "README.md"
ROWS = {"trixie": r"{0} \(Debian 13\)", "sid": r"{1}\.[0-9.]+ \(sid"}
"""How a row names a version; sid moves on, so of its version only the first number is held to."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("codename", PACKAGES)
def test_readme_has_the_versions(codename: str) -> None:
    """Each program's version stands in its row, with the release it is of."""
    try:
        root = other_release(codename)
    except NotObtainable as e:
        pytest.skip(str(e))
    text = README.read_text()
    for program in (*PROGRAMS, "usr/bin/containerd"):
        said = subprocess.run([root / program, "--version"], capture_output=True, text=True)
        version = re.search(r"\d+\.\d+(\.\d+)?", said.stdout)
        assert version is not None, said
        row = re.search(rf"^\| {Path(program).name} \| (.*) \|$", text, re.MULTILINE)
        assert row is not None, program
        parts = re.escape(version[0]), version[0].partition(".")[0]
        assert re.search(ROWS[codename].format(*parts), row[1])
