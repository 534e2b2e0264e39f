"""What `agent.plan` writes is what `hooks.planfile` reads, and nothing else is read."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.facts.values import FileId, IpcFact, NodeFact
from agent.plan import (
    BindFile,
    BindIpc,
    BindNode,
    BindProcGpu,
    CacheEntry,
    DeviceRule,
    Entry,
    ForwardCompat,
    Link,
    MaskProc,
    Place,
    Plan,
    Step,
    Text,
    digest,
    encode,
    encode_entry,
)
from hooks import planfile, state

# Paths come from os.fsdecode, so odd bytes are lone surrogates; NUL is in no path.
NAMES = st.binary(min_size=1, max_size=40).filter(lambda b: b"\0" not in b).map(os.fsdecode)
NUMBERS = st.integers(0, 2**63 - 1)
SMALL = st.integers(0, 2**20)
PLACES = st.sampled_from(Place)
FILES = st.builds(FileId, path=NAMES, dev=NUMBERS, ino=NUMBERS, size=NUMBERS, mtime_ns=NUMBERS)
NODES = st.builds(
    NodeFact,
    target=NAMES,
    source=NAMES,
    major=SMALL,
    minor=SMALL,
    mode=SMALL,
    uid=SMALL,
    gid=SMALL,
)
IPC = st.builds(IpcFact, kind=st.sampled_from(("socket", "dir")), target=NAMES, source=NAMES)
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(BindFile, place=PLACES, target=NAMES, file=FILES),
    st.builds(BindIpc, ipc=IPC),
    st.builds(BindNode, node=NODES),
    st.builds(Link, place=PLACES, target=NAMES, points_to=NAMES),
    st.builds(MaskProc, target=NAMES, files=st.tuples(st.tuples(NAMES, NAMES))),
    st.builds(BindProcGpu, name=NAMES, source=NAMES),
    st.builds(CacheEntry, place=PLACES, soname=NAMES, target=NAMES, flags=SMALL),
    st.builds(ForwardCompat, driver_version=NAMES),
    st.builds(Text, target=NAMES, content=NAMES),
    st.builds(DeviceRule, major=SMALL, minor=SMALL),
)
PLANS = st.builds(
    Plan,
    generation=NAMES,
    driver_version=NAMES,
    version_file=NAMES,
    version_text=NAMES,
    steps=st.lists(STEPS, max_size=6).map(tuple),
)
ENTRIES = st.builds(
    Entry,
    verdict=st.sampled_from(("plan", "none", "refuse")),
    detail=NAMES,
    generation=NAMES,
    root=NAMES,
    owner=st.tuples(SMALL, SMALL),
    label=NAMES,
)

PLAN = Plan(
    "g1",
    "580.1",
    "/proc/driver/nvidia/version",
    "NVRM 580.1\n",
    (
        BindFile(Place.LIBS, "libcuda.so.1", FileId("/lib/libcuda.so.1", 1, 2, 3, 4)),
        MaskProc("/proc/driver/nvidia", (("params", "a\tb\\c\n"), ("version", ""))),
        DeviceRule(195, 255),
    ),
)
ENTRY = Entry("plan", "a" * 32, "g1", "rootfs", (0, 0), "k8s.io/c1")


def as_bytes(fields: tuple[str, ...]) -> list[bytes]:
    """A step's fields as the hook has them."""
    return [os.fsencode(field) for field in fields]


@given(PLANS)
def test_plan_round_trip(plan: Plan) -> None:
    """Every plan is read back field by field, whatever bytes its paths have."""
    read = planfile.parse_plan(encode(plan))
    assert read.generation == os.fsencode(plan.generation)
    assert read.driver == os.fsencode(plan.driver_version)
    assert read.version_file == os.fsencode(plan.version_file)
    assert read.version_text == os.fsencode(plan.version_text)
    assert read.steps == [as_bytes(step.fields()) for step in plan.steps]


@given(ENTRIES)
def test_entry_round_trip(entry: Entry) -> None:
    """Every entry is read back whole."""
    read = planfile.parse_entry(encode_entry(entry))
    assert (read.verdict, read.detail) == (entry.verdict.encode(), os.fsencode(entry.detail))
    assert (read.generation, read.root) == (os.fsencode(entry.generation), os.fsencode(entry.root))
    assert (read.uid, read.gid) == entry.owner
    assert read.label == os.fsencode(entry.label)


@given(st.binary())
def test_digests_agree(content: bytes) -> None:
    """Both sides name the same content alike."""
    assert state.digest(content) == digest(content)


