"""A run directory that only root could not have left so: refused, and nothing is made."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.plan import digest
from tests.containers.runc import Container
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, config, refused
from tests.kernel.trees import host_mounts, snapshot

pytestmark = NEEDS_CONTAINERS

NO_PLANNER = "no standalone planner is set up"


def linked(file: Path) -> None:
    """The same content, through a link."""
    file.rename(file.with_name("moved"))
    file.symlink_to("moved")


def second_name(file: Path) -> None:
    """A second name for it, perhaps where others write."""
    os.link(file, file.with_name("second"))


def pipe(file: Path) -> None:
    """A pipe in its place."""
    file.unlink()
    os.mkfifo(file, 0o600)


def huge(file: Path) -> None:
    """More than the hook reads."""
    os.truncate(file, (4 << 20) + 1)


UNTRUSTED: list[tuple[Callable[[Path], None], str]] = [
    (lambda file: file.chmod(0o644), "not root's alone"),
    (lambda file: file.chmod(0o620), "not root's alone"),
    (lambda file: os.chown(file, 1000, 0), "not root's alone"),
    (lambda file: os.chown(file, 0, 1000), "not root's alone"),
    (linked, "Too many levels of symbolic links"),
    (second_name, "not a plain file with one name"),
    (pipe, "not a plain file with one name"),
    (huge, "bytes are too many"),
]


def assert_refused(root: Path, container: Container, *why: str) -> None:
    """The start is refused for the reasons given; the root and the host are as before."""
    before = snapshot(root), host_mounts()
    line = refused(container.create(check=False))
    assert [reason for reason in why if reason not in line] == [], line
    assert (snapshot(root), host_mounts()) == before


@pytest.mark.parametrize("which", ["generation", "staged", "plans"])
@pytest.mark.parametrize(("spoil", "why"), UNTRUSTED, ids=[str(i) for i in range(len(UNTRUSTED))])
def test_untrusted_file(
    starter: Starter, root: Path, which: str, spoil: Callable[[Path], None], why: str
) -> None:
    """A file that someone else could have made refuses the start, whoever could plan instead."""
    with starter.prepared(root, hooks=starter.hooks(standalone=True)) as container:
        place = starter.node.run_dir / which
        spoil(place if place.is_file() else next(place.iterdir()))
        assert_refused(root, container, f"stage: {which}", why)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o750])
def test_run_directory_of_others(starter: Starter, root: Path, mode: int) -> None:
    """A run directory that others can enter is not believed."""
    with starter.prepared(root) as container:
        starter.node.run_dir.chmod(mode)
        assert_refused(root, container, "stage: ", "not root's alone")


def test_run_directory_is_a_link(starter: Starter, root: Path) -> None:
    """A run directory behind a link is not entered."""
    with starter.prepared(root) as container:
        run_dir = starter.node.run_dir
        run_dir.rename(run_dir.with_name("moved"))
        run_dir.symlink_to("moved")
        assert_refused(root, container, str(run_dir), "Not a directory")


def test_run_directory_in_a_place_of_others(starter: Starter, root: Path) -> None:
    """Whoever can rename the run directory could put another in its place."""
    with starter.prepared(root) as container:
        starter.work.chmod(0o777)
        assert_refused(root, container, "stage: ", "others may change it")


def test_plan_with_another_content(starter: Starter, root: Path) -> None:
    """A plan that does not have its digest is not replayed."""
    with starter.prepared(root) as container:
        plan = next((starter.node.run_dir / "plans").iterdir())
        plan.write_bytes(plan.read_bytes().replace(b"ro,nosuid", b"nosuid,ro"))
        assert_refused(root, container, "staged plan: content does not have its digest", NO_PLANNER)


def test_plan_of_another_version(starter: Starter, root: Path) -> None:
    """A plan in a format that this hook does not read is not guessed at."""
    with starter.prepared(root) as container:
        replace_plan(starter, container, b"gpu-agent-plan\t1\n", b"gpu-agent-plan\t2\n")
        assert_refused(root, container, "format version b'2', this hook reads 1", NO_PLANNER)


def test_plan_of_another_generation(starter: Starter, root: Path) -> None:
    """An entry whose plan is of another generation is not replayed."""
    with starter.prepared(root) as container:
        generation = starter.node.inventory.generation.encode()
        replace_plan(starter, container, generation, b"0" * len(generation))
        assert_refused(root, container, "of another generation than its entry", NO_PLANNER)


def test_plan_is_missing(starter: Starter, root: Path) -> None:
    """An entry whose plan is gone is as good as none."""
    with starter.prepared(root) as container:
        next((starter.node.run_dir / "plans").iterdir()).unlink()
        assert_refused(root, container, "nothing staged", NO_PLANNER)


def test_staged_for_an_older_generation(starter: Starter, root: Path) -> None:
    """After the driver changed, what was staged before is not replayed."""
    with starter.prepared(root) as container:
        starter.node.stage.set_generation("f" * 32)
        assert_refused(root, container, "staged for an older generation", NO_PLANNER)


def test_staged_for_an_older_generation_is_planned_anew(starter: Starter, root: Path) -> None:
    """With a standalone planner the same container starts, on what the host has now."""
    with starter.prepared(root, hooks=starter.hooks(standalone=True)) as container:
        starter.node.stage.set_generation("f" * 32)
        container.create()
        container.start()
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
    way, outcome, why = starter.records()[-1][4:6] + starter.records()[-1][7:]
    assert (way, outcome) == ("standalone", "ok")
    assert "older generation" in why


def test_staged_for_another_spec(starter: Starter, root: Path) -> None:
    """What is staged counts for that very spec: a container that re-uses an id gets nothing."""
    with starter.prepared(root) as container:
        changed = json.loads(config(container))
        changed["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")
        (container.bundle / "config.json").write_text(json.dumps(changed))
        assert_refused(root, container, "nothing staged", NO_PLANNER)


def replace_plan(starter: Starter, container: Container, old: bytes, new: bytes) -> None:
    """Stage a changed plan under its right digest."""
    place = starter.node.run_dir
    before = next((place / "plans").iterdir())
    content = before.read_bytes().replace(old, new)
    name = digest(content)
    before.write_bytes(content)
    before.rename(place / "plans" / name)
    entry = place / "staged" / digest(config(container))
    entry.write_bytes(entry.read_bytes().replace(before.name.encode(), name.encode()))
