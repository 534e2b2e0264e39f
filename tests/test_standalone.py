"""The standalone planner, run as the hook runs it, on simulated hosts."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from agent.config import parse
from agent.host import proc_paths, read_inventory
from agent.plan import Plan, digest, encode
from agent.planner import plan
from agent.policy import Policy
from agent.request import read_spec
from agent.standalone import CONFIG
from contrib import simhost
from hooks import planfile, slowpath
from tests.fake_host import spec

HOSTS = Path(__file__).parent / "hosts"
GPU = "GPU-a1000316-0000-4000-8000-000000000000"
MIG = "MIG-a1000316-0000-5000-8000-000000000005"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the recorded hosts are x86_64"),
]

Config = Callable[[str], Path]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    """The config file of a recorded host, which is built once."""
    place = tmp_path_factory.mktemp("hosts")
    built: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in built:
            host = simhost.build(HOSTS / name, place / name)
            built[name] = place / f"{name}.toml"
            built[name].write_text(host.config())
        return built[name]

    yield of
    for root in (p for p in sorted(place.iterdir()) if p.is_dir()):
        simhost.remove(root)


def answer(content: bytes, config: Path | str) -> tuple[planfile.Entry, bytes]:
    """What the hook gets: its own code runs the planner and splits the answer."""
    entry, body = slowpath.standalone(sys.executable, [f"--config={config}"], content)
    return planfile.parse_entry(entry), body


def planned(content: bytes, config: Path, *, nvml: bool) -> Plan:
    """The daemon's plan for a spec on the same host."""
    settings = parse(config.read_bytes(), str(config)).host
    inventory = anyio.run(partial(read_inventory, settings, nvml=nvml))
    request = read_spec(content, Policy()).request
    assert request is not None
    return plan(inventory, request, proc_paths(settings))


@pytest.mark.parametrize("devices", ["all", "1", GPU, "0000:af:00.0", "none", f"MIG-{GPU}/5/0"])
def test_names_of_procfs_need_no_nvml(config: Config, devices: str) -> None:
    """For every name that procfs knows the plan is byte for byte that of a reading without NVML."""
    path = config("a100-mig")
    entry, body = answer(spec(devices), path)
    made = planned(spec(devices), path, nvml=False)
    assert body == encode(made)
    assert (entry.verdict, entry.detail.decode()) == (b"plan", digest(body))
    assert (entry.generation.decode(), entry.root) == (made.generation, b"rootfs")


@pytest.mark.parametrize(
    ("name", "devices"),
    [("a100x8-minors", "all"), ("a100x8-minors", "3,0"), ("h200-580", "0"), ("a100-mig", "all")],
)
def test_steps_are_those_of_the_agent(config: Config, name: str, devices: str) -> None:
    """The agent, which has asked NVML, plans the same steps; only the generation's name differs."""
    path = config(name)
    _, body = answer(spec(devices), path)
    steps = [list(step.fields()) for step in planned(spec(devices), path, nvml=True).steps]
    assert [[f.decode() for f in s] for s in planfile.parse_plan(body).steps] == steps


@pytest.mark.parametrize("devices", [MIG, "0:1"])
def test_mig_device_is_asked_of_nvml(config: Config, devices: str) -> None:
    """A MIG device by UUID or ordinal, which only NVML knows, is planned as the agent plans it."""
    path = config("a100-mig")
    _, body = answer(spec(devices), path)
    assert body == encode(planned(spec(devices), path, nvml=True))
    caps = [s[1] for s in planfile.parse_plan(body).steps if b"nvidia-caps/" in s[1]]
    assert caps == [b"/dev/nvidia-caps/nvidia-cap183", b"/dev/nvidia-caps/nvidia-cap184"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a100-mig", spec("9"), b"no such GPU: 9: this host has 0 (GPU-"),
        ("a100-mig", spec("MIG-" + GPU[4:]), b"no such GPU: MIG-"),
        ("a100-mig", spec("x y"), b"request: NVIDIA_VISIBLE_DEVICES="),
        ("a100-mig", b"{NVIDIA", b"request: spec="),
        ("mid-upgrade", spec("0"), b"driver not ready: driver-mismatch: "),
        ("no-driver", spec("all"), b"driver not ready: no-driver: "),
    ],
)
def test_refusals_have_the_agents_words(
    config: Config, name: str, content: bytes, words: bytes
) -> None:
    """What cannot be planned is a refuse entry without a plan, and exit status 0."""
    entry, body = answer(content, config(name))
    assert (entry.verdict, entry.detail[: len(words)], body) == (b"refuse", words, b"")


