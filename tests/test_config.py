"""The config file: what is valid, and every mistake named with its place."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from agent import config
from agent.config import Config, ContainerdSettings
from agent.errors import ConfigError
from agent.features import OptOut
from agent.policy import EnvRequests, Policy, policy_of
from agent.request import Capability

FULL = b"""
[agent]
run_dir = "/run/other/"
log_level = "debug"
[host]
driver_root = "/run/nvidia/driver"
dev_root = "/run/nvidia/driver"
device_nodes = "leave"
proc_root = "/host/proc"
sys_root = "/host/sys"
library_dirs = ["/opt/nvidia/lib64", "/opt/nvidia/lib"]
proc_mask = "/proc/driver"
nvml = false
nvml_timeout_s = 2.5
[[containerd]]
address = "/run/containerd/containerd.sock"
[[containerd]]
address = "/run/k3s/containerd/containerd.sock"
[policy]
env_requests = "privileged"
supported_capabilities = ["utility", "compute"]
env_containerd_namespaces = ["k8s.io", "moby"]
env_pod_namespaces = ["ml"]
swarm_resources = ["DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_NVIDIA-GPU"]
accept_volume_mounts = true
annotation_prefixes = ["cdi.k8s.io/", "gpu-agent/opt-out"]
disable_require = true
ignore_imex_channels = true
opt_out = ["sockets", "firmware"]
[hook]
runtime = "/usr/sbin/runc"
python = "/usr/bin/python3.12"
path = "/opt/hook.pyc"
wrapper = "/opt/wrapper"
agent_python = "/opt/venv/bin/python"
timeout_s = 30
"""


def mistakes(content: str | bytes) -> tuple[str, ...]:
    data = content if isinstance(content, bytes) else content.encode()
    with pytest.raises(ConfigError) as caught:
        config.parse(data, "config.toml")
    return caught.value.mistakes


def test_empty_file_is_the_defaults() -> None:
    """A node without a config file runs: the defaults are what an empty file gives."""
    parsed = config.parse(b"", "config.toml")
    assert parsed == Config()
    assert parsed.agent.run_dir == "/run/gpu-agent"
    assert parsed.containerd == (ContainerdSettings("/run/containerd/containerd.sock"),)
    assert policy_of(parsed.policy) == Policy()


def test_defaults_would_pass_as_input() -> None:
    """No default is a value that the same key would refuse in a file."""
    lines = []
    for name in ("agent", "host", "policy", "hook"):
        lines.append(f"[{name}]")
        for key, value in dataclasses.asdict(getattr(Config(), name)).items():
            if value is None:
                continue
            shown = list(value) if isinstance(value, tuple) else value
            text = str(shown).lower() if isinstance(shown, bool) else repr(shown)
            lines.append(f"{key} = {text}")
    assert config.parse("\n".join(lines).encode(), "config.toml") == Config()


def test_every_key_is_read() -> None:
    """Each key of a full file arrives, and a trailing slash does not make another path."""
    parsed = config.parse(FULL, "config.toml")
    for name in ("agent", "host", "policy", "hook"):
        given, default = getattr(parsed, name), getattr(Config(), name)
        for field in dataclasses.fields(given):
            assert getattr(given, field.name) != getattr(default, field.name), field.name
    assert parsed.agent.run_dir == "/run/other"
    assert [c.address for c in parsed.containerd] == [
        "/run/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock",
    ]
    assert policy_of(parsed.policy) == Policy(
        EnvRequests.PRIVILEGED,
        (Capability.COMPUTE, Capability.UTILITY),
        env_containerd_namespaces=("k8s.io", "moby"),
        env_pod_namespaces=("ml",),
        swarm_resources=("DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_NVIDIA-GPU"),
        accept_volume_mounts=True,
        annotation_prefixes=("cdi.k8s.io/", "gpu-agent/opt-out"),
        disable_require=True,
        ignore_imex_channels=True,
        opt_out=(OptOut.FIRMWARE, OptOut.SOCKETS),
    )


def test_names_are_those_of_the_enums() -> None:
    """The names the file may use are exactly the capabilities and opt-outs that there are."""
    assert set(config.ALL_CAPABILITIES) == {str(c) for c in Capability}
    assert set(get_args(config.OptOutName)) == {str(o) for o in OptOut}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('[agent]\nrun_dir = "run"', "agent.run_dir = 'run': expected an absolute path"),
        ('[agent]\nrun_dir = "/"', "agent.run_dir = '/': expected a directory"),
        (f'[agent]\nrun_dir = "/{"a" * 100}"', "expected a directory of at most"),
        ('[agent]\nlog_level = "loud"', "agent.log_level = 'loud': expected 'debug', 'info'"),
        ("[agent]\nrundir = 1", "agent.rundir: unknown key: expected one of run_dir, log_level"),
        ("colour = 1", "colour: unknown key: expected one of agent, host, containerd"),
        ("agent = 3", "agent = 3: expected a table"),
        ("[[agent]]", "agent = [{}]: expected a table"),
        ('[host]\nnvml = "yes"', "host.nvml = 'yes': expected true or false"),
        ("[host]\nnvml_timeout_s = 0", "host.nvml_timeout_s = 0: expected greater than 0"),
        ("[host]\nnvml_timeout_s = nan", "host.nvml_timeout_s = nan: expected a finite number"),
        ('[host]\nnvml_timeout_s = "5"', "host.nvml_timeout_s = '5': expected a number"),
        ('[host]\nlibrary_dirs = "/a"', "host.library_dirs = '/a': expected a list"),
        ('[host]\nlibrary_dirs = ["/a", "b"]', "host.library_dirs[1] = 'b': expected an abs"),
        ('[host]\nlibrary_dirs = ["/a", "/a/"]', "host.library_dirs[1] = '/a/': expected each"),
        ("[host]\ndriver_root = 5", "host.driver_root = 5: expected a string"),
        ('[host]\nsys_root = "/a/../b"', "host.sys_root = '/a/../b': expected an absolute path"),
        ('[host]\nsys_root = "/a\\u0000"', "host.sys_root = '/a\\x00': expected an absolute"),
        ("containerd = []", "containerd = []: expected at least one"),
        ('[containerd]\naddress = "/a"', "containerd = {'address': '/a'}: expected a list"),
        ("[[containerd]]", "containerd[0].address: missing"),
        ('[[containerd]]\naddress = "unix:///a"', "containerd[0].address = 'unix:///a': expec"),
        (
            '[[containerd]]\naddress = "/a"\n[[containerd]]\naddress = "/a"',
            "containerd[1].address = '/a': expected each value once",
        ),
        ('[policy]\nenv_requests = "none"', "policy.env_requests = 'none': expected 'all' or"),
        (
            '[policy]\nsupported_capabilities = ["gpu"]',
            "policy.supported_capabilities[0] = 'gpu': expected 'compat32', 'compute'",
        ),
        (
            '[policy]\nenv_requests = "privileged"\nenv_pod_namespaces = ["a/b"]',
            "policy.env_pod_namespaces[0] = 'a/b': expected a namespace's name",
        ),
        (
            '[policy]\nenv_requests = "privileged"\nenv_pod_namespaces = ["a", "a"]',
            "policy.env_pod_namespaces[1] = 'a': expected each value once",
        ),
        (
            '[policy]\nenv_pod_namespaces = ["ml"]',
            "policy.env_pod_namespaces = ['ml']: expected only with env_requests = 'privileged'",
        ),
        (
            '[policy]\nenv_containerd_namespaces = ["moby"]\nenv_requests = "all"',
            "policy.env_containerd_namespaces = ['moby']: expected only with",
        ),
        (
            '[policy]\nswarm_resources = ["GPU"]',
            "policy.swarm_resources[0] = 'GPU': expected a variable's name of 4 to 128 characters",
        ),
        ('[policy]\nswarm_resources = ["A=B_C"]', "[0] = 'A=B_C': expected a variable's name"),
        ('[policy]\nswarm_resources = "GPUS"', "policy.swarm_resources = 'GPUS': expected a list"),
        ("[policy]\nswarm_resources = [5]", "policy.swarm_resources[0] = 5: expected a string"),
        ('[policy]\nannotation_prefixes = [""]', "[0] = '': expected an annotation's domain"),
        ('[policy]\nannotation_prefixes = ["cdi"]', "[0] = 'cdi': expected an annotation's domain"),
        ('[policy]\nannotation_prefixes = ["/x"]', "[0] = '/x': expected an annotation's domain"),
        ('[policy]\nopt_out = ["mask"]', "policy.opt_out[0] = 'mask': expected 'application_pr"),
        ("[policy]\ndisable_require = 1", "policy.disable_require = 1: expected true or false"),
        ("[hook]\ntimeout_s = 1.5", "hook.timeout_s = 1.5: expected a whole number"),
        ("[hook]\ntimeout_s = true", "hook.timeout_s = True: expected a whole number"),
        ("[hook]\ntimeout_s = 0", "hook.timeout_s = 0: expected greater than or equal to 1"),
        ('[hook]\npython = ""', "hook.python = '': expected an absolute path"),
        ("[agent", "not TOML: "),
        ("a = " + "[" * 100_000, "not TOML: "),
        (b"\xff", "byte 0: expected UTF-8"),
    ],
)
def test_each_mistake_names_key_value_and_expectation(content: str | bytes, expected: str) -> None:
    """One wrong value is one mistake, which says where it is, what it is and what was expected."""
    (mistake,) = mistakes(content)
    assert expected in mistake


def test_all_mistakes_come_at_once() -> None:
    """A file with many mistakes is corrected in one go, repetitions beside wrong types too."""
    found = mistakes(
        'x = 1\n[agent]\nrun_dir = 1\n[host]\nnvml = 1\nlibrary_dirs = ["/a", "/a", 3]\n'
        '[[containerd]]\naddress = "/s"\n[[containerd]]\naddress = "/s"\n[[containerd]]\n'
    )
    places = [m.split(" ")[0].rstrip(":") for m in found]
    assert sorted(places) == [
        "agent.run_dir",
        "containerd[1].address",
        "containerd[2].address",
        "host.library_dirs[1]",
        "host.library_dirs[2]",
        "host.nvml",
        "x",
    ]


def test_config_error_is_one_line_with_its_source() -> None:
    """The error's message names the file, stays one line and exits as invalid input."""
    with pytest.raises(ConfigError) as caught:
        config.parse(b'[agent]\nrun_dir = "a\\nb"', "/etc/gpu-agent/config.toml")
    assert str(caught.value).startswith("config: /etc/gpu-agent/config.toml: agent.run_dir")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_long_values_are_cut() -> None:
    """A mistake quotes a huge value only in part."""
    (mistake,) = mistakes(f'[agent]\nlog_level = "{"x" * 5000}"')
    assert len(mistake) < 250
