"""Merged loader caches that hooks keep for the next container of the same image."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.stage import Stage as AgentStage
from hooks import loader
from hooks.errors import Untrusted
from hooks.rootfs import Root
from hooks.stagedir import KEPT_LIMIT, KEPT_SIZE, Stage
from tests.ldcache_files import X86_64, write

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="the run directory is root's")

ENTRIES = [(b"libcuda.so.1", b"/usr/lib64/libcuda.so.1", 0x0303)]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentStage]:
    """The agent's side of a run directory."""
    stage = AgentStage(str(tmp_path / "run"))
    yield stage
    stage.close()


@pytest.fixture
def hook(agent: AgentStage) -> Stage:
    """A hook's side of it."""
    return Stage(os.fsencode(agent.path))


def image(tmp_path: Path, cache: bytes) -> Root:
    """A root with that loader cache."""
    (tmp_path / "root/etc").mkdir(parents=True, exist_ok=True)
    (tmp_path / "root/etc/ld.so.cache").write_bytes(cache)
    return Root(os.open(tmp_path / "root", os.O_PATH | os.O_DIRECTORY))


def changed(root: Root, stage: Stage | None) -> dict[bytes, bytes]:
    """What the loader's files of `root` become."""
    return dict(loader.files(root, ENTRIES, "x86_64", None, stage))


def test_kept_cache_is_the_merged_one(agent: AgentStage, hook: Stage, tmp_path: Path) -> None:
    """With and without the kept file, before and after, the result is the same."""
    root = image(tmp_path, write([(b"libc.so.6", b"/lib/libc.so.6", X86_64, 0, 0)], "new"))
    merged = changed(root, None)
    assert changed(root, hook) == merged
    assert len(list((agent.path / "kept").iterdir())) == 1
    assert changed(root, hook) == merged


def test_another_image_has_another_name(agent: AgentStage, hook: Stage, tmp_path: Path) -> None:
    """Nothing kept for one cache is ever taken for another."""
    for number in range(3):
        name = b"libother%d.so.1" % number
        cache = write([(name, b"/lib/" + name, X86_64, 0, 0)], "new")
        assert name in changed(image(tmp_path, cache), hook)[loader.CACHE]
    assert len(list((agent.path / "kept").iterdir())) == 3


def test_what_is_kept_is_bounded(agent: AgentStage, hook: Stage) -> None:
    """Images decide what is kept, so neither number nor size is theirs to decide."""
    hook.keep("large", bytes(KEPT_SIZE + 1))
    assert hook.recall("large") is None
    for number in range(KEPT_LIMIT + 10):
        hook.keep(f"n{number}", b"x")
    assert len(list((agent.path / "kept").iterdir())) == KEPT_LIMIT
    agent.trim()
    assert len(list((agent.path / "kept").iterdir())) == KEPT_LIMIT // 2
    agent.trim()
    assert len(list((agent.path / "kept").iterdir())) == KEPT_LIMIT // 2


def test_file_of_somebody_else_refuses_the_start(agent: AgentStage, hook: Stage) -> None:
    """A kept file that others could have written is a sign of tampering, not a cache miss."""
    (agent.path / "kept/name").write_bytes(b"content")
    (agent.path / "kept/name").chmod(0o644)
    with pytest.raises(Untrusted):
        hook.recall("name")


def test_run_directory_without_the_place(agent: AgentStage, hook: Stage) -> None:
    """An older agent's directory has no such place: nothing is kept, nothing fails."""
    (agent.path / "kept").rmdir()
    hook.keep("name", b"content")
    assert hook.recall("name") is None
