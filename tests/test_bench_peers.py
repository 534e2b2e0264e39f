"""The start-up bench's peers: CDI's edits in a spec, and tools that are not here."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrib.bench.peers import apply_edits, peers
from tests.containers.spec import make_spec


def test_edits_add_to_the_spec() -> None:
    """Variables, mounts and hooks come after what the spec has, under the names OCI has."""
    spec = make_spec(Path("/root"), ["true"])
    mounts = len(spec["mounts"])
    hook = {"hookName": "createContainer", "path": "/bin/ctk", "args": ["ctk", "x"]}
    apply_edits(
        spec,
        {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro", "bind"]}],
            "hooks": [hook, {**hook, "args": ["ctk", "y"]}],
        },
    )
    assert spec["process"]["env"][-1] == "NVIDIA_VISIBLE_DEVICES=void"
    assert spec["mounts"][mounts:] == [
        {"source": "/a", "destination": "/b", "type": "bind", "options": ["ro", "bind"]}
    ]
    made = spec["hooks"]["createContainer"]
    assert made == [{"path": "/bin/ctk", "args": ["ctk", word]} for word in ("x", "y")]


def test_node_is_made_and_allowed() -> None:
    """A node is looked up on the host and gets its number, mode and a rule of its own."""
    spec = make_spec(Path("/root"), ["true"])
    apply_edits(spec, {"deviceNodes": [{"path": "/dev/other", "hostPath": "/dev/null"}]})
    node = spec["linux"]["devices"][-1]
    assert (node["path"], node["major"], node["minor"], node["fileMode"]) == (
        "/dev/other",
        1,
        3,
        0o666,
    )
    rule = spec["linux"]["resources"]["devices"][-1]
    assert rule == {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}


def test_absent_tools_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver every peer is left out with a line that says so."""
    found, left_out = peers(tmp_path, driver=False)
    assert found == []
    assert [line.partition(":")[0] for line in left_out] == ["legacy", "cdi", "jit-cdi"]
    assert all(": not measured: " in line for line in left_out)


def test_tools_on_the_machine_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every tool there, each is set up: CDI's edits are those that nvidia-ctk wrote."""
    monkeypatch.setenv("GPU_AGENT_CONTAINERD_DIR", str(tmp_path))
    for name in ("-cli", "-runtime", "-runtime-hook"):
        _program(tmp_path / f"nvidia-container{name}", "exit 0")
    spec = '{"containerEdits": {}, "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}'
    out = "for word; do case $word in --output=*) out=${word#--output=};; esac; done"
    _program(tmp_path / "nvidia-ctk", f"{out}\necho '{spec}' >$out")
    found, left_out = peers(tmp_path, driver=True)
    assert left_out == []
    assert [variant.name for variant in found] == ["legacy", "cdi", "jit-cdi"]
    assert found[1].edits == ({}, {"env": ["A=1"]})
    assert Path(found[2].runtime).read_text().endswith('nvidia-container-runtime" "$@"\n')


def test_tool_that_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that cannot do its work here is named with its own first line."""
    monkeypatch.setenv("GPU_AGENT_CONTAINERD_DIR", str(tmp_path))
    _program(tmp_path / "nvidia-ctk", "echo no NVML here >&2; exit 1")
    _, left_out = peers(tmp_path, driver=True)
    assert "cdi: not measured: no NVML here" in left_out


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
