"""What the tests of this folder share: a node, a root, and the two kinds of kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.containers.image import session_image
from tests.containers.runtimes import OTHER_RUNTIMES, RUNTIMES, find_runtime
from tests.containers.staging import simulated_node
from tests.containers.workdir import overlay_root, work_dir
from tests.debian_pool import NotObtainable
from tests.kernel.starts import Starter, build_old_kernel


@pytest.fixture
def work() -> Iterator[Path]:
    """A directory that may hold mounts."""
    with work_dir() as path:
        yield path


@pytest.fixture
def starter(work: Path) -> Iterator[Starter]:
    """A simulated node on the kernel as it is."""
    with simulated_node(work) as node:
        yield Starter(work, node)


@pytest.fixture(scope="session")
def old_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The launcher for a hook without the newer mount calls."""
    return build_old_kernel(tmp_path_factory.mktemp("old") / "old-kernel")


@pytest.fixture(params=["detached", "classic"])
def either(request: pytest.FixtureRequest, starter: Starter, old_kernel: Path) -> Starter:
    """The same node on both kinds of kernel, one after the other."""
    if request.param == "detached":
        return starter
    return Starter(starter.work, starter.node, (str(old_kernel),))


@pytest.fixture(
    params=[*RUNTIMES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_RUNTIMES)]
)
def every(request: pytest.FixtureRequest, starter: Starter) -> Starter:
    """The same node with every runtime; those of other releases in the slow tests."""
    try:
        runtime = find_runtime(request.param, starter.work)
    except NotObtainable as e:
        pytest.skip(str(e))
    return replace(starter, runtime=runtime)


@pytest.fixture
def root(work: Path) -> Iterator[Path]:
    """A writable root over the test image."""
    with overlay_root(session_image(), work / "layers") as merged:
        yield merged
