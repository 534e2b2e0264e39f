"""Deliberate weakenings of the hook, and for each the test that must notice it.

`apply` works on a copy of the tree, never in place. A weakening is one replaced text, so that one
whose text has gone from the sources fails loudly instead of passing unnoticed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PARTS = ("agent", "hooks", "tests", "contrib", "protos", "pyproject.toml")
TIMEOUT_S = 240


@dataclass(frozen=True, slots=True)
class Weakening:
    """In `file`, `strong` becomes `weak`; then `test` (a node id below tests/) must fail."""

    name: str
    file: str
    strong: str
    weak: str
    test: str


WEAKENINGS = (
    Weakening(
        "paths are resolved in the host's root",
        "rootfs.py",
        "IN_ROOT = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS",
        "IN_ROOT = 0",
        "kernel/test_bad_images.py::test_directory_is_a_link",
    ),
    Weakening(
        "a source's identity is not compared",
        "mounts.py",
        "if found != self.expected:",
        "if False:",
        "kernel/test_bad_sources.py::test_changed_host",
    ),
    Weakening(
        "the planner inherits the environment",
        "slowpath.py",
        "posix_spawn(python, argv, ENVIRONMENT,",
        "posix_spawn(python, argv, posix.environ,",
        "immunity/test_process.py::test_planner_inherits_nothing",
    ),
    Weakening(
        "descriptors of the runtime stay open",
        "hook.py",
        "    posix.closerange(3, FD_LIMIT)\n",
        "",
        "immunity/test_process.py::test_planner_inherits_nothing",
    ),
    Weakening(
        "a path as string after the container's namespace was joined",
        "replay.py",
        "posix.unlink(spare, dir_fd=self._spare_dir)",
        'posix.unlink(self._run_dir + b"/" + spare)',
        "immunity/test_process.py::test_after_joining",
    ),
    Weakening(
        "mounts are taken away by their path in procfs",
        "mounts.py",
        "syscalls.umount(path)",
        'syscalls.umount(b"/proc/self/fd/" + path)',
        "immunity/test_process.py::test_after_joining_in_a_failure",
    ),
    Weakening(
        "a volume's files are read",
        "loader.py",
        " or not root.owns(fd)",
        "",
        "immunity/test_paths.py::test_secret_of_a_volume_stays_there",
    ),
    Weakening(
        "files are made on volumes",
        "rootfs.py",
        "if not self.owns(directory) and not self._is_own_tmpfs(directory):",
        "if False:",
        "kernel/test_bad_images.py::test_nothing_is_made_on_a_volume",
    ),
    Weakening(
        "two steps for one place are replayed",
        "replay.py",
        "if bad is not None:",
        "if False:",
        "immunity/test_requests.py::test_two_steps_for_one_place",
    ),
    Weakening(
        "device rules allow mknod",
        "devices.py",
        'b"c %d:%d rw"',
        'b"c %d:%d rwm"',
        "kernel/test_devices.py::test_v1_rules_are_exact",
    ),
    Weakening(
        "a cgroup above the namespace is looked for",
        "devices.py",
        'if b".." in path.split(b"/"):',
        "if False:",
        "immunity/test_requests.py::test_cgroup_outside_of_the_namespace",
    ),
    Weakening(
        "the host's mount namespace is accepted",
        "replay.py",
        'if _same(posix.fstat(self.namespace), posix.stat(b"/proc/self/ns/mnt")):',
        "if False:",
        "kernel/test_bad_state.py::test_process_of_the_host",
    ),
    Weakening(
        "whoever listens is the agent",
        "slowpath.py",
        "if peer[4:8] != bytes(4):",
        "if False:",
        "immunity/test_requests.py::test_agent_that_is_not_roots",
    ),
    Weakening(
        "others' files in the run directory are believed",
        "stagedir.py",
        "if seen.st_uid != 0 or seen.st_gid != 0 or seen.st_mode & 0o077:",
        "if False:",
        "kernel/test_bad_stage.py::test_untrusted_file",
    ),
    Weakening(
        "a lookalike of procfs is covered",
        "replay.py",
        "if syscalls.fs_magic(fd) != syscalls.PROC_SUPER_MAGIC:",
        "if False:",
        "immunity/test_paths.py::test_proc_is_something_else",
    ),
    Weakening(
        "a failure leaves what was made",
        "replay.py",
        "            self._root.undo()\n",
        "",
        "kernel/test_bad_images.py::test_failure_restores_the_image",
    ),
    Weakening(
        "control characters reach the runtime",
        "hook.py",
        'return "".join(c if c.isprintable() else " " for c in text)',
        "return text",
        "kernel/test_bad_state.py::test_wrong_value",
    ),
)


def copied(target: Path) -> Path:
    """A copy of the tree at the new directory `target`."""
    target.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in PARTS:
        part = REPOSITORY / name
        if part.is_dir():
            shutil.copytree(part, target / name, ignore=ignore)
        else:
            shutil.copy(part, target / name)
    return target


def apply(tree: Path, weakening: Weakening) -> None:
    """Weaken the copy. Raises AssertionError where the text does not stand there."""
    file = tree / "hooks" / weakening.file
    text = file.read_text("utf-8")
    assert weakening.strong in text, f"{weakening.file} has no longer: {weakening.strong}"
    file.write_text(text.replace(weakening.strong, weakening.weak), "utf-8")


def failures(tree: Path, test: str) -> tuple[int, str]:
    """How many tests of that name fail with the tree's hook, and what pytest said.

    Raises AssertionError if pytest could not run them.
    """
    # The slow forms of a test find nothing that the usual ones do not.
    options = ("-q", "-p", "no:cacheprovider", f"--rootdir={tree}")
    command = [sys.executable, "-m", "pytest", *options, f"tests/{test}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    done = subprocess.run(
        command,
        check=False,
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.search(r"(\d+) failed", done.stdout)
    return int(found[1]) if found else 0, done.stdout
