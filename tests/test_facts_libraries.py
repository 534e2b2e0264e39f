"""The driver's libraries, found in fake driver roots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.facts.libraries import LibraryScan, read_libraries
from agent.facts.root import DriverRoot
from agent.facts.values import LibraryFact
from tests.elf_files import I386, PROGRAM, elf
from tests.host_trees import LIB64, VERSION, Content, Link, library, plant
from tests.ldcache_files import X86_64, write

BASE: dict[str, Content] = {**library("libcuda"), **library("libnvidia-ml")}
NAMES = {f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}"}


def scan(root: Path, *extra: str, version: str | None = VERSION) -> LibraryScan:
    """What the reader finds below `root`."""
    return read_libraries(DriverRoot(str(root)), extra, version)


def names(found: LibraryScan) -> set[str]:
    """The names of all libraries found."""
    return {lib.name for lib in found.libraries}


def only(found: LibraryScan, name: str) -> LibraryFact:
    """The one library of this name."""
    (fact,) = (lib for lib in found.libraries if lib.name == name)
    return fact


def cache(*paths: str, layout: str = "new-2.33") -> bytes:
    """A loader cache with these libraries, each under its own file name."""
    entries = [(os.path.basename(p).encode(), p.encode(), X86_64, 0, 0) for p in paths]
    return write(entries, layout)


def test_every_library_of_the_version(tmp_path: Path) -> None:
    """A library that nobody has heard of is found by the driver's version alone (B050)."""
    plant(tmp_path, {**BASE, **library("libnvidia-newthing")})
    plant(tmp_path, {f"{LIB64}/libz.so.1.3": elf("libz.so.1"), f"{LIB64}/libc.so.6": elf()})
    assert names(scan(tmp_path)) == {*NAMES, f"libnvidia-newthing.so.{VERSION}"}


def test_what_a_library_says(tmp_path: Path) -> None:
    """SONAME, machine, identity and links are those of the file on disk."""
    plant(tmp_path, {**BASE, f"{LIB64}/libcuda.so": Link("libcuda.so.1")})
    fact = only(scan(tmp_path), f"libcuda.so.{VERSION}")
    path = tmp_path / LIB64 / f"libcuda.so.{VERSION}"
    assert (fact.soname, fact.machine, fact.subdir) == ("libcuda.so.1", "x86_64", "")
    assert fact.links == ("libcuda.so", "libcuda.so.1")
    assert (fact.file.path, fact.file.ino, fact.file.size) == (
        str(path),
        path.stat().st_ino,
        path.stat().st_size,
    )


def test_links_of_another_file_are_not_its_own(tmp_path: Path) -> None:
    """A link of the same stem that leads elsewhere or nowhere does not count."""
    plant(tmp_path, {**BASE, f"{LIB64}/libcuda.so": Link("/opt/stubs/libcuda.so")})
    plant(tmp_path, {f"{LIB64}/libGLX_indirect.so.0": Link(f"libcuda.so.{VERSION}")})
    plant(tmp_path, {"opt/stubs/libcuda.so": elf("libcuda.so.1")})
    links = only(scan(tmp_path), f"libcuda.so.{VERSION}").links
    assert links == ("libGLX_indirect.so.0", "libcuda.so.1")


def test_same_name_for_two_machines(tmp_path: Path) -> None:
    """The ELF class tells 32 from 64 bit, whatever the directory is called (B052)."""
    plant(tmp_path, library("libGLX_nvidia", "0"))
    plant(tmp_path, library("libGLX_nvidia", "0", directory="usr/lib32", machine=I386))
    plant(tmp_path, {"etc/ld.so.cache": cache(f"/{LIB64}/libGLX_nvidia.so.0")})
    found = [(lib.machine, lib.name) for lib in scan(tmp_path).libraries]
    name = f"libGLX_nvidia.so.{VERSION}"
    assert found == [("i386", name), ("x86_64", name)]


def test_merged_usr_gives_each_file_once(tmp_path: Path) -> None:
    """`lib -> usr/lib` and two names of one directory do not make two libraries (B056)."""
    plant(tmp_path, {"lib": Link("usr/lib"), "usr/lib64": Link("lib/x86_64-linux-gnu"), **BASE})
    assert [lib.name for lib in scan(tmp_path).libraries] == sorted(NAMES)


