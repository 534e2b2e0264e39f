"""The run directory, read side: what the agent staged is found, anything odd is told apart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.plan import DeviceRule, Entry, Plan, digest, encode
from agent.stage import Stage as WriteSide
from hooks.errors import Untrusted, Unusable
from hooks.stagedir import Stage

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="only root's files are believed"),
]

SPEC = "ab" * 16
PLAN = Plan("g1", "580.1", "/version", "text", (DeviceRule(195, 0),))


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """A run directory with one staged container."""
    stage = WriteSide(str(tmp_path / "run"))
    try:
        stage.set_generation("g1")
        stage.put_entry(SPEC, Entry("plan", stage.put_plan(PLAN), "g1", "rootfs", (7, 8), "a/b"))
        yield stage.path
    finally:
        stage.close()


def reader(run_dir: Path) -> Stage:
    """The hook's side of the directory."""
    return Stage(os.fsencode(run_dir))


def test_staged_container_is_found(run_dir: Path) -> None:
    """The entry and its plan come back as the agent wrote them."""
    entry, plan = reader(run_dir).find(SPEC)
    assert (entry.root, entry.uid, entry.gid, entry.label) == (b"rootfs", 7, 8, b"a/b")
    assert plan is not None
    assert plan.steps == [[b"rule", b"195", b"0", b"rw"]]


@pytest.mark.parametrize("verdict", ["none", "refuse"])
def test_other_verdicts_need_no_plan(run_dir: Path, verdict: str) -> None:
    """A container that asks for nothing, or is refused, has an entry alone."""
    stage = run_dir / "staged" / SPEC
    stage.write_bytes(stage.read_bytes().replace(b"verdict\tplan", f"verdict\t{verdict}".encode()))
    entry, plan = reader(run_dir).find(SPEC)
    assert (entry.verdict, plan) == (verdict.encode(), None)


def test_nothing_staged(run_dir: Path) -> None:
    """A spec that was not staged is unusable, which makes the hook ask."""
    with pytest.raises(Unusable, match="nothing staged"):
        reader(run_dir).find("00" * 16)


def test_no_generation_in_force(run_dir: Path) -> None:
    """Without a generation in force nothing staged counts."""
    (run_dir / "generation").unlink()
    with pytest.raises(Unusable, match="generation: nothing staged"):
        reader(run_dir).find(SPEC)


@pytest.mark.parametrize("which", ["staged", "plans"])
def test_cut_at_every_line(run_dir: Path, which: str) -> None:
    """An entry or plan that ends after any of its lines is unusable."""
    path = next((run_dir / which).iterdir())
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(len(lines)):
        path.write_bytes(b"".join(lines[:count]))
        with pytest.raises(Unusable, match=r"truncated|does not have its digest"):
            reader(run_dir).find(SPEC)


def test_plan_cut_and_renamed(run_dir: Path) -> None:
    """Nor is a plan read that was cut and has the right name for what is left."""
    lines = encode(PLAN).splitlines(keepends=True)
    entry = run_dir / "staged" / SPEC
    before = entry.read_bytes()
    for count in range(len(lines)):
        content = b"".join(lines[:count])
        name = digest(content)
        draft = run_dir / "plans" / name
        draft.write_bytes(content)
        draft.chmod(0o600)
        entry.write_bytes(before.replace(digest(encode(PLAN)).encode(), name.encode()))
        with pytest.raises(Unusable, match="staged plan: "):
            reader(run_dir).find(SPEC)


@pytest.mark.parametrize("name", ["../generation", "short", "A" * 31 + "/", "", "é" * 16])
def test_entry_that_names_no_plan(run_dir: Path, name: str) -> None:
    """What an entry says about its plan is a digest or nothing: never a path."""
    entry = run_dir / "staged" / SPEC
    entry.write_bytes(entry.read_bytes().replace(digest(encode(PLAN)).encode(), name.encode(), 1))
    with pytest.raises(Unusable, match="names no plan"):
        reader(run_dir).find(SPEC)


def test_absent_directory(tmp_path: Path) -> None:
    """An agent that never ran has left no directory: FileNotFoundError, not distrust."""
    with pytest.raises(FileNotFoundError):
        Stage(os.fsencode(tmp_path / "none"))


def test_directory_of_someone_else(run_dir: Path) -> None:
    """A directory that is not root's is not believed."""
    os.chown(run_dir, 1000, 0)
    with pytest.raises(Untrusted, match="not root's alone"):
        reader(run_dir)


def test_parent_of_someone_else(run_dir: Path) -> None:
    """Nor one that someone else could put another in the place of."""
    run_dir.parent.chmod(0o775)
    with pytest.raises(Untrusted, match="others may change it"):
        reader(run_dir)


def test_record_is_appended(run_dir: Path) -> None:
    """Records are lines, one after the other, in a file for root alone."""
    for line in (b"one\n", b"two\n"):
        reader(run_dir).record(line)
    log = run_dir / "replays.log"
    assert log.read_bytes() == b"one\ntwo\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_log_that_is_full_or_a_link(run_dir: Path, tmp_path: Path) -> None:
    """A log that is too long gets no more, and a link in its place is not followed."""
    log = run_dir / "replays.log"
    log.touch()
    os.truncate(log, 4 << 20)
    reader(run_dir).record(b"more\n")
    assert log.stat().st_size == 4 << 20
    log.unlink()
    log.symlink_to(tmp_path / "elsewhere")
    reader(run_dir).record(b"more\n")
    assert not (tmp_path / "elsewhere").exists()
