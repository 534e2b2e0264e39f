"""Make the device nodes that the loaded driver lacks, and keep their links in /dev/char.

Only the daemon does this: never a hook and never a reading command. What to make is
`agent.missingnodes`'s to say; here it becomes `mknod`. Every node is made whole under a name of
its own and only then gets its real name, by `link`, which overwrites nothing, or by `rename` over
a character device with a wrong number. A file, directory or link that has a node's name is
somebody else's and stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agent.facts.values import NodeFact
from agent.missingnodes import DRAFT, NodeToMake

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = "/dev/char"


class Outcome(NamedTuple):
    """What was `made` and what was not, and why: one line for each name."""

    made: tuple[str, ...]
    failed: tuple[str, ...]


def make_nodes(dev_root: str, missing: Iterable[NodeToMake], *, replace: bool) -> Outcome:
    """Make each `missing` node below `<dev_root>`; with `replace` also where a stale one stands.

    Needs CAP_MKNOD. Raises nothing: what the kernel refuses is told in `failed`.
    """
    return _each(dev_root, ((node.path, _maker(node, replace)) for node in missing))


def link_nodes(dev_root: str, nodes: Iterable[NodeFact]) -> Outcome:
    """Make `/dev/char/MAJOR:MINOR` lead to each NVIDIA node, as udev does for other drivers.

    systemd needs these links to give a container's cgroup a device. A link of an older number to
    one of these nodes goes; any other file stays. Raises nothing, as `make_nodes`.
    """
    ours = [node for node in nodes if node.target.startswith("/dev/nvidia")]
    wanted = {f"{_LINKS}/{node.major}:{node.minor}": f"..{node.target[4:]}" for node in ours}
    leads = frozenset(wanted.values())
    old = [(path, _remover(leads)) for path in _linked(dev_root) if path not in wanted]
    return _each(dev_root, [*((path, _linker(lead)) for path, lead in wanted.items()), *old])


def _linked(dev_root: str) -> list[str]:
    try:
        return [f"{_LINKS}/{name}" for name in sorted(os.listdir(f"{dev_root}{_LINKS}"))]
    except OSError:
        return []


# Acts on a name in an open directory; gives what it did, or "" where there was nothing to do.
_Act = Callable[[int, str], str]


def _each(dev_root: str, acts: Iterable[tuple[str, _Act]]) -> Outcome:
    made, failed = [], []
    for path, act in acts:
        try:
            if did := _in_directory(dev_root, path, act):
                made.append(f"{path}: {did}")
        except OSError as e:
            failed.append(f"{path}: not made: {(e.strerror or str(e)).lower()}")
    return Outcome(tuple(made), tuple(failed))


def _in_directory(dev_root: str, path: str, act: _Act) -> str:
    """`act` on the last component of `path`; its directory below /dev is made if need be."""
    folder, _, name = path.rpartition("/")
    held = os.open(f"{os.path.realpath(dev_root).rstrip('/')}/dev", _DIRECTORY_FLAGS)
    try:
        for part in folder.removeprefix("/dev").split("/")[1:]:
            held = _below(held, part)
        return act(held, name)
    finally:
        os.close(held)


def _below(parent: int, name: str) -> int:
    """The directory `name` in `parent`, which is closed only if that could be opened."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        pass
    else:
        os.chmod(name, 0o755, dir_fd=parent)  # whatever the umask is
    child = os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
    os.close(parent)
    return child


def _maker(node: NodeToMake, replace: bool) -> _Act:
    number = os.makedev(node.major, node.minor)

    def act(folder: int, name: str) -> str:
        old = _lstat(folder, name)
        if old is not None and not stat.S_ISCHR(old.st_mode):
            raise FileExistsError(0, "something that is no device node has its name")
        if old is not None and old.st_rdev == number:
            return ""
        if old is not None and not replace:
            raise FileExistsError(0, "a node with another number has its name")
        with _draft(folder, name) as draft:
            # Mode 0 until it has its owner: nobody may open it in between.
            os.mknod(draft, stat.S_IFCHR, number, dir_fd=folder)
            os.chown(draft, node.uid, node.gid, dir_fd=folder, follow_symlinks=False)
            os.chmod(draft, node.mode, dir_fd=folder)
            if old is None:
                os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            else:
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        return _told(node, old)

    return act


def _told(node: NodeToMake, old: os.stat_result | None) -> str:
    what = f"{node.major}:{node.minor}, mode {node.mode:04o}, owner {node.uid}:{node.gid}"
    if old is None:
        return f"made as {what}"
    was = f"{os.major(old.st_rdev)}:{os.minor(old.st_rdev)}"
    return f"made as {what}, in place of {was}"


def _linker(leads: str) -> _Act:
    def act(folder: int, name: str) -> str:
        old = _lstat(folder, name)
        if old is not None and not stat.S_ISLNK(old.st_mode):
            raise FileExistsError(0, "something that is no link has its name")
        if old is not None and os.readlink(name, dir_fd=folder) == leads:
            return ""
        with _draft(folder, name) as draft:
            os.symlink(leads, draft, dir_fd=folder)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        return f"link to {leads}"

    return act


def _remover(leads: frozenset[str]) -> _Act:
    def act(folder: int, name: str) -> str:
        old = _lstat(folder, name)
        if old is None or not stat.S_ISLNK(old.st_mode):
            return ""
        lead = os.readlink(name, dir_fd=folder)
        if lead not in leads:
            return ""
        _unlink(folder, name)
        return f"old link to {lead} removed"

    return act


@contextmanager
def _draft(folder: int, name: str) -> Iterator[str]:
    """A name to make something under, once; nothing is left there, whatever happens."""
    draft = f"{DRAFT}{name}"
    _unlink(folder, draft)  # of an agent that was killed
    try:
        yield draft
    finally:
        _unlink(folder, draft)


def _unlink(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _lstat(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