def test_second_copy_is_ignored(tmp_path: Path) -> None:
    """Of two files with one name and machine the first directory's counts."""
    plant(tmp_path, {**BASE, **library("libcuda", directory="opt/nv")})
    found = only(scan(tmp_path, "/opt/nv"), f"libcuda.so.{VERSION}")
    assert found.file.path == f"{tmp_path}/opt/nv/libcuda.so.{VERSION}"


def test_debian_alternatives(tmp_path: Path) -> None:
    """Links through /etc/alternatives lead to the real directory, inside the root."""
    real = f"{LIB64}/nvidia/current"
    plant(tmp_path, {**library("libcuda", directory=real)})
    plant(tmp_path, {f"{LIB64}/libcuda.so.1": Link("/etc/alternatives/cuda")})
    plant(tmp_path, {"etc/alternatives/cuda": Link(f"/{real}/libcuda.so.1")})
    plant(tmp_path, {"etc/ld.so.cache": cache(f"/{LIB64}/libcuda.so.1")})
    found = scan(tmp_path)
    assert only(found, f"libcuda.so.{VERSION}").file.path.startswith(f"{tmp_path}/{real}/")
    assert found.directories == (f"/{real}",)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"GROUP ( libcuda.so.1 )", elf("x", kind=1)])
def test_stub_is_no_library(tmp_path: Path, content: bytes) -> None:
    """An empty file, half a header, a linker script and an object file are not libraries."""
    plant(tmp_path, {**BASE, f"{LIB64}/libnvidia-cfg.so.{VERSION}": content})
    assert names(scan(tmp_path)) == NAMES


def test_program_with_a_librarys_name(tmp_path: Path) -> None:
    """A static program is not a library."""
    program = elf(kind=PROGRAM, dynamic=False)
    plant(tmp_path, {**BASE, f"{LIB64}/libnvidia-cfg.so.{VERSION}": program})
    assert names(scan(tmp_path)) == NAMES


def test_pipe_with_a_librarys_name(tmp_path: Path) -> None:
    """A pipe is passed over and nothing waits for it."""
    plant(tmp_path, BASE)
    os.mkfifo(tmp_path / LIB64 / f"libnvidia-cfg.so.{VERSION}")
    assert names(scan(tmp_path)) == NAMES


def test_helpers_have_versions_of_their_own(tmp_path: Path) -> None:
    """Helpers of the catalog are found by stem beside the driver's libraries, and only there."""
    gbm = f"{LIB64}/libnvidia-egl-gbm.so"
    plant(tmp_path, {**BASE, f"{gbm}.1.1.2": elf("libnvidia-egl-gbm.so.1")})
    plant(tmp_path, {f"{gbm}.1": Link("libnvidia-egl-gbm.so.1.1.2")})
    plant(tmp_path, {f"{LIB64}/libnvidia-nvvm70.so.4": elf("libnvidia-nvvm70.so.4")})
    plant(tmp_path, {"usr/lib64/libnvidia-egl-xcb.so.1.0.1": elf("libnvidia-egl-xcb.so.1")})
    found = scan(tmp_path)
    assert names(found) == {*NAMES, "libnvidia-egl-gbm.so.1.1.2", "libnvidia-nvvm70.so.4"}
    assert only(found, "libnvidia-egl-gbm.so.1.1.2").links == ("libnvidia-egl-gbm.so.1",)


def test_vdpau_directory(tmp_path: Path) -> None:
    """Libraries of the vdpau directory are found, and say where they belong."""
    plant(tmp_path, {**BASE, **library("libvdpau_nvidia", directory=f"{LIB64}/vdpau")})
    fact = only(scan(tmp_path), f"libvdpau_nvidia.so.{VERSION}")
    assert (fact.subdir, fact.links) == ("vdpau", ("libvdpau_nvidia.so.1",))


@pytest.mark.parametrize("modern", ["", "tls/"])
def test_tls_library_by_its_abi_note(tmp_path: Path, modern: str) -> None:
    """Of two libnvidia-tls the one whose ABI note is for kernels with native TLS is taken."""
    name = f"libnvidia-tls.so.{VERSION}"
    old = "tls/" if not modern else ""
    plant(tmp_path, {**BASE, f"{LIB64}/{old}{name}": elf(name, salt=b"old", abi=(2, 2, 5))})
    plant(tmp_path, {f"{LIB64}/{modern}{name}": elf(name, salt=b"new", abi=(2, 3, 99))})
    fact = only(scan(tmp_path), name)
    assert (fact.file.path, fact.subdir) == (f"{tmp_path}/{LIB64}/{modern}{name}", "")


