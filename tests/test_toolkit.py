"""A toolkit config becomes settings of ours, and the report leaves no key out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli.main import agentctl
from agent.config import Config, parse
from agent.errors import UsageError
from agent.toolkit import MEANINGLESS, TAKEN, convert

# Every key that the tool documents, as its default config has it, plus those that are commented
# out there.
DOCUMENTED = b"""
disable-require = true
swarm-resource = "DOCKER_RESOURCE_GPU, DOCKER_RESOURCE_MIG"
accept-nvidia-visible-devices-envvar-when-unprivileged = false
accept-nvidia-visible-devices-as-volume-mounts = true
supported-driver-capabilities = "compute,utility,video"

[nvidia-container-cli]
root = "/run/nvidia/driver"
path = "/usr/bin/nvidia-container-cli"
environment = []
debug = "/var/log/toolkit.log"
ldcache = "/etc/ld.so.cache"
load-kmods = true
no-pivot = false
no-cgroups = false
user = "root:video"
ldconfig = "@/sbin/ldconfig"

[nvidia-ctk]
path = "nvidia-ctk"

[nvidia-container-runtime]
debug = "/dev/null"
log-level = "info"
runtimes = ["crun", "runc"]
mode = "auto"

[nvidia-container-runtime.modes.csv]
mount-spec-path = "/etc/host-files-for-container.d"
compat-container-root = "/"
[nvidia-container-runtime.modes.cdi]
spec-dirs = ["/etc/cdi"]
default-kind = "nvidia.com/gpu"
annotation-prefixes = ["cdi.k8s.io/"]
[nvidia-container-runtime.modes.jit-cdi]
nvcdi-feature-flags = []
nvcdi-disable-hooks = []
[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[features]
allow-cuda-compat-libs-from-container = false
allow-ldconfig-from-container = false
allow-unknown-oci-spec-fields = false
disable-cuda-compat-lib-hook = false
disable-imex-channel-creation = false
ignore-imex-channel-requests = true
no-additional-gids-for-device-nodes = false
"""


def settings(content: bytes) -> Config:
    """The config that the converted text is."""
    return parse(convert(content, "theirs").text.encode(), "converted")


def test_every_documented_key_is_reported_once() -> None:
    """Each key is either taken or has its own reason; none is "not known"."""
    report = convert(DOCUMENTED, "theirs").report
    assert sorted(key for key, _ in report) == sorted({*TAKEN, *MEANINGLESS})
    assert [key for key, words in report if words == "not taken: not known"] == []


def test_policy_is_taken_over() -> None:
    """What an administrator decided there holds here."""
    config = settings(DOCUMENTED)
    policy = config.policy
    assert policy.env_requests == "privileged"
    assert policy.supported_capabilities == ("compute", "utility", "video")
    assert policy.swarm_resources == ("DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_MIG")
    assert policy.annotation_prefixes == ("cdi.k8s.io/",)
    assert (policy.disable_require, policy.accept_volume_mounts) == (True, True)
    assert policy.ignore_imex_channels
    assert (config.host.driver_root, config.hook.runtime) == ("/run/nvidia/driver", "/usr/bin/crun")


def test_empty_file_changes_nothing() -> None:
    """No key, no setting."""
    assert settings(b"") == Config()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'disable-require = "yes"', 'not taken: "yes" is not true or false'),
        (b"swarm-resource = 3", "not taken: 3 is not a comma list"),
        (
            b'supported-driver-capabilities = "compute,telepathy"',
            'not taken: "compute,telepathy" is not capabilities, and telepathy is none',
        ),
        (b'nvidia-container-cli.root = "driver"', 'not taken: "driver" is not an absolute path'),
        (b"nvidia-container-runtime.runtimes = []", "not taken: [] is not a list of runtimes"),
        (b'colour = "green"', "not taken: not known"),
    ],
)
def test_what_cannot_be_understood_is_said(line: bytes, words: str) -> None:
    """A value of the wrong kind and an unknown key are reported, and set nothing."""
    made = convert(line, "theirs")
    assert [said for _, said in made.report] == [words]
    assert parse(made.text.encode(), "converted") == Config()


@pytest.mark.parametrize("content", [b"\xff", b"[", b"a = 1\na = 2", b"a=" + b"[" * 5000])
def test_not_toml_is_one_error(content: bytes) -> None:
    """A file that is no TOML is refused as a whole, by name."""
    with pytest.raises(UsageError, match="toolkit config: theirs: not TOML"):
        convert(content, "theirs")


def test_command_prints_settings_and_report(tmp_path: Path) -> None:
    """The settings on stdout, ready for our config file; the report on stderr, or all as JSON."""
    file = tmp_path / "config.toml"
    file.write_bytes(b"disable-require = true\n[nvidia-ctk]\npath = 'x'\n")
    done = CliRunner().invoke(agentctl, ["import-config", str(file)])
    assert parse(done.stdout.encode(), "printed").policy.disable_require
    assert "nvidia-ctk.path: not taken: there is no such program here" in done.stderr
    told = json.loads(CliRunner().invoke(agentctl, ["import-config", str(file), "--json"]).stdout)
    assert told["report"]["disable-require"] == "taken: policy.disable_require = true"
