"""The loaded module, from procfs texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.facts.driver import find_machine, find_majors, find_version, read_driver
from tests.host_trees import HOSTS, plant, version_text


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
            "535.104.05",
        ),
        ("NVIDIA UNIX x86_64 Kernel Module  340.108  Wed Dec 11 11:06:58 PST 2019", "340.108"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
        ("NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build", "570.86.15"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  600.10", "600.10"),
    ],
)
def test_version_of_both_kinds_of_module(line: str, version: str) -> None:
    """The version has two or three parts; open and closed modules word the line differently."""
    text = f"NVRM version: {line}\nGCC version:  gcc version 13.2.0 (Ubuntu 13.2.0-23ubuntu4)\n"
    assert find_version(text) == version


@pytest.mark.parametrize(
    "text", ["", "GCC version:  gcc version 13.2.0 (x)\n", "NVRM version: ?\n"]
)
def test_version_is_never_the_compilers(text: str) -> None:
    """Without a version in the driver's own line there is none."""
    assert find_version(text) is None


@pytest.mark.parametrize(
    ("line", "machine"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "x86_64"),
        ("NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build", "aarch64"),
        ("NVIDIA UNIX Open Kernel Module  570.86.15  Release Build", None),
    ],
)
def test_machine_of_the_module(line: str, machine: str | None) -> None:
    """The module's text also says for which architecture it is, or does not."""
    assert find_machine(f"NVRM version: {line}\nGCC version: x86_64-linux-gnu-gcc\n") == machine


def test_recorded_host() -> None:
    """The texts of a real H200 host give its version, parameters and majors."""
    fact = read_driver(str(HOSTS / "h200-580/proc"))
    assert (fact.version, fact.reason) == ("580.159.04", None)
    assert fact.params is not None
    assert "ModifyDeviceFiles: 1\n" in fact.params
    assert ("nvidia-uvm", 238) in fact.majors
    assert ("nvidia-caps", 241) in fact.majors


def test_majors_keep_every_number_of_a_name() -> None:
    """One name may stand for several majors; other vendors and block devices are left out."""
    text = "Character devices:\n195 nvidia\n 10 nvidia\n511 nvidia-uvm\n  5 tty\n\n"
    text += "Block devices:\n 99 nvidia-disk\n"
    assert find_majors(text) == (("nvidia", 10), ("nvidia", 195), ("nvidia-uvm", 511))


def test_no_module(tmp_path: Path) -> None:
    """Without the module's folder the reason says that the module is not loaded."""
    fact = read_driver(str(tmp_path))
    assert (fact.version, fact.params, fact.majors) == (None, None, ())
    assert "not loaded" in (fact.reason or "")


def test_text_not_understood(tmp_path: Path) -> None:
    """A version file without a version is kept as it is, with a reason that names it."""
    plant(tmp_path, {"driver/nvidia/version": b"\xff\xfe\0"})
    fact = read_driver(str(tmp_path))
    assert fact.version is None
    assert fact.version_text is not None
    assert f"{tmp_path}/driver/nvidia/version" in (fact.reason or "")


def test_closed_module_tree(tmp_path: Path) -> None:
    """`version_text` is the file's whole content, for the replay to compare."""
    plant(tmp_path, {"driver/nvidia/version": version_text("550.54.14")})
    fact = read_driver(str(tmp_path))
    assert (fact.version, fact.version_text) == ("550.54.14", version_text("550.54.14"))
