"""Our set of files, nodes and names on the recorded H200 host beside that of the usual tools.

A row is one thing in a container; a cell says where a tool puts it. Every row in which the tools
differ must have its reasons, which follow from what differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agent.plan import (
    BindFile,
    BindNode,
    BindProcGpu,
    CacheEntry,
    ForwardCompat,
    Link,
    MaskProc,
    Place,
    Plan,
    Text,
)

OURS, OURS_USUAL, CDI, LEGACY, LEGACY_USUAL = COLUMNS = (
    "ours, all",
    "ours, compute+utility",
    "CDI",
    "legacy, all",
    "legacy, compute+utility",
)
OWN = (OURS, OURS_USUAL)
LIBS = "LIBS"
"""The image's own library directory, `/usr/lib/x86_64-linux-gnu` in Debian's."""

COMPARED = ((OURS, CDI), (OURS_USUAL, CDI), (OURS, LEGACY), (OURS_USUAL, LEGACY_USUAL))
"""Which columns answer the same request."""

# The legacy tool's list and its mounts show only some kinds of things.
LISTED = ("library", "program", "node", "firmware")
SHOWN = {LEGACY: LISTED, LEGACY_USUAL: (*LISTED, "data", "proc", "params")}

ONLY_OURS, ONLY_THEIRS, OTHERWISE = "only ours", "only theirs", "otherwise"

REASONS = {
    "A": "By capability, as legacy. CDI knows no capabilities and brings everything.",
    "B": "In the image's own directory, as legacy, where its programs and its loader look. CDI "
    "keeps the host's path.",
    "C": "Leads to the same file by way of the SONAME, as every other name does.",
    "D": "The host has no such node; the legacy tool lists it all the same.",
    "E": "The legacy tool knows /lib/firmware only; the kernel of this host was given another "
    "place.",
    "F": "Vulkan's layer lies beside its driver file on the host; CDI's set has only the latter.",
    "G": "The container sees the procfs entries of its own GPUs only, as with legacy. CDI covers "
    "one file and shows all GPUs.",
    "H": "CDI keeps a nested legacy hook quiet with it. Ours acts on staged plans, not on the "
    "environment, which a createRuntime hook could not change either.",
    "I": "CDI's libraries lie outside of the image's directories, and this says where; ours lie "
    "inside.",
}

# (kind, our column, the other one, what differs) -> the reason. What is not here is not meant.
RULES: dict[tuple[str, str, str, str], str] = {
    **{
        (kind, OURS_USUAL, CDI, ONLY_THEIRS): "A" for kind in ("library", "link", "data", "profile")
    },
    **{(kind, own, CDI, OTHERWISE): "B" for kind in ("library", "program") for own in OWN},
    **{("link", own, CDI, OTHERWISE): "C" for own in OWN},
    ("node", OURS, LEGACY, ONLY_THEIRS): "D",
    ("firmware", OURS, LEGACY, ONLY_OURS): "E",
    ("firmware", OURS_USUAL, LEGACY_USUAL, ONLY_OURS): "E",
    ("data", OURS, CDI, ONLY_OURS): "F",
    **{("proc", own, CDI, ONLY_OURS): "G" for own in OWN},
    **{("params", own, CDI, OTHERWISE): "G" for own in OWN},
    **{("NVIDIA_VISIBLE_DEVICES", own, CDI, ONLY_THEIRS): "H" for own in OWN},
    **{("NVIDIA_CTK_LIBCUDA_DIR", own, CDI, ONLY_THEIRS): "I" for own in OWN},
}


@dataclass(slots=True)
class Row:
    """One thing, and where each tool puts it; a tool without a cell does not bring it."""

    name: str
    cells: dict[str, str] = field(default_factory=dict)

    def differences(self) -> Iterator[tuple[str, str, str, str]]:
        """Kind, our column, the other column and what differs, of each pair that differs."""
        kind, _, rest = self.name.partition(" ")
        for ours, other in COMPARED:
            a, b = self.cells.get(ours), self.cells.get(other)
            if a != b and kind in SHOWN.get(other, (kind,)):
                what = OTHERWISE if a and b else ONLY_OURS if a else ONLY_THEIRS
                yield rest.partition("=")[0] if kind == "env" else kind, ours, other, what

    def reasons(self) -> str:
        """The letters of the reasons, "" where nothing differs, `?` for what has none."""
        return "".join(sorted({RULES.get(difference, "?") for difference in self.differences()}))


def table(plans: tuple[Plan, Plan], peers: Mapping[str, object]) -> list[Row]:
    """All rows, sorted; `plans` are those for all capabilities and for the usual two."""
    rows: dict[str, Row] = {}

    def put(column: str, items: Iterable[tuple[str, str]]) -> None:
        for name, cell in items:
            rows.setdefault(name, Row(name)).cells[column] = cell

    put(OURS, of_plan(plans[0]))
    put(OURS_USUAL, of_plan(plans[1]))
    put(CDI, of_cdi(peers["cdi_toolkit_1.20"]))
    put(LEGACY, of_list(peers["legacy_cli_list_all"]))
    put(LEGACY_USUAL, of_mounts(peers["legacy_compute_utility_mountinfo"]))
    return [rows[name] for name in sorted(rows)]


def of_plan(plan: Plan) -> Iterator[tuple[str, str]]:
    """Name and cell of each step."""
    for step in plan.steps:
        match step:
            case BindFile(place=Place.ABSOLUTE):
                yield named(step.target)
            case BindFile():
                yield f"library {step.target}", LIBS
            case Link(place=Place.ABSOLUTE):
                yield f"link {step.target}", step.points_to
            case Link():
                yield f"link {step.target}", step.points_to
            case BindNode():
                yield f"node {step.node.target}", "yes"
            case MaskProc():
                yield "proc /proc/driver/nvidia", "masked"
                yield "params ModifyDeviceFiles 0", "mask"
            case BindProcGpu():
                yield f"proc /proc/driver/nvidia/{step.name}", "yes"
            case CacheEntry():
                yield "cache /etc/ld.so.cache", "yes"
            case Text():
                yield "profile 10-container.conf", "yes"
            case ForwardCompat():
                yield "compat CUDA forward compatibility", "yes"


def of_cdi(spec: object) -> Iterator[tuple[str, str]]:
    """Name and cell of each edit of CDI's specification."""
    assert isinstance(spec, dict)
    for _, target, _ in spec["mounts"]:
        yield named(target)
    for node in spec["devices"]:
        yield f"node {node[0]}", "yes"
    for variable in spec["env"][1:]:  # the first is the request
        yield f"env {variable}", "yes"
    what = {
        "enable-cuda-compat": "compat CUDA forward compatibility",
        "update-ldcache": "cache /etc/ld.so.cache",
        "update-application-profile": "profile 10-container.conf",
    }
    for hook in spec["hooks"]:
        words: list[str] = hook
        if words[0] in what:
            yield what[words[0]], "yes"
        elif words[0] == "disable-device-node-modification":
            yield "params ModifyDeviceFiles 0", "one file"
        for text in (w for w in words if "::" in w):
            points_to, _, name = text.partition("::")
            yield f"link {name.partition('/lib64/')[2]}", points_to


