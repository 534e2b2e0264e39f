"""The fixtures of `tests.kernel`, and what a hostile image has beside it: a canary of the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.immunity.oracles import make_canary
from tests.immunity.races import Cell, Flipper, build_flipper, cell, flipping
from tests.kernel.conftest import either, every, old_kernel, root, starter, work
from tests.kernel.starts import Starter

__all__ = ["either", "every", "old_kernel", "root", "starter", "work"]


@pytest.fixture
def canary(work: Path) -> Path:
    """A tree of the host that no container has anything to do with."""
    return make_canary(work / "canary")


@pytest.fixture(scope="session")
def flipper_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that exchanges two names without end."""
    return build_flipper(tmp_path_factory.mktemp("flipper") / "flipper")


@pytest.fixture
def flip(flipper_program: Path) -> Flipper:
    """`with flip(one, other):` exchanges both while its body runs."""
    return lambda one, other: flipping(flipper_program, one, other)


@pytest.fixture
def in_cell(starter: Starter) -> Callable[[Path], Cell]:
    """A staged bundle for a root, whose hook can run again and again without a runtime."""
    return lambda root: cell(starter, root)
