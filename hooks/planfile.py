"""The staged text formats, read side: plans and entries as `agent.plan` writes them.

Pure: bytes in, tuples out. It refuses what it does not know (another version, an unknown step, a
truncated file) with ValueError and never guesses. Runs at every container start: builtins only.
"""

VERSION = 1

# Number of fields of each step's line, its own name included; None means "checked apart".
STEPS: dict[bytes, int | None] = {
    b"file": 9,
    b"ipc": 5,
    b"node": 6,
    b"link": 4,
    b"mask": None,
    b"procgpu": 4,
    b"cache": 5,
    b"text": 3,
    b"compat": 2,
    b"rule": 4,
}
PLACES = (b"libs", b"libs32", b"abs")

Fields = list[bytes]


class Plan:
    """A parsed plan: `steps` are the lines as fields, in order, all paths bytes."""

    __slots__ = ("driver", "generation", "steps", "version_file", "version_text")

    def __init__(self, rows: list[Fields]) -> None:
        self.generation = _header(rows, 1, b"generation", 2)[1]
        self.driver = _header(rows, 2, b"driver", 2)[1]
        _, self.version_file, self.version_text = _header(rows, 3, b"expect", 3)
        self.steps = rows[4:]
        for step in self.steps:
            _check(step)


class Entry:
    """A parsed entry; `verdict` is `plan`, `none` or `refuse`, `volumes` host paths."""

    __slots__ = ("detail", "generation", "gid", "label", "root", "uid", "verdict", "volumes")

    def __init__(self, rows: list[Fields]) -> None:
        if len(rows) not in (6, 7):
            raise ValueError(f"entry has {len(rows)} lines instead of 6 or 7")
        _, self.verdict, self.detail = _header(rows, 1, b"verdict", 3)
        self.generation = _header(rows, 2, b"generation", 2)[1]
        self.root = _header(rows, 3, b"root", 2)[1]
        _, uid, gid = _header(rows, 4, b"owner", 3)
        self.uid, self.gid = int(uid), int(gid)
        self.label = _header(rows, 5, b"label", 2)[1]
        self.volumes = _header(rows, 6, b"volumes", len(rows[6]))[1:] if len(rows) == 7 else []
        if self.verdict not in (b"plan", b"none", b"refuse"):
            raise ValueError(f"entry has unknown verdict {self.verdict[:20]!r}")


def conflict(targets: list[bytes]) -> bytes | None:
    """The first of these absolute paths that stands twice or lies below another (R9).

    What one step makes there would change what the other's path means.
    """
    seen: set[bytes] = set()
    for path in targets:
        if path in seen:
            return path
        seen.add(path)
    for directory in {path.rpartition(b"/")[0] for path in targets}:
        above = directory
        while above:
            if above in seen:
                return above
            above = above.rpartition(b"/")[0]
    return None


def parse_plan(data: bytes) -> Plan:
    """A plan's bytes to a Plan. Raises ValueError naming what is wrong."""
    return Plan(_rows(data, b"gpu-agent-plan"))


def parse_entry(data: bytes) -> Entry:
    """An entry's bytes to an Entry. Raises ValueError naming what is wrong."""
    return Entry(_rows(data, b"gpu-agent-entry"))


def _rows(data: bytes, kind: bytes) -> list[Fields]:
    lines = data.split(b"\n")
    if len(lines) < 2 or lines[-1] or lines[-2] != b"end":
        raise ValueError("truncated: no end line")
    rows = [line.split(b"\t") for line in lines[:-2]]
    if not rows or len(rows[0]) != 2 or rows[0][0] != kind:
        raise ValueError(f"not a {kind.decode()} file")
    if rows[0][1] != b"%d" % VERSION:
        raise ValueError(f"format version {rows[0][1][:20]!r}, this hook reads {VERSION}")
    if b"\\" in data:
        rows = [[_unescape(field) for field in row] for row in rows]
    return rows


def _header(rows: list[Fields], index: int, name: bytes, count: int) -> Fields:
    if len(rows) <= index or rows[index][0] != name or len(rows[index]) != count:
        raise ValueError(f"line {index + 1} is not a {name.decode()} line")
    return rows[index]


def _check(step: Fields) -> None:
    name = step[0]
    if name not in STEPS:
        raise ValueError(f"unknown step {name[:20]!r}")
    count = STEPS[name]
    # A mask is its target and then pairs of name and content.
    if len(step) != count if count else len(step) < 2 or len(step) % 2:
        raise ValueError(f"step {name.decode()} has {len(step)} fields")
    if name in (b"file", b"link", b"cache") and step[1] not in PLACES:
        raise ValueError(f"step {name.decode()} has unknown place {step[1][:20]!r}")


def _unescape(field: bytes) -> bytes:
    if b"\\" not in field:
        return field
    # A NUL cannot occur in a path and is refused in content, so it can hold the real backslash.
    if b"\0" in field:
        raise ValueError("field with a NUL byte")
    held = field.replace(b"\\\\", b"\0").replace(b"\\t", b"\t").replace(b"\\n", b"\n")
    return held.replace(b"\0", b"\\")
