"""Which libraries on disk are the loaded driver's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.facts.values import LibraryFact
from agent.libraries import choose_libraries
from tests.fact_values import VERSION, library

CUDA = library("libcuda")
GL = replace(library("libGL"), soname="libGL.so.1")


def chosen(*libraries: LibraryFact, machine: str | None = "x86_64") -> tuple[LibraryFact, ...]:
    """What is chosen of these for the loaded version."""
    return choose_libraries(libraries, VERSION, machine)


@pytest.mark.parametrize(
    ("machine", "kept"),
    [
        ("x86_64", ["x86_64", "i386"]),
        ("aarch64", ["aarch64", "armv7l"]),
        (None, ["x86_64", "i386", "aarch64", "armv7l"]),
    ],
)
def test_only_what_the_host_can_run(machine: str | None, kept: list[str]) -> None:
    """Libraries for another architecture would be mounted over those of the host's own."""
    every = [library("libcuda", machine=m) for m in ("x86_64", "i386", "aarch64", "armv7l")]
    assert [lib.machine for lib in chosen(*every, machine=machine)] == kept


@pytest.mark.parametrize("core", ["libnvidia-glcore", "libnvidia-eglcore"])
def test_front_end_of_a_driver_without_glvnd(core: str) -> None:
    """A libGL of the driver's version is its own if it needs the driver's core."""
    own = replace(GL, needs=(f"{core}.so.{VERSION}",))
    assert chosen(CUDA, own) == (CUDA, own)


@pytest.mark.parametrize("needs", [(), (f"libnvidia-tls.so.{VERSION}",)])
def test_front_end_of_somebody_else(needs: tuple[str, ...]) -> None:
    """A libGL that needs no core of the driver belongs to GLVND, whatever its version."""
    assert chosen(CUDA, replace(GL, needs=needs)) == (CUDA,)


@pytest.mark.parametrize(
    ("stem", "version", "soname"),
    [
        ("libnvidia-egl-gbm", "1.1.2", "1"),
        ("libnvidia-egl-wayland", "1.1.19", "1"),
        ("libnvidia-egl-wayland2", "1.0.0", "1"),
        ("libnvidia-egl-xcb", "1.0.3", "1"),
        ("libnvidia-egl-xlib", "1.0.3", "1"),
        ("libnvidia-nvvm70", "4", "4"),
        ("libnvidia-sandboxutils", "1.2", "1"),
    ],
)
def test_helpers_by_name(stem: str, version: str, soname: str) -> None:
    """Each helper is taken with a version that is not the driver's (B050)."""
    helper = replace(library(stem, version), soname=f"{stem}.so.{soname}")
    assert chosen(CUDA, helper) == (CUDA, helper)


def test_the_linked_one_of_two_helpers() -> None:
    """Of two versions of a helper the one is taken that its SONAME link leads to."""
    old = replace(library("libnvidia-egl-gbm", "1.1.2"), links=("libnvidia-egl-gbm.so.1",))
    assert chosen(CUDA, old, library("libnvidia-egl-gbm", "1.1.10")) == (CUDA, old)


def test_the_newest_of_two_helpers() -> None:
    """Without a link the highest version is taken, counted by number and not by letter."""
    old, new = library("libnvidia-egl-gbm", "1.1.9"), library("libnvidia-egl-gbm", "1.1.10")
    assert chosen(CUDA, old, new) == (CUDA, new)


def test_helpers_of_both_word_sizes() -> None:
    """A 32-bit helper does not stand for the 64-bit one."""
    both = [library("libnvidia-egl-gbm", "1.1.2", machine=m) for m in ("i386", "x86_64")]
    wide = [library("libcuda", machine=m) for m in ("i386", "x86_64")]
    assert chosen(*wide, *both) == (*wide, *both)


def test_helper_in_a_farm_of_links() -> None:
    """Beside means beside where it was found: the files of a farm lie in different places."""
    farm = "/run/opengl-driver/lib"
    cuda = replace(library("libcuda", folder="/nix/store/a-nvidia/lib"), directory=farm)
    gbm = replace(
        library("libnvidia-egl-gbm", "1.1.2", folder="/nix/store/b-gbm/lib"), directory=farm
    )
    assert chosen(cuda, gbm) == (cuda, gbm)