def test_container_that_asks_for_nothing(config: Config) -> None:
    """A plain container is answered `none`, on a host without a driver too."""
    for content in (spec(None), spec("void")):
        entry, body = answer(content, config("no-driver"))
        assert (entry.verdict, body) == (b"none", b"")


def test_malformed_config_is_a_refusal(tmp_path: Path) -> None:
    """Every mistake of the config is in the one line that refuses the container."""
    path = tmp_path / "config.toml"
    path.write_text('[host]\nnvml = "no"\nroot = "/"\n')
    entry, _ = answer(spec("0"), path)
    assert entry.verdict == b"refuse"
    assert b"host.nvml" in entry.detail
    assert b"host.root: unknown key" in entry.detail
    entry, _ = answer(spec("0"), tmp_path)
    assert entry.detail == f"config: {tmp_path}: is a directory".encode()


def test_policy_of_the_config_counts(config: Config, tmp_path: Path) -> None:
    """A node that ignores the environment of unprivileged containers does so here too."""
    path = tmp_path / "config.toml"
    path.write_text(f'{config("h200-580").read_text()}[policy]\nenv_requests = "privileged"\n')
    entry, _ = answer(spec("0"), path)
    assert entry.verdict == b"none"


@pytest.mark.parametrize(
    ("namespace", "verdict"), [("moby", b"plan"), ("k8s.io", b"none"), ("", b"refuse")]
)
def test_namespace_that_the_hook_proves(
    config: Config, tmp_path: Path, namespace: str, verdict: bytes
) -> None:
    """Where policy lists containerd namespaces the planner needs to be told which one it is."""
    path = tmp_path / "config.toml"
    policy = '[policy]\nenv_requests = "privileged"\nenv_containerd_namespaces = ["moby"]\n'
    path.write_text(config("h200-580").read_text() + policy)
    arguments = [f"--config={path}", f"--namespace={namespace}"]
    entry, _ = slowpath.standalone(sys.executable, arguments, spec("0"))
    assert planfile.parse_entry(entry).verdict == verdict


def test_hanging_nvml_is_a_refusal_in_time(config: Config, tmp_path: Path) -> None:
    """NVML that does not answer in its time leaves the device unknown; the hook is not kept."""
    text = config("a100-mig").read_text()
    root = Path(parse(text.encode(), "").host.driver_root)
    answers = root / "nvml.answers"
    old = answers.read_text()
    path = tmp_path / "config.toml"
    path.write_text(f"{text}nvml_timeout_s = 0.2\n")
    try:
        answers.write_text(f"delay_ms nvmlInitWithFlags -1\n{old}")
        entry, _ = answer(spec(MIG), path)
    finally:
        answers.write_text(old)
    assert entry.detail.startswith(b"no such GPU: MIG-")


@pytest.mark.parametrize("argument", ["--stage", "--config", "moby"])
def test_unknown_argument_is_no_answer(argument: str) -> None:
    """Of its command line only the two options with a value are understood."""
    command = [sys.executable, "-I", "-m", "agent.standalone", argument]
    done = subprocess.run(command, input=b"{}", capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


def test_default_config_is_the_agents() -> None:
    """The hook names no config file where the agent reads the default one."""
    from agent.cli import main as cli

    assert CONFIG == cli.CONFIG
