"""The runtime wrapper in front of the real runc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from agent.plan import digest
from tests.containers.runc import Container
from tests.containers.spec import Json, make_spec
from tests.containers.staging import GPU_ENV
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, config

pytestmark = NEEDS_CONTAINERS


@pytest.fixture
def wrapper(starter: Starter) -> Path:
    """The installed wrapper with its settings beside it."""
    program = starter.node.hook.with_name("gpu-agent-runc")
    entry = starter.hooks()["createRuntime"][0]
    settings = f"{shutil.which('runc')}\n{json.dumps(entry)}\n"
    program.with_name("wrapper.conf").write_text(settings)
    return program


def run(wrapper: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The wrapper as a shim calls it."""
    command = [str(wrapper), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)


def logged(log: Path) -> str:
    """The message of the one line in a runtime's log."""
    line = json.loads(log.read_text())
    assert (line.keys(), line["level"]) == ({"level", "msg", "time"}, "error")
    message: str = line["msg"]
    return message


def test_create_adds_the_hook(starter: Starter, wrapper: Path, root: Path) -> None:
    """A GPU container gets its GPU; its hook is bound to the spec as containerd wrote it."""
    spec = make_spec(root, ["sleep", "60"], env=GPU_ENV)
    with Container(starter.work, spec, runtime=(str(wrapper),)) as container:
        original = config(container)
        (container.bundle / "config.json").chmod(0o600)
        starter.node.stage_spec(original)
        container.create()
        container.start()
        assert container.exec("probe-dlopen", "libcuda.so.1").status == 0
        edited = json.loads(config(container))
        assert (container.bundle / "config.json").stat().st_mode & 0o777 == 0o600
        assert not (container.bundle / "config.json.gpu-agent").exists()
    hooks = edited.pop("hooks")
    assert edited == json.loads(original)
    assert hooks["createRuntime"][0]["args"][-1] == f"--spec={digest(original)}"
    record = starter.records()[-1]
    assert record[3:6] == [digest(original), "staged", "ok"]


def test_other_hooks_stay(starter: Starter, wrapper: Path, root: Path) -> None:
    """Hooks that the spec has come first and stay as they are."""
    other = {"path": "/bin/true", "args": ["true"]}
    hooks = {"createRuntime": [other], "poststop": [other]}
    spec = make_spec(root, ["true"], env=GPU_ENV, hooks=hooks)
    with Container(starter.work, spec, runtime=(str(wrapper),)) as container:
        starter.node.stage_spec(config(container))
        container.create()
        edited = json.loads(config(container))["hooks"]
    assert edited["poststop"] == [other]
    assert edited["createRuntime"][0] == other
    assert len(edited["createRuntime"]) == 2


def test_other_containers_pass_untouched(starter: Starter, wrapper: Path, root: Path) -> None:
    """The spec of a container that asks for nothing keeps every byte."""
    spec = make_spec(root, ["true"], env=["A=1"])
    with Container(starter.work, spec, runtime=(str(wrapper),)) as container:
        before = config(container)
        container.create()
        assert config(container) == before


def test_other_subcommands_pass_untouched(starter: Starter, wrapper: Path, tmp_path: Path) -> None:
    """What is no `create` reaches the runtime as it is, with its exit status and output."""
    direct = subprocess.run(["runc", "--version"], check=True, capture_output=True, text=True)
    assert run(wrapper, "--version").stdout == direct.stdout
    listed = run(wrapper, "--root", str(tmp_path), "list", "-f", "json")
    assert (listed.returncode, listed.stdout.strip()) == (0, "null")
    assert run(wrapper, "--root", str(tmp_path), "state", "nobody").returncode == 1


def test_error_goes_to_the_log(wrapper: Path, tmp_path: Path) -> None:
    """What the wrapper cannot do stands in the runtime's log, where the shim looks."""
    log = tmp_path / "log.json"
    options = ("--log", str(log), "--log-format", "json", "--root", str(tmp_path))
    done = run(wrapper, *options, "create", "--bundle", str(tmp_path / "none"), "c1")
    assert done.returncode == 1
    message = logged(log)
    assert message.startswith("gpu-agent: ")
    assert message.endswith("none/config.json: No such file or directory")


