"""The generated code in agent/_pb is what contrib/protos makes of protos/, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agent._pb.containerd import containers_pb2, events_pb2

TOP = Path(__file__).resolve().parent.parent


def contents(folder: Path) -> dict[str, str]:
    """Text of every generated file below `folder`."""
    files = (p for p in folder.rglob("*.py*") if p.suffix in (".py", ".pyi"))
    return {str(p.relative_to(folder)): p.read_text() for p in files}


def test_generated_code_is_current(tmp_path: Path) -> None:
    """Regenerating into an empty folder gives the very files that are checked in."""
    command = [sys.executable, str(TOP / "contrib" / "protos"), "--out", str(tmp_path / "_pb")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    fresh, kept = contents(tmp_path / "_pb"), contents(TOP / "agent" / "_pb")
    assert sorted(fresh) == sorted(kept)
    assert [name for name in fresh if fresh[name] != kept[name]] == []


def test_a_container_has_the_wire_form_of_containerd() -> None:
    """Field numbers are containerd's: bytes written by hand read as the record they stand for."""
    spec = b"\x0a\x01T\x12\x02{}"  # Any: 1=type_url, 2=value
    runtime = b"\x0a\x04runc"
    raw = b"\x0a\x01c" + b"\x1a\x03img" + b"\x22" + bytes([len(runtime)]) + runtime
    raw += b"\x2a" + bytes([len(spec)]) + spec + b"\x42\x02\x08\x07"  # 8=created_at, 7 s
    record = containers_pb2.Container.FromString(raw)
    assert (record.id, record.image, record.runtime.name) == ("c", "img", "runc")
    assert (record.spec.value, record.created_at.seconds) == (b"{}", 7)


def test_an_envelope_has_the_wire_form_of_containerd() -> None:
    """An event's namespace, topic and payload sit in fields 2, 3 and 4."""
    raw = b"\x0a\x02\x08\x05" + b"\x12\x06k8s.io" + b"\x1a\x02/t" + b"\x22\x03\x12\x01x"
    envelope = events_pb2.Envelope.FromString(raw)
    assert (envelope.timestamp.seconds, envelope.namespace) == (5, "k8s.io")
    assert (envelope.topic, envelope.event.value) == ("/t", b"x")
