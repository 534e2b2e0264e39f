"""Each deliberate weakening of the hook makes its test fail, which passes without it."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from tests.containers.image import missing_tools
from tests.immunity.mutations import REPOSITORY, WEAKENINGS, Weakening, apply, copied, failures

NAMES = [weakening.name for weakening in WEAKENINGS]


@pytest.mark.parametrize("weakening", WEAKENINGS, ids=NAMES)
def test_weakening_can_be_applied(weakening: Weakening) -> None:
    """Its text stands in the sources, and its test exists."""
    text = (REPOSITORY / "hooks" / weakening.file).read_text("utf-8")
    assert weakening.strong in text
    path, _, name = weakening.test.partition("::")
    tree = ast.parse((REPOSITORY / "tests" / path).read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0 or bool(missing_tools()), reason="containers need root")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("weakening", WEAKENINGS, ids=NAMES)
def test_weakening_is_noticed(tmp_path: Path, weakening: Weakening) -> None:
    """The test is green with the hook as it is and red with the weakened one."""
    tree = copied(tmp_path / "tree")
    count, said = failures(tree, weakening.test)
    assert count == 0, said
    apply(tree, weakening)
    count, said = failures(tree, weakening.test)
    assert count > 0, said
