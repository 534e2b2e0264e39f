"""The plan: ordered steps for one request, and the text the hook reads.

Pure data. A step says *what* shall be in the container; only the hook knows how. `encode` writes
the format that `hooks.planfile.parse_plan` reads, and nothing else writes it.

Format, version 1: lines of tab-separated fields, first the header, then one step a line, then
`end`. Backslash, tab and newline in a field are written `\\\\`, `\\t`, `\\n`. Paths are bytes
(`os.fsencode`), so odd names survive. A plan's file name is the digest of its bytes.
"""

from __future__ import annotations

import enum
import posixpath
from dataclasses import dataclass
from hashlib import blake2b

from agent.facts.values import FileId, IpcFact, NodeFact
from hooks import planfile

VERSION = planfile.VERSION


class Place(enum.StrEnum):
    """Where a target name lies: the image decides what `libs` and `libs32` are."""

    LIBS = "libs"
    LIBS32 = "libs32"
    ABSOLUTE = "abs"


READ_ONLY = "ro,nosuid,nodev"
SOCKET = "nosuid,nodev,noexec"
NODE = "ro,nosuid,noexec"
PROC = "ro,nosuid,nodev,noexec"


@dataclass(frozen=True, slots=True)
class BindFile:
    """Bind a host file read-only; it must still be the file that `file` identifies."""

    place: Place
    target: str
    file: FileId
    options: str = READ_ONLY

    def describe(self) -> str:
        """One line for people."""
        where = "" if self.place is Place.ABSOLUTE else f"<{self.place}>/"
        return f"bind {self.file.path} on {where}{self.target} ({self.options})"

    def fields(self) -> tuple[str, ...]:
        """The step's line, field by field."""
        f = self.file
        numbers = (str(f.dev), str(f.ino), str(f.size), str(f.mtime_ns))
        return ("file", self.place, self.target, self.options, f.path, *numbers)


@dataclass(frozen=True, slots=True)
class BindIpc:
    """Bind a daemon's socket or directory; its inode may change, its type may not."""

    ipc: IpcFact

    def describe(self) -> str:
        """One line for people."""
        return f"bind {self.ipc.kind} {self.ipc.source} on {self.ipc.target} ({SOCKET})"

    def fields(self) -> tuple[str, ...]:
        """The step's line, field by field."""
        return ("ipc", self.ipc.kind, self.ipc.target, SOCKET, self.ipc.source)


@dataclass(frozen=True, slots=True)
class BindNode:
    """Bind a device node; it must still be the character device (major, minor)."""

    node: NodeFact

    def describe(self) -> str:
        """One line for people."""
        n = self.node
        return f"bind device {n.major}:{n.minor} {n.source} on {n.target} ({NODE})"

    def fields(self) -> tuple[str, ...]:
        """The step's line, field by field."""
        n = self.node
        return ("node", n.target, NODE, n.source, str(n.major), str(n.minor))


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link; it replaces what the image has at that name."""

    place: Place
    target: str
    points_to: str

    def describe(self) -> str:
        """One line for people."""
        where = "" if self.place is Place.ABSOLUTE else f"<{self.place}>/"
        return f"link {where}{self.target} -> {self.points_to}"

    def fields(self) -> tuple[str, ...]:
        """The step's line, field by field."""
        return ("link", self.place, self.target, self.points_to)


@dataclass(frozen=True, slots=True)
class MaskProc:
    """Cover a procfs directory with a read-only tmpfs that holds only `files`."""

    target: str
    files: tuple[tuple[str, str], ...]

    def describe(self) -> str:
        """One line for people."""
        names = ", ".join(name for name, _ in self.files)
        return f"mask {self.target}, showing only {names}"

    def fields(self) -> tuple[str, ...]:
        """The step's line, field by field."""
        flat = tuple(part for pair in self.files for part in pair)
        return ("mask", self.target, *flat)


@dataclass(frozen=True, slots=True)
class BindProcGpu:
    """Show one GPU's own procfs directory inside the mask, at `name` below it."""

    name: str
    source: str

    def describe(self) -> str:
        """One line for people."""
        return f"show {self.source} inside the mask as {self.name}"

    def fields(self) -> tuple[str, ...]:
        """The step's line, field by field."""
        return ("procgpu", self.name, PROC, self.source)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A name the container's loader must find: `soname` is `target` in its place."""

    place: Place
    soname: str
    target: str
    flags: int

    def describe(self) -> str:
        """One line for people."""
        return f"loader cache: {self.soname} => <{self.place}>/{self.target}"

    def fields(self) -> tuple[str, ...]:
        """The step's line, field by field."""
        return ("cache", self.place, self.soname, self.target, str(self.flags))