def of_list(paths: object) -> Iterator[tuple[str, str]]:
    """Name and cell of what the legacy tool lists: host paths, whose places it does not say."""
    assert isinstance(paths, list)
    for path in paths:
        name, _ = named(path)
        kind = name.partition(" ")[0]
        yield name, {"library": LIBS, "program": "/usr/bin"}.get(kind, "yes")


def of_mounts(lines: object) -> Iterator[tuple[str, str]]:
    """Name and cell of the mounts that the legacy tool made."""
    assert isinstance(lines, list)
    for target, *_ in lines:
        if target == "/proc/driver/nvidia":
            yield "proc /proc/driver/nvidia", "masked"
            yield "params ModifyDeviceFiles 0", "mask"
        elif not target.endswith(":"):
            yield named(target)


def named(path: str) -> tuple[str, str]:
    """A path as a row's name and a cell that says the place."""
    folder, _, name = path.rpartition("/")
    place = LIBS if folder == "/usr/lib/x86_64-linux-gnu" else folder
    if path.startswith("/dev/"):
        return f"node {path}", "yes"
    if path.startswith("/proc/"):
        return f"proc {path}", "yes"
    if re.fullmatch(r"lib.*\.so\..*", name):
        return f"library {name}", place
    if name.startswith("gsp_"):
        return f"firmware {name}", place
    if folder.endswith("/bin"):
        return f"program {name}", place
    return f"data {name}", place


def text(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of the table with its legend."""
    yield "# One H200, driver 580.159.04: what we bring and what the usual tools bring"
    yield ""
    yield "Made by `tests/test_peers.py` from `peers.json`, recorded on that host, and from our"
    yield "plans for it. An empty cell: not brought, or not shown by that tool's record. LIBS is"
    yield "the image's library directory. All of them mount files with the same options."
    yield ""
    yield f"| what | {' | '.join(COLUMNS)} | why |"
    yield f"|{'---|' * (len(COLUMNS) + 2)}"
    for row in rows:
        cells = " | ".join(row.cells.get(column, "") for column in COLUMNS)
        yield f"| {row.name} | {cells} | {row.reasons()} |"
    yield ""
    yield from (f"- {letter}: {reason}" for letter, reason in REASONS.items())
