"""The container's loader: it finds the driver's libraries, and all others as before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.plan import CacheEntry, Place, Plan
from tests.containers.image import DEBIAN, LIB64, Layout, build_image
from tests.containers.runc import Container
from tests.containers.workdir import overlay_root, work_dir
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, config
from tests.kernel.trees import snapshot

pytestmark = NEEDS_CONTAINERS

FILLERS = [f"libfiller{number:04}.so.1" for number in range(12)]
OTHERS = ("libc.so.6", "libm.so.6", *FILLERS)
CACHE = "etc/ld.so.cache"


@pytest.fixture(scope="module")
def images() -> Iterator[Callable[[Layout], Path]]:
    """Images with libraries of their own in their loader cache."""
    with work_dir() as home:
        built: dict[Layout, Path] = {}

        def image(layout: Layout) -> Path:
            if layout not in built:
                built[layout] = build_image(home / str(len(built)), layout, fillers=len(FILLERS))
            return built[layout]

        yield image


@pytest.fixture
def filled(images: Callable[[Layout], Path], work: Path) -> Iterator[Path]:
    """A writable root over such an image of Debian's layout."""
    with overlay_root(images(DEBIAN), work / "filled") as merged:
        yield merged


def sonames(plan: Plan | None) -> list[str]:
    """The names that the plan gives to the loader of 64-bit programs."""
    assert plan is not None
    steps = plan.steps
    return [s.soname for s in steps if isinstance(s, CacheEntry) and s.place is Place.LIBS]


def chosen(container: Container, *names: str) -> dict[str, str]:
    """The file that the loader takes for each name; names it does not find are missing."""
    lines = container.exec("probe-dlopen", *names).stdout.splitlines()
    return {line.split(" ")[0]: line.partition(" ")[2] for line in lines if " error: " not in line}


def assert_driver_loads(starter: Starter, container: Container, libs: str = "") -> None:
    """Every injected SONAME gives the driver's file, which says so itself."""
    plan = starter.node.stage_spec(config(container))
    names = sonames(plan)
    assert len(names) > 8
    answers = chosen(container, *(f"{name}=simhost_version" for name in names))
    where = f"/{libs or DEBIAN.libraries}"
    version = starter.node.host.version
    assert answers == {name: f"{where}/{name} {version}" for name in names}


def test_driver_is_found_and_the_rest_as_before(either: Starter, filled: Path) -> None:
    """Each SONAME of the plan is the driver's file; each name that resolved before still does."""
    with either.started(filled, env=()) as plain:
        before = chosen(plain, *OTHERS)
    assert len(before) == len(OTHERS)
    with either.started(filled) as container:
        assert_driver_loads(either, container)
        assert chosen(container, *OTHERS) == before


def test_ldconfig_lists_the_merged_cache(starter: Starter, filled: Path) -> None:
    """The image's own ldconfig reads the cache: the driver's names, and the old ones."""
    with starter.started(filled) as container:
        listing = container.exec("/usr/sbin/ldconfig", "-p", "-C", f"/{CACHE}").stdout
        names = sonames(starter.node.stage_spec(config(container)))
    listed = {line.split()[0] for line in listing.splitlines()[1:] if line.startswith("\t")}
    assert {*names, *FILLERS, "libc.so.6"} <= listed


def test_ldconfig_in_the_container_keeps_the_driver(starter: Starter, filled: Path) -> None:
    """A package manager's `ldconfig` in the running container works and loses nothing."""
    with starter.started(filled) as container:
        done = container.exec("/usr/sbin/ldconfig")
        assert (done.status, done.stderr) == (0, "")
        assert_driver_loads(starter, container)


def test_lib64_image(either: Starter, images: Callable[[Layout], Path], work: Path) -> None:
    """An image that keeps its libraries in lib64 gets the driver's there."""
    with overlay_root(images(LIB64), work / "layers64") as root:
        with either.started(root) as container:
            assert_driver_loads(either, container, LIB64.libraries)
            assert len(chosen(container, *OTHERS)) == len(OTHERS)
        assert not (root / DEBIAN.libraries).exists()


def make_absent(cache: Path) -> None:
    """No cache at all."""
    cache.unlink()


def make_garbage(cache: Path) -> None:
    """Something that no loader would read."""
    cache.write_bytes(b"glibc-ld.so.cache1.1" + bytes(range(256)) * 8)


def make_fifo(cache: Path) -> None:
    """A pipe, which blocks whoever opens it to read."""
    cache.unlink()
    os.mkfifo(cache)


def make_loop(cache: Path) -> None:
    """A link that leads out of the root for a careless reader, to itself for a careful one."""
    cache.unlink()
    cache.symlink_to("../../../../../../../../etc/ld.so.cache")


def make_link_out(cache: Path) -> None:
    """A link to a file that only the host has."""
    cache.unlink()
    cache.symlink_to("/proc/self/cwd/../../../../../../../../etc/hostname")


@pytest.mark.parametrize("spoil", [make_absent, make_garbage, make_fifo, make_loop, make_link_out])
def test_unusable_cache(either: Starter, root: Path, spoil: Callable[[Path], None]) -> None:
    """An image whose cache cannot be used gets a new one that has the driver's libraries."""
    spoil(root / CACHE)
    with either.started(root) as container:
        assert_driver_loads(either, container)
    assert (root / CACHE).is_file()
    assert not (root / CACHE).is_symlink()


def test_cache_is_a_directory(either: Starter, root: Path) -> None:
    """A directory in the cache's place is not replaced; the start is refused."""
    (root / CACHE).unlink()
    (root / CACHE).mkdir()
    (root / CACHE / "kept").touch()
    assert "ld.so.cache" in either.refusal(root)
    assert (root / CACHE / "kept").exists()


def test_own_newer_copy_of_the_image(starter: Starter, root: Path) -> None:
    """Where the image ships libraries of a newer driver, every name leads to the host's."""
    libs = root / DEBIAN.libraries
    alien = shutil.copy(libs / "libm.so.6", libs / "libcuda.so.999.99")
    (libs / "libcuda.so.1").symlink_to("libcuda.so.999.99")
    shutil.copy(alien, libs / "libnvidia-ml.so.1")
    with starter.started(root) as container:
        assert_driver_loads(starter, container)


def test_second_start_changes_nothing(either: Starter, work: Path, root: Path) -> None:
    """Starting the same container again changes no byte, inode or time of its root."""
    upper = work / "layers/upper"
    with either.started(root) as container:
        assert_driver_loads(either, container)
    before = snapshot(upper)
    with either.started(root) as container:
        assert_driver_loads(either, container)
    assert snapshot(upper) == before