@dataclass(frozen=True, slots=True)
class ForwardCompat:
    """Let the image's own CUDA compat libraries come first where they fit this driver version."""

    driver_version: str

    def describe(self) -> str:
        """One line for people."""
        return f"prefer the image's CUDA compat libraries if they fit driver {self.driver_version}"

    def fields(self) -> tuple[str, ...]:
        """The step's line, field by field."""
        return ("compat", self.driver_version)


@dataclass(frozen=True, slots=True)
class Text:
    """A small file with content of ours, in place of what the image has there."""

    target: str
    content: str

    def describe(self) -> str:
        """One line for people."""
        return f"write {self.target} ({len(self.content)} characters)"

    def fields(self) -> tuple[str, ...]:
        """The step's line, field by field."""
        return ("text", self.target, self.content)


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """Let the container open one exact character device; never `m`, never a wildcard."""

    major: int
    minor: int
    access: str = "rw"

    def describe(self) -> str:
        """One line for people."""
        return f"allow character device {self.major}:{self.minor} {self.access}"

    def fields(self) -> tuple[str, ...]:
        """The step's line, field by field."""
        return ("rule", str(self.major), str(self.minor), self.access)


Step = (
    BindFile
    | BindIpc
    | BindNode
    | Link
    | MaskProc
    | BindProcGpu
    | CacheEntry
    | ForwardCompat
    | Text
    | DeviceRule
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps for one request on one generation of one host.

    `version_file` must still hold `version_text` when the plan is replayed: it is the loaded
    module's own word about its version.
    """

    generation: str
    driver_version: str
    version_file: str
    version_text: str
    steps: tuple[Step, ...]

    def describe(self) -> tuple[str, ...]:
        """The steps in words, in the order of replay."""
        return tuple(step.describe() for step in self.steps)

    def targets(self) -> list[bytes]:
        """Where steps make something, absolute; a place stands for the directory it will be."""
        made = (step for step in self.steps if isinstance(step, (BindFile, Link)))
        targets = [posixpath.join("/", f"<{step.place}>", step.target) for step in made]
        for step in self.steps:
            match step:
                case BindNode():
                    targets.append(step.node.target)
                case BindIpc():
                    targets.append(step.ipc.target)
                case Text():
                    targets.append(step.target)
        return [target.encode("utf-8", "surrogateescape") for target in targets]


@dataclass(frozen=True, slots=True)
class Entry:
    """What is staged for one container: a verdict, and what only this container has.

    `verdict` is `plan` (`detail` is the plan's digest), `none` (it asks for no GPU) or `refuse`
    (`detail` is the one line to die with). `root` is the spec's root.path, `owner` the host
    (uid, gid) of the container's root user, `label` who it is, for the replay record. `volumes`
    are the host paths that the spec binds into the container.
    """

    verdict: str
    detail: str
    generation: str
    root: str
    owner: tuple[int, int]
    label: str
    volumes: tuple[str, ...] = ()


def encode(plan: Plan) -> bytes:
    """The plan's file content."""
    header = (
        ("gpu-agent-plan", str(VERSION)),
        ("generation", plan.generation),
        ("driver", plan.driver_version),
        ("expect", plan.version_file, plan.version_text),
    )
    return _lines((*header, *(step.fields() for step in plan.steps)))


def encode_entry(entry: Entry) -> bytes:
    """The entry's file content."""
    rows: tuple[tuple[str, ...], ...] = (
        ("gpu-agent-entry", str(VERSION)),
        ("verdict", entry.verdict, entry.detail),
        ("generation", entry.generation),
        ("root", entry.root),
        ("owner", str(entry.owner[0]), str(entry.owner[1])),
        ("label", entry.label),
    )
    return _lines((*rows, ("volumes", *entry.volumes)) if entry.volumes else rows)


def digest(content: bytes) -> str:
    """The name of `content`: 32 hex digits of BLAKE2b-128. The hook computes the same."""
    return blake2b(content, digest_size=16).hexdigest()


def _lines(rows: tuple[tuple[str, ...], ...]) -> bytes:
    # "surrogateescape" is what os.fsencode does with undecodable file names on Linux.
    text = "".join("\t".join(_escape(f) for f in row) + "\n" for row in rows)
    return text.encode("utf-8", "surrogateescape") + b"end\n"


def _escape(field: str) -> str:
    return field.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