@given(PLANS, st.data())
def test_truncated_plan_is_refused(plan: Plan, data: st.DataObject) -> None:
    """A plan that was cut anywhere is not read."""
    content = encode(plan)
    cut = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(ValueError, match=r"truncated|not a gpu-agent-plan"):
        planfile.parse_plan(content[:cut])


@given(st.binary())
def test_noise_is_refused(noise: bytes) -> None:
    """Bytes that are no plan raise ValueError and nothing else."""
    for parse in (planfile.parse_plan, planfile.parse_entry):
        with pytest.raises(ValueError, match=r"truncated|not a gpu-agent-(plan|entry) file"):
            parse(noise)


@given(st.data())
def test_damaged_plan_never_reads_as_another_error(data: st.DataObject) -> None:
    """A plan with one changed byte is read or refused with ValueError, never anything else."""
    content = bytearray(encode(PLAN))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    read = None
    with suppress(ValueError):
        read = planfile.parse_plan(bytes(content))
    assert read is None or len(read.steps) in (2, 3, 4)


def changed(content: bytes, old: bytes, new: bytes) -> bytes:
    """`content` with one thing replaced, which must be in it."""
    assert content.count(old) == 1
    return content.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"gpu-agent-plan\t1", b"gpu-agent-plan\t2", "format version b'2', this hook reads 1"),
        (b"gpu-agent-plan\t1", b"gpu-agent-plan", "not a gpu-agent-plan file"),
        (b"gpu-agent-plan", b"gpu-agent-entry", "not a gpu-agent-plan file"),
        (b"generation\t", b"generations\t", "line 2 is not a generation line"),
        (b"driver\t580.1\n", b"", "line 3 is not a driver line"),
        (b"rule\t", b"ruler\t", "unknown step b'ruler'"),
        (b"rule\t195\t", b"rule\t", "step rule has 3 fields"),
        (b"file\tlibs\t", b"file\tlib\t", "step file has unknown place b'lib'"),
        (b"\tparams\t", b"\t", "step mask has 5 fields"),
        (b"end\n", b"", "truncated: no end line"),
        (b"end\n", b"end\nend", "truncated: no end line"),
        (b"end\n", b"end", "truncated: no end line"),
    ],
)
def test_foreign_plan_is_refused(old: bytes, new: bytes, why: str) -> None:
    """What this version does not know is named and refused."""
    content = encode(PLAN)
    content = content.replace(old, new, 1) if content.count(old) > 1 else changed(content, old, new)
    with pytest.raises(ValueError, match=re.escape(why)):
        planfile.parse_plan(content)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"verdict\tplan", b"verdict\tyes", "entry has unknown verdict b'yes'"),
        (b"owner\t0\t0\n", b"", "entry has 5 lines instead of 6"),
        (b"owner\t0\t0", b"owner\tx\t0", "invalid literal"),
        (b"owner\t0\t0", b"owner\t0", "line 5 is not a owner line"),
        (b"gpu-agent-entry\t1", b"gpu-agent-entry\t9", "format version b'9'"),
    ],
)
def test_foreign_entry_is_refused(old: bytes, new: bytes, why: str) -> None:
    """The same for entries."""
    with pytest.raises(ValueError, match=re.escape(why)):
        planfile.parse_entry(changed(encode_entry(ENTRY), old, new))


def test_format_is_pinned() -> None:
    """The text of version 1, to the byte: a change of it needs another version number."""
    assert encode(PLAN) == (
        b"gpu-agent-plan\t1\ngeneration\tg1\ndriver\t580.1\n"
        b"expect\t/proc/driver/nvidia/version\tNVRM 580.1\\n\n"
        b"file\tlibs\tlibcuda.so.1\tro,nosuid,nodev\t/lib/libcuda.so.1\t1\t2\t3\t4\n"
        b"mask\t/proc/driver/nvidia\tparams\ta\\tb\\\\c\\n\tversion\t\n"
        b"rule\t195\t255\trw\nend\n"
    )
    assert encode_entry(ENTRY) == (
        b"gpu-agent-entry\t1\nverdict\tplan\t" + b"a" * 32 + b"\ngeneration\tg1\n"
        b"root\trootfs\nowner\t0\t0\nlabel\tk8s.io/c1\nend\n"
    )


def test_volumes_of_an_entry() -> None:
    """The spec's bound paths reach the hook, odd names too; an entry without any has no line."""
    volumes = ("/a\tb", "/var/lib/kubelet/pods/x")
    content = encode_entry(replace(ENTRY, volumes=volumes))
    assert b"volumes\t/a\\tb\t/var/lib/kubelet/pods/x\nend\n" in content
    assert planfile.parse_entry(content).volumes == [b"/a\tb", b"/var/lib/kubelet/pods/x"]
    assert planfile.parse_entry(encode_entry(ENTRY)).volumes == []
