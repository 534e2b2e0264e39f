"""The replay log: what hooks wrote is read once, and what nobody wrote is not believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import replaylog
from agent.replaylog import ReplayLog, parse
from agent.replays import ReplayPath

SPEC = "5" * 32


def line(
    n: int = 0, *, way: str = "staged", outcome: str = "ok", error: str = "", spec: str = SPEC
) -> bytes:
    """A line as the hook writes it."""
    at = 1_700_000_000_000_000_000 + n
    phases = "interpreter=8000,find=500,mount=9000"
    fields = ("1", str(at), f"default/c{n}", spec, way, outcome, phases, error)
    return "\t".join(fields).encode() + b"\n"


@pytest.fixture
def log(tmp_path: Path) -> ReplayLog:
    return ReplayLog(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "replays.log"


def add(file: Path, content: bytes) -> None:
    with file.open("ab") as opened:
        opened.write(content)


def test_line_of_the_hook() -> None:
    """Every field of a line has its place in the record; times are milliseconds."""
    found = parse(line(way="asked", outcome="failed", error="no such GPU: 7").rstrip(b"\n"))
    assert found is not None
    spec, record = found
    assert (spec, record.label, record.ok) == (SPEC, "default/c0", False)
    assert (record.path, record.error) == (ReplayPath.ASKED, "no such GPU: 7")
    assert record.phases == (("interpreter", 8.0), ("find", 0.5), ("mount", 9.0))
    assert (record.total_ms, record.at) == (17.5, 1_700_000_000.0)


def test_line_is_what_the_hook_writes(tmp_path: Path, log: ReplayLog) -> None:
    """The hook's own code writes lines that the agent understands."""
    from hooks.clock import Clock
    from hooks.hook import Options, Start
    from hooks.stagedir import Stage
    from hooks.state import State

    tmp_path.chmod(0o700)
    state = State('{"id": "one", "pid": 99, "bundle": "/run/x/default/one"}')
    start = Start(Options([str(tmp_path)]), state, b"{}", Clock())
    start._stage = Stage(bytes(tmp_path))
    start.record("no such\tGPU: 7\n")
    assert log.read() == 1
    (record,) = log.records
    assert (record.label, record.ok, record.error) == ("default/one", False, "no such GPU: 7 ")
    assert [name for name, _ in record.phases] == ["interpreter"]


def test_lines_are_read_once_and_in_order(log: ReplayLog, file: Path) -> None:
    """Each reading takes what is new; the last record of a container is found by its spec."""
    assert log.read() == 0
    add(file, line(1) + line(2))
    assert log.read() == 2
    add(file, line(3))
    assert (log.read(), log.read()) == (1, 0)
    assert [r.label for r in log.records] == ["default/c1", "default/c2", "default/c3"]
    assert log.by_spec[SPEC].label == "default/c3"
    log.forget(SPEC)
    log.forget(SPEC)
    assert (len(log.by_spec), len(log.records)) == (0, 3)


def test_half_a_line_waits_for_its_end(log: ReplayLog, file: Path) -> None:
    """A line that is being written is neither read nor counted before it is whole."""
    whole = line(1) + line(2)
    add(file, whole[:-10])
    assert (log.read(), log.unreadable) == (1, 0)
    add(file, whole[-10:])
    assert (log.read(), log.unreadable) == (1, 0)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff\xfe\x00",
        b"2" + line()[1:-1],
        line()[:-1] + b"\tmore",
        line(way="teleported")[:-1],
        line().replace(b"find=500", b"find=")[:-1],
        line().replace(b"find=500", b"find")[:-1],
        line().replace(b"find=500", b"find=1e3")[:-1],
        line().replace(b"1700000000", b"9" * 400)[:-1],
        line().replace(b"=500", b"=" + b"9" * 400)[:-1],
        line().replace(b"=500", b"=" + b"9" * 5000)[:-1],
    ],
)
def test_garbage_is_counted_and_skipped(log: ReplayLog, file: Path, garbage: bytes) -> None:
    """A line that no hook writes is counted; the lines around it are read."""
    add(file, line(1) + garbage + b"\n" + line(2))
    assert log.read() == 2
    assert log.unreadable == 1


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_none(data: bytes) -> None:
    """No line, whatever is in it, is more than not understood."""
    found = parse(data)
    assert found is None or found[1].label is not None


@given(st.lists(st.sampled_from([b"1", b"\t", b"ok", b"=", b",", b"staged", b"9" * 310, b"-"])))
def test_almost_lines_are_a_record_or_none(parts: list[bytes]) -> None:
    """Neither is one that looks like a hook's."""
    found = parse(b"1\t1\tlabel\tspec\tstaged\tok\t" + b"".join(parts) + b"\t")
    assert found is None or found[1].path is ReplayPath.STAGED


def test_file_starts_anew_when_it_is_long(
    log: ReplayLog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long file is dropped after it was read, and the next one is read from its beginning."""
    monkeypatch.setattr(replaylog, "ROTATE_AT", 1000)
    add(file, line(1) * 20)
    assert log.read() == 20
    assert not file.exists()
    add(file, line(2))
    assert log.read() == 1


def test_file_replaced_or_cut_is_read_from_its_beginning(log: ReplayLog, file: Path) -> None:
    """Whoever rotates the file himself loses no later line."""
    add(file, line(1) + line(2))
    log.read()
    new = file.with_suffix(".new")
    new.write_bytes(line(3) + line(4) + line(5))
    new.rename(file)
    assert log.read() == 3
    file.write_bytes(line(6))
    assert log.read() == 1


def test_line_without_an_end_is_given_up(
    log: ReplayLog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heap of bytes without a newline does not keep later lines from being read."""
    monkeypatch.setattr(replaylog, "LINE_LIMIT", 1000)
    add(file, b"x" * 5000)
    assert (log.read(), log.unreadable) == (0, 1)
    add(file, b"\n" + line(1))
    assert (log.read(), log.unreadable) == (1, 2)


def test_reading_is_bounded(log: ReplayLog, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much there is, one reading takes a bounded part, and none is lost."""
    monkeypatch.setattr(replaylog, "READ_LIMIT", 10 * len(line()) + 5)
    add(file, line() * 25)
    assert [log.read() for _ in range(4)] == [10, 10, 5, 0]


def test_memory_is_bounded(log: ReplayLog, file: Path) -> None:
    """Only the last records are kept, of containers that nobody forgets too."""
    kept = replaylog.KEPT
    for part in range(3):
        lines = (line(n, spec=f"{n:032x}") for n in range(part * kept // 2, (part + 1) * kept // 2))
        add(file, b"".join(lines))
        log.read()
    assert (len(log.records), len(log.by_spec)) == (kept, kept)
    assert log.records[-1].label == f"default/c{kept * 3 // 2 - 1}"


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_only_a_plain_file_is_read(log: ReplayLog, file: Path, kind: str) -> None:
    """Nothing else in the log's place is followed, waited for, or the end of the agent."""
    match kind:
        case "link":
            file.with_suffix(".real").write_bytes(line())
            file.symlink_to(file.with_suffix(".real"))
        case "directory":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
    before = len(os.listdir("/proc/self/fd"))
    assert (log.read(), log.unreadable) == (0, 0)
    assert len(os.listdir("/proc/self/fd")) == before
