"""The stage: what lies in the run directory, who may reach it, and what a full one does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import StageError
from agent.inventory import build
from agent.plan import Entry, Plan, digest, encode, encode_entry
from agent.planner import ProcPaths, plan
from agent.request import Request
from agent.stage import Stage
from hooks import planfile
from tests import fact_values as fv

PLAN = plan(build(fv.HOST), Request(("all",), (), "test"), ProcPaths())
ENTRY = Entry("plan", digest(encode(PLAN)), PLAN.generation, "/rootfs", (0, 0), "default/one")
SPEC = "5" * 32
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def stage(run_dir: Path) -> Iterator[Stage]:
    made = Stage(str(run_dir))
    yield made
    made.close()


@contextmanager
def mounted(where: Path, options: str) -> Iterator[Path]:
    """A tmpfs at `where`, unmounted afterwards whatever happens."""
    where.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "gpu-agent-test", str(where)]
    subprocess.run(mount, check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def test_everything_is_closed_to_others(stage: Stage, run_dir: Path) -> None:
    """Directories are 0700, files 0600 with one name, all of them the agent's own."""
    old = os.umask(0)
    try:
        stage.put_entry(SPEC, replace(ENTRY, detail=stage.put_plan(PLAN)))
        stage.set_generation(PLAN.generation)
    finally:
        os.umask(old)
    for path in (run_dir, *run_dir.rglob("*")):
        found = path.lstat()
        assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
        assert found.st_mode & 0o7777 == (0o700 if path.is_dir() else 0o600), path
        assert path.is_dir() or found.st_nlink == 1


def test_what_is_put_is_what_the_hook_reads(stage: Stage, run_dir: Path) -> None:
    """Plan, entry and generation lie where the hook looks, in its format."""
    name = stage.put_plan(PLAN)
    stage.put_entry(SPEC, ENTRY)
    stage.set_generation(PLAN.generation)
    entry = planfile.parse_entry((run_dir / "staged" / SPEC).read_bytes())
    assert entry.detail.decode() == name
    assert planfile.parse_plan((run_dir / "plans" / name).read_bytes()).driver == b"550.54.14"
    assert (run_dir / "generation").read_text() == f"{PLAN.generation}\n"
    assert stage.generation() == PLAN.generation
    assert stage.entries() == {SPEC}
    assert stage.plans() == {name}


def test_generation_can_be_taken_out_of_force(stage: Stage) -> None:
    """Without a generation every hook asks; taking it out twice is fine."""
    stage.set_generation(PLAN.generation)
    stage.clear_generation()
    stage.clear_generation()
    assert stage.generation() is None


def test_withdraw_is_idempotent(stage: Stage) -> None:
    """Duplicate delete events find nothing and say nothing."""
    stage.put_entry(SPEC, ENTRY)
    stage.withdraw(SPEC)
    stage.withdraw(SPEC)
    stage.withdraw_plan("0" * 32)
    assert stage.entries() == frozenset()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_loose_ancestor_is_refused(tmp_path: Path, mode: int) -> None:
    """Whoever may rename a directory above could replace every plan."""
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    with pytest.raises(StageError, match=f"{above}: others than root may change it"):
        Stage(str(above / "run"))
    above.chmod(mode | 0o1000)  # sticky, as /tmp is
    Stage(str(above / "run")).close()


@needs_root
@pytest.mark.parametrize("what", ["directory", "link"])
def test_ancestor_of_another_user_is_refused(tmp_path: Path, what: str) -> None:
    """A directory or a link above that belongs to somebody else is his to change."""
    above = tmp_path / "above"
    if what == "directory":
        above.mkdir()
    else:
        (tmp_path / "real").mkdir()
        above.symlink_to("real")
    os.lchown(above, 65534, 65534)
    with pytest.raises(StageError, match=f"{above}: others than root"):
        Stage(str(above / "run"))


@needs_root
def test_what_a_link_above_leads_through_is_checked(tmp_path: Path) -> None:
    """A link of root's own is followed, and the directories it leads through are ancestors too."""
    (tmp_path / "loose" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("loose/deep")
    Stage(str(tmp_path / "link" / "run")).close()
    (tmp_path / "loose").chmod(0o777)
    with pytest.raises(StageError, match="loose: others than root"):
        Stage(str(tmp_path / "link" / "run"))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("open", "others than the agent's user can reach it"),
        ("file", "not a directory|File exists"),
        ("link", "not a directory"),
        ("absent", "No such file"),
    ],
)
def test_run_directory_must_be_ours(tmp_path: Path, what: str, words: str) -> None:
    """A run directory that others reach, or that is none, is not used."""
    path = tmp_path / "run"
    match what:
        case "open":
            path.mkdir()
            path.chmod(0o750)
        case "file":
            path.touch()
        case "link":
            (tmp_path / "real").mkdir(mode=0o700)
            path.symlink_to("real")
        case "absent":
            path = tmp_path / "absent" / "run"
    with pytest.raises(StageError, match=words):
        Stage(str(path))


def test_second_agent_is_told_who_holds_it(stage: Stage, run_dir: Path) -> None:
    """One agent at a time; the other one's error has the pid, and a closed one lets go."""
    with pytest.raises(StageError, match=rf"another agent holds it \(pid {os.getpid()}\)"):
        Stage(str(run_dir))
    stage.close()
    Stage(str(run_dir)).close()


def test_lock_of_a_dead_agent_is_free(run_dir: Path) -> None:
    """SIGKILL leaves the lock's file behind but not the lock."""
    imports = "import os, sys; from agent.stage import Stage"
    program = f"{imports}; kept = Stage(sys.argv[1]); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", program, str(run_dir)], check=False, timeout=30)
    assert done.returncode == -9
    assert (run_dir / "lock").exists()
    Stage(str(run_dir)).close()


