"""A recorded host, read from its folder: what there is, nothing built yet.

A folder has `tree.txt` (one entry a line: kind, path below the root, one more word for some),
`nodes.txt` (path, major:minor, octal mode, uid:gid), maybe `nvml.json`, and folders such as
`etc`, `proc`, `sys` and `usr` whose files are copied as they are. Refuses entries that it does
not know and paths that leave the root.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent.errors import UsageError

KINDS = {
    "dir": 0,
    "library": 1,  # the SONAME
    "library32": 1,  # the SONAME
    "link": 1,  # where it leads
    "program": 0,
    "firmware": 0,
    "socket": 0,
    "mig-minors": 1,  # the number of GPUs in the table
}
"""Each kind of entry of `tree.txt` and how many words follow its path."""


class SimHostError(UsageError):
    """A recorded host that cannot be understood or built; the message names the place."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"simulated host: {where}: {reason}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `tree.txt`; `path` is relative to the root."""

    kind: str
    path: str
    word: str = ""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One line of `nodes.txt`: a character device as it was on the real host."""

    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Recording:
    """A host folder. `version` is that of the libraries; `nvml` is `nvml.json`, decoded."""

    folder: Path
    version: str
    entries: tuple[Entry, ...]
    nodes: tuple[NodeRecord, ...]
    nvml: dict[str, object] | None

    def copied(self) -> Iterator[Path]:
        """The folder's files that the built root has as they are, relative, sorted."""
        for top in sorted(p for p in self.folder.iterdir() if p.is_dir()):
            for path in sorted(top.rglob("*")):
                if path.is_file() and path.name != "ld.so.cache":  # made by the real ldconfig
                    yield path.relative_to(self.folder)


def load(folder: Path) -> Recording:
    """Read a host folder; raises SimHostError naming the file and line at fault."""
    lines = list(words_of(folder / "tree.txt"))
    version = next((w[1] for _, w in lines if w[0] == "version" and len(w) == 2), "")
    entries = tuple(entry(where, w) for where, w in lines if w[0] != "version")
    nodes = tuple(node(where, w) for where, w in words_of(folder / "nodes.txt"))
    return Recording(folder, version, entries, nodes, nvml_answers(folder / "nvml.json"))


def words_of(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The words of each line that says something, with the line's place."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise SimHostError(str(path), f"cannot be read: {e}") from e
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            yield f"{path}:{number}", words


def entry(where: str, words: list[str]) -> Entry:
    """One entry of `tree.txt`."""
    kind, *rest = words
    if kind not in KINDS or len(rest) != KINDS[kind] + 1:
        raise SimHostError(where, f"not an entry: {' '.join(words)}")
    return Entry(kind, below_root(where, rest[0]), *rest[1:])


def node(where: str, words: list[str]) -> NodeRecord:
    """One entry of `nodes.txt`."""
    try:
        path, number, mode, owner = words
        major, minor = map(int, number.split(":"))
        uid, gid = map(int, owner.split(":"))
        return NodeRecord(below_root(where, path), major, minor, int(mode, 8), uid, gid)
    except ValueError as e:
        raise SimHostError(where, "expected: path major:minor mode uid:gid") from e


def below_root(where: str, path: str) -> str:
    """`path`, which must be relative and must not climb."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise SimHostError(where, f"path leaves the root: {path}")
    return path


def nvml_answers(path: Path) -> dict[str, object] | None:
    """The decoded `nvml.json`, None where the host has none."""
    if not path.exists():
        return None
    try:
        answers: object = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise SimHostError(str(path), f"cannot be read: {e}") from e
    if not isinstance(answers, dict):
        raise SimHostError(str(path), "expected an object")
    return answers
