"""The wrapper's reading of a runtime's command line."""

from __future__ import annotations

import pytest

from hooks.runc_wrapper import option, subcommand


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["create", "c1"], ("create", ["c1"])),
        (["--root", "create", "list"], ("list", [])),
        (
            ["--root=/x", "--debug", "create", "--bundle", "/b", "c1"],
            ("create", ["--bundle", "/b", "c1"]),
        ),
        (
            ["--log", "/l", "--log-format", "json", "--systemd-cgroup", "state", "x"],
            ("state", ["x"]),
        ),
        (["--version"], ("", [])),
        ([], ("", [])),
        (["delete", "create"], ("delete", ["create"])),
    ],
)
def test_subcommand(arguments: list[str], expected: tuple[str, list[str]]) -> None:
    """The subcommand is the first word that is neither an option nor an option's value."""
    assert subcommand(arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--bundle", "/b", "c1"], "/b"),
        (["--bundle=/b", "c1"], "/b"),
        (["-b", "/b", "c1"], "/b"),
        (["--bundle", "/a", "-b", "/b"], "/b"),
        (["--bundle="], ""),
        (["--bundle"], None),
        (["c1"], None),
    ],
)
def test_option(arguments: list[str], expected: str | None) -> None:
    """An option's value is found in both ways of writing it; the last one counts."""
    assert option(arguments, "--bundle", "-b") == expected
