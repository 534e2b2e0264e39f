"""agentctl runtime-config: what containerd must be told, for this node's settings."""

from __future__ import annotations

import io
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.cli import main as cli
from agent.cli import runtime

CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
CONFIG = """
[agent]
run_dir = "/run/elsewhere"
[hook]
runtime = "/opt/a\\"b/runc"
python = "/usr/bin/python3.12"
path = "/opt/hook.pyc"
wrapper = "/opt/a\\"b/wrap"
agent_python = "/opt/venv/bin/python"
timeout_s = 20
"""


def entry(config: str) -> dict[str, object]:
    """The hook entry of that config file; the standalone planner must read the same file."""
    return {
        "path": "/usr/bin/python3.12",
        "args": [
            *("python3", "-I", "-S", "-B", "/opt/hook.pyc", "/run/elsewhere"),
            *("/opt/venv/bin/python", f"--config={config}"),
        ],
        "env": ["GPU_AGENT_HOOK=1"],
        "timeout": 20,
    }


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main([*words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def parts(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(printed(capsys, "runtime-config", "--json", *words))
    return made


@pytest.mark.parametrize("version", [2, 3])
def test_handler_is_toml_of_that_config_version(
    version: int, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The handler stands below the CRI plugin's name in each config version."""
    made = parts(capsys, "--config", config, "--config-version", str(version))
    handler = tomllib.loads(made["handler"])
    assert handler["version"] == version
    table = handler["plugins"][CRI[version]]["containerd"]["runtimes"]["gpu"]
    assert table == {
        "runtime_type": "io.containerd.runc.v2",
        "base_runtime_spec": made["base_spec_path"],
    }
    wrapper = tomllib.loads(made["wrapper_handler"])
    table = wrapper["plugins"][CRI[version]]["containerd"]["runtimes"]["gpu"]
    assert table["options"] == {"BinaryName": '/opt/a"b/wrap'}


def test_systemd_cgroup_is_set_in_both_handlers(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node with the systemd cgroup driver must say so in every handler, ours too."""
    made = parts(capsys, "--config", config, "--systemd-cgroup")
    for name in ("handler", "wrapper_handler"):
        table = tomllib.loads(made[name])["plugins"][CRI[2]]["containerd"]["runtimes"]["gpu"]
        assert table["options"]["SystemdCgroup"] is True


def test_hook_entry_has_the_nodes_settings(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Absolute interpreter, isolated flags, an environment that is not empty, a timeout."""
    made = parts(capsys, "--config", config)
    assert made["hook"] == entry(config)
    assert made["base_spec"] == {"hooks": {"createRuntime": [entry(config)]}}


def test_run_dir_on_the_command_line_wins(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--run-dir is the caller's word; without it the config file's counts."""
    out = printed(capsys, "--run-dir", "/run/given", "runtime-config", "--json", "--config", config)
    assert json.loads(out)["hook"]["args"][5] == "/run/given"


def test_wrapper_settings_are_what_the_wrapper_reads(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two lines beside the wrapper: the runtime's path and the hook entry."""
    made = parts(capsys, "--config", config)
    assert made["wrapper_settings_path"] == '/opt/a"b/wrapper.conf'
    first, second = made["wrapper_settings"].splitlines()
    assert first == '/opt/a"b/runc'
    assert json.loads(second) == entry(config)


def test_words_have_all_parts(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The text for people has what the JSON has."""
    out = printed(capsys, "runtime-config", "--config", config)
    for text in ("base_runtime_spec", '"createRuntime"', "BinaryName", "wrapper.conf", "ctr oci"):
        assert text in out


def test_missing_default_file_is_the_defaults(tmp_path: Path) -> None:
    """A node without a config file has a runtime config; the planner's Python is this one."""
    node = runtime.read_node(None, str(tmp_path / "absent.toml"))
    assert node.run_dir == "/run/gpu-agent"
    assert node.agent_python == sys.executable


def test_malformed_config_is_one_line_with_all_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken config file is told like any wrong input: exit 2, one line, each mistake."""
    path = tmp_path / "config.toml"
    path.write_text("[hook]\ntimeout_s = 0\npython = 3\n")
    assert cli.main(["runtime-config", "--config", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "hook.timeout_s = 0" in err
    assert "hook.python = 3" in err


def test_base_spec_keeps_the_rest_and_takes_the_hook_once(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other hooks stay, ours is added once, and CRI's containers keep their rlimits."""
    other = {"path": "/other"}
    base = {
        "ociVersion": "1.0",
        "process": {"cwd": "/", "rlimits": [{"type": "RLIMIT_NOFILE"}]},
        "hooks": {"createRuntime": [other], "poststop": [other]},
    }
    path = tmp_path / "base.json"
    for _ in range(2):
        path.write_text(json.dumps(base))
        words = ("runtime-config", "--config", config, "--base-spec", str(path))
        base = json.loads(printed(capsys, *words))
    assert base == {
        "ociVersion": "1.0",
        "process": {"cwd": "/"},
        "hooks": {"createRuntime": [other, entry(config)], "poststop": [other]},
    }


def test_base_spec_comes_from_stdin_too(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ctr oci spec | agentctl runtime-config --base-spec -`."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"ociVersion": "1.0"}')))
    out = printed(capsys, "runtime-config", "--config", config, "--base-spec", "-")
    assert json.loads(out)["hooks"] == {"createRuntime": [entry(config)]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"hooks": []}', "hooks: not an object"),
        (b'{"hooks": {"createRuntime": 3}}', "hooks: not an object"),
    ],
)
def test_bad_base_spec(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is not a spec is wrong input, told in one line."""
    path = tmp_path / "base.json"
    path.write_bytes(content)
    config = tmp_path / "config.toml"
    config.write_bytes(b"")
    words = ["runtime-config", "--config", str(config), "--base-spec", str(path)]
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