def test_failed_opening_leaves_nothing_open(run_dir: Path) -> None:
    """An agent that cannot use the directory lets go of its lock and descriptors."""
    run_dir.mkdir(mode=0o700)
    (run_dir / "plans").touch()
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(StageError, match="plans"):
        Stage(str(run_dir))
    assert sorted(os.listdir("/proc/self/fd")) == before
    (run_dir / "plans").unlink()
    Stage(str(run_dir)).close()


def test_a_reader_never_sees_half_a_file(stage: Stage, run_dir: Path) -> None:
    """While an entry is written again and again a reader finds one whole version or the other."""
    versions = [replace(ENTRY, label=f"{n}/" + str(n) * 30_000) for n in (1, 2)]
    whole = {encode_entry(v) for v in versions}
    stage.put_entry(SPEC, versions[0])
    ended = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not ended.is_set() or not seen:
            seen.add((run_dir / "staged" / SPEC).read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(600):
            stage.put_entry(SPEC, versions[n % 2])
    finally:
        ended.set()
        reader.join()
    assert seen <= whole
    assert stage.entries() == {SPEC}


def test_damaged_plan_is_written_again(stage: Stage, run_dir: Path) -> None:
    """A plan's file of another size is not taken for the plan."""
    name = stage.put_plan(PLAN)
    (run_dir / "plans" / name).write_bytes(b"half")
    assert stage.put_plan(PLAN) == name
    assert (run_dir / "plans" / name).read_bytes() == encode(PLAN)


def test_sweep_keeps_what_is_named(stage: Stage, run_dir: Path) -> None:
    """Foreign files, links, old entries and drafts go; named ones and directories stay."""
    keep = stage.put_plan(PLAN)
    stage.put_plan(replace(PLAN, generation="0" * 16))
    stage.put_entry(SPEC, ENTRY)
    stage.put_entry("6" * 32, ENTRY)
    for directory in (run_dir / "staged", run_dir / "plans"):
        (directory / f".{SPEC}.new").write_bytes(b"half")
        (directory / "foreign").symlink_to("/etc/passwd")
        (directory / "dir").mkdir()
    stage.sweep([SPEC], [keep])
    assert stage.entries() == {SPEC, "dir"}
    assert stage.plans() == {keep, "dir"}
    assert Path("/etc/passwd").exists()


def test_draft_that_is_a_link_is_not_followed(stage: Stage, run_dir: Path, tmp_path: Path) -> None:
    """A link in the place of a draft is an error, never a way to write elsewhere."""
    (run_dir / "staged" / f".{SPEC}.new").symlink_to(tmp_path / "victim")
    with pytest.raises(StageError, match=f"staged/{SPEC}"):
        stage.put_entry(SPEC, ENTRY)
    assert not (tmp_path / "victim").exists()


@needs_root
@pytest.mark.root
def test_full_directory_is_an_error_and_leaves_no_half(tmp_path: Path) -> None:
    """On a full tmpfs nothing half appears, what was there stays, and later it works again."""
    with mounted(tmp_path / "small", "size=64k") as run_dir:
        stage = Stage(str(run_dir))
        try:
            stage.put_entry(SPEC, ENTRY)
            filler = run_dir / "filler"
            with pytest.raises(OSError, match="No space left"):
                filler.write_bytes(bytes(1 << 20))
            with pytest.raises(StageError, match="No space left"):
                stage.put_plan(PLAN)
            with pytest.raises(StageError, match="No space left"):
                stage.set_generation(PLAN.generation)
            assert stage.entries() == {SPEC}
            assert stage.plans() == frozenset()
            assert stage.generation() is None
            assert list(run_dir.rglob(".*.new")) == []
            stage.withdraw(SPEC)
            filler.unlink()
            stage.put_plan(PLAN)
        finally:
            stage.close()


@needs_root
@pytest.mark.root
def test_agent_starts_on_a_full_directory(tmp_path: Path) -> None:
    """There is no room for the lock's pid, which is no reason not to hold the lock."""
    with mounted(tmp_path / "small", "size=64k") as run_dir:
        for name in ("staged", "plans"):
            (run_dir / name).mkdir(mode=0o700)
        with pytest.raises(OSError, match="No space left"):
            (run_dir / "filler").write_bytes(bytes(1 << 20))
        stage = Stage(str(run_dir))
        with pytest.raises(StageError, match="another agent holds it"):
            Stage(str(run_dir))
        stage.close()


@needs_root
@pytest.mark.root
def test_read_only_directory_is_an_error_of_its_own(tmp_path: Path) -> None:
    """A run directory on a read-only file system is named with the reason, also one set up."""
    with mounted(tmp_path / "ro", "size=1m") as run_dir:
        Stage(str(run_dir)).close()
        # Not while a stage is open: its lock keeps the file system writable.
        subprocess.run(["mount", "-o", "remount,ro", str(run_dir)], check=True)
        with pytest.raises(StageError, match=f"{run_dir}/lock: Read-only file system"):
            Stage(str(run_dir))


def test_equal_plans_are_one_file(stage: Stage) -> None:
    """A plan's name is its content's digest, so that containers can share it."""
    other = Plan(
        PLAN.generation, PLAN.driver_version, PLAN.version_file, PLAN.version_text, PLAN.steps
    )
    assert stage.put_plan(PLAN) == stage.put_plan(other) == digest(encode(other))
    assert len(stage.plans()) == 1