@pytest.mark.parametrize("content", ["NVIDIA", '["NVIDIA"]', '{"hooks": "NVIDIA"}', "NVIDIA\xff"])
def test_spec_that_is_none(wrapper: Path, tmp_path: Path, content: str) -> None:
    """A spec that asks for a GPU but is none is refused and left as it was."""
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    log = tmp_path / "log.json"
    done = run(wrapper, f"--log={log}", "create", f"--bundle={tmp_path}", "c1")
    assert (done.returncode, done.stderr) == (1, "")
    assert "not a runtime spec" in logged(log)
    assert (tmp_path / "config.json").read_bytes() == content.encode("latin-1")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "log.json"]


@pytest.mark.parametrize(
    "settings", [None, "", "runc\n{}\n", "/bin/runc\n", "\xff\n\n", "/no\n{}\n"]
)
def test_settings_that_are_none(wrapper: Path, tmp_path: Path, settings: str | None) -> None:
    """Without usable settings `create` fails with a line in the log."""
    (tmp_path / "config.json").write_text("{}")
    place = wrapper.with_name("wrapper.conf")
    place.unlink()
    if settings is not None:
        place.write_bytes(settings.encode("latin-1"))
    log = tmp_path / "log.json"
    assert run(wrapper, "--log", str(log), "create", f"--bundle={tmp_path}", "c1").returncode == 1
    assert logged(log).startswith("gpu-agent: ")


def test_error_without_a_log(wrapper: Path) -> None:
    """Called by hand it says on stderr what is wrong, in one line."""
    wrapper.with_name("wrapper.conf").unlink()
    done = run(wrapper, "create", "c1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpu-agent: ")
    assert done.stderr.count("\n") == 1


VIDEO = 44
USER = {"uid": 1000, "gid": 1000}
OPEN = ["sh", "-c", "probe-open /dev/nvidiactl; sleep 60"]


def only_for_video(starter: Starter) -> None:
    """Give the host's nodes the mode and group of many distributions."""
    for node in starter.node.host.nodes:
        os.chown(node.source, 0, VIDEO)
        os.chmod(node.source, 0o660)


def as_user(root: Path, user: Json, **options: Any) -> Json:
    """The spec of a GPU container whose program opens a node as `user`."""
    spec = make_spec(root, OPEN, env=GPU_ENV, **options)
    spec["process"]["user"] = user
    return spec


def test_user_gets_the_groups_of_its_nodes(starter: Starter, wrapper: Path, root: Path) -> None:
    """Node 0660 root:video: a process without privileges can open it (B098)."""
    only_for_video(starter)
    spec = as_user(root, {**USER, "additionalGids": [7]})
    with Container(starter.work, spec, runtime=(str(wrapper),)) as container:
        starter.node.stage_spec(config(container))
        container.create()
        container.start()
        edited = json.loads(config(container))["process"]["user"]
        assert output(container) == "/dev/nvidiactl ok"
    assert edited == {**USER, "additionalGids": [7, VIDEO]}


def test_user_without_the_wrapper(starter: Starter, root: Path) -> None:
    """The hook alone cannot give groups: the kernel refuses the same open (B098)."""
    only_for_video(starter)
    spec = as_user(root, USER, hooks=starter.hooks())
    with Container(starter.work, spec) as container:
        starter.node.stage_spec(config(container))
        container.create()
        container.start()
        assert output(container) == "/dev/nvidiactl EACCES"


@pytest.mark.parametrize("case", ["root", "mapped", "open", "roots-group", "none", "not staged"])
def test_no_groups_where_they_are_of_no_use(
    starter: Starter, wrapper: Path, root: Path, case: str
) -> None:
    """Root, mapped users, nodes for everyone or of root's group, no GPU, no plan: no group."""
    if case != "open":
        only_for_video(starter)
    if case == "roots-group":
        for node in starter.node.host.nodes:
            os.chown(node.source, 0, 0)
    user = {"uid": 0, "gid": 0} if case == "root" else USER
    spec = as_user(root, user, user_namespace=case == "mapped")
    if case == "none":
        spec["process"]["env"] = ["NVIDIA_VISIBLE_DEVICES=void"]
    with Container(starter.work, spec, runtime=(str(wrapper),)) as container:
        if case != "not staged":
            starter.node.stage_spec(config(container))
        container.create(check=False)
        edited = json.loads(config(container))
    assert edited["process"]["user"] == user
    assert len(edited["hooks"]["createRuntime"]) == 1


def output(container: Container) -> str:
    """The first line that the container's own program writes."""
    path = container.bundle / "create.stdout"
    for _ in range(1000):
        if line := path.read_text():
            return line.strip()
        time.sleep(0.01)  # the program writes to a file, which gives no other signal
    raise AssertionError("the container's program says nothing")