def test_needs_are_the_drivers_own(tmp_path: Path) -> None:
    """Of DT_NEEDED the driver's own libraries are a fact, those of the system are not."""
    needed = (f"libnvidia-tls.so.{VERSION}", f"libnvidia-glcore.so.{VERSION}", "libc.so.6")
    plant(tmp_path, {**BASE, f"{LIB64}/libGL.so.{VERSION}": elf("libGL.so.1", needed=needed)})
    fact = only(scan(tmp_path), f"libGL.so.{VERSION}")
    assert fact.needs == (f"libnvidia-glcore.so.{VERSION}", f"libnvidia-tls.so.{VERSION}")


def test_all_versions_are_reported(tmp_path: Path) -> None:
    """With an upgrade under way the libraries of both versions are facts (B025)."""
    plant(tmp_path, {**BASE, **library("libcuda", version="550.54.15")})
    found = scan(tmp_path)
    assert names(found) == {*NAMES, "libcuda.so.550.54.15"}
    assert found.reason is None


def test_only_another_version(tmp_path: Path) -> None:
    """Where only another version lies, the reason names the one that is missing."""
    plant(tmp_path, library("libcuda", version="550.54.15"))
    found = scan(tmp_path)
    assert names(found) == {"libcuda.so.550.54.15"}
    assert VERSION in (found.reason or "")


def test_no_cache(tmp_path: Path) -> None:
    """Without a loader cache the usual directories give the same libraries (B063)."""
    plant(tmp_path, {**BASE, **library("libGLX_nvidia", "0", directory="usr/lib64")})
    assert names(scan(tmp_path)) == {*NAMES, f"libGLX_nvidia.so.{VERSION}"}


def test_configured_directory(tmp_path: Path) -> None:
    """A directory from the configuration is searched, and is a path of the driver root."""
    plant(tmp_path, library("libcuda", directory="nix/store/abc-nvidia/lib"))
    assert names(scan(tmp_path)) == set()
    found = scan(tmp_path, "/nix/store/abc-nvidia/lib")
    assert names(found) == {f"libcuda.so.{VERSION}"}
    assert found.directories == ("/nix/store/abc-nvidia/lib",)


@pytest.mark.parametrize("layout", ["new", "new-2.33", "combined", "combined-2.33"])
def test_cache_leads_to_unusual_directory(tmp_path: Path, layout: str) -> None:
    """A directory that only the loader cache knows is searched, whatever its layout (B061)."""
    plant(tmp_path, library("libcuda", directory="opt/odd/lib"))
    plant(tmp_path, {"etc/ld.so.cache": cache("/opt/odd/lib/libcuda.so.1", layout=layout)})
    assert names(scan(tmp_path)) == {f"libcuda.so.{VERSION}"}


def test_unusable_cache(tmp_path: Path) -> None:
    """A cache cut off at any place costs nothing but its hints (B061)."""
    whole = cache(f"/{LIB64}/libcuda.so.1", layout="combined")
    plant(tmp_path, BASE)
    for length in range(0, len(whole), 16):
        plant(tmp_path, {"etc/ld.so.cache": whole[:length]})
        assert names(scan(tmp_path)) == NAMES


def test_lying_cache(tmp_path: Path) -> None:
    """Cache entries that lead nowhere, to a file, up and out or to odd bytes are harmless."""
    lies = ("/none/libcuda.so.1", "/etc/ld.so.cache/libcuda.so.1", "/../../proc/self/libcuda.so.1")
    entries = [(b"libcuda.so.1", p.encode(), X86_64, 0, 0) for p in lies]
    entries += [(b"libcuda.so", b"/\xff\xfe/libcuda.so", X86_64, 0, 0)]
    plant(tmp_path, {**BASE, "etc/ld.so.cache": write(entries)})
    assert names(scan(tmp_path)) == NAMES


def test_reason_names_the_cache(tmp_path: Path) -> None:
    """When nothing is found the reason also says what was wrong with the cache."""
    plant(tmp_path, {"etc/ld.so.cache": b"garbage"})
    assert "ld.so.cache" in (scan(tmp_path).reason or "")


def test_no_driver_at_all(tmp_path: Path) -> None:
    """An empty root and an absent one give no libraries and a reason."""
    for root in (tmp_path, tmp_path / "none"):
        found = scan(root, version=None)
        assert (found.libraries, found.directories) == ((), ())
        assert found.reason is not None
