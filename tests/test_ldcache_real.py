"""The loader cache merge seen by the real ldconfig and the real loader in a root of their own."""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from hooks import ldcache

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="its hwcaps directory is x86-64's"),
]

LDCONFIG = "/usr/sbin/ldconfig"
FLAGS = ldcache.FLAGS["x86_64"]
DRIVER = [(n, b"/opt/drv/" + n, FLAGS) for n in (b"libcuda.so.1", b"libnvidia-ml.so.1")]
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1", "libone.so.1", "libtwo.so.2")
PROBE = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names)
{
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW);
        int (*value)(void) = library ? (int (*)(void))dlsym(library, "value") : NULL;
        printf("%d ", value ? value() : -1);
    }
    return 0;
}
"""


def compile_c(source: str, output: Path, options: Sequence[str] = ()) -> None:
    """One C source to one file, whose directory is made."""
    output.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-x", "c", "-", *options, "-o", str(output)]
    subprocess.run(command, input=source, text=True, check=True)


def library(path: Path, value: int) -> None:
    """A library with its file's name as SONAME, whose value() tells it from others."""
    options = ["-shared", "-fPIC", f"-Wl,-soname,{path.name}"]
    compile_c(f"int value(void) {{ return {value}; }}", path, options)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with glibc, a probe, an image's libraries, and a driver's that no config names."""
    root = tmp_path_factory.mktemp("root")
    compile_c(PROBE, root / "probe")
    text = subprocess.run(["ldd", root / "probe"], check=True, capture_output=True, text=True)
    for word in text.stdout.split():
        if word.startswith("/"):
            (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, root / word[1:])
    (root / "etc").mkdir()
    (root / "etc/ld.so.conf").write_text("/usr/lib/image\n")
    image = root / "usr/lib/image"
    library(image / "libone.so.1", 1)
    library(image / "libtwo.so.2", 2)
    library(image / "libcuda.so.1", 3)
    library(image / "glibc-hwcaps/x86-64-v2/libone.so.1", 21)
    library(image / "glibc-hwcaps/x86-64-v2/libcuda.so.1", 23)
    library(root / "opt/drv/libcuda.so.1", 30)
    library(root / "opt/drv/libnvidia-ml.so.1", 31)
    return root


def made_by_ldconfig(root: Path, layout: str) -> bytes:
    """The cache that the real ldconfig writes for the root."""
    command = [LDCONFIG, "-r", str(root), "-X", "-c", layout]
    subprocess.run(command, check=True, capture_output=True)
    return (root / "etc/ld.so.cache").read_bytes()


def loaded(root: Path, cache: bytes) -> dict[str, int]:
    """What the real loader in the root finds for each name with this cache; -1 for nothing."""
    (root / "etc/ld.so.cache").write_bytes(cache)
    command = ["/usr/sbin/chroot", str(root), "/probe", *NAMES]
    text = subprocess.run(command, check=True, capture_output=True, text=True, env={}).stdout
    return dict(zip(NAMES, map(int, text.split()), strict=True))


@pytest.mark.parametrize("layout", ["new", "compat", "old"])
def test_the_real_loader_takes_the_drivers_files(root: Path, layout: str) -> None:
    """After a merge dlopen gives the driver's files, and every other SONAME as before."""
    old = made_by_ldconfig(root, layout)
    before = loaded(root, old)
    after = loaded(root, ldcache.merge(old, DRIVER))
    assert before["libcuda.so.1"] in (3, 23)
    assert before["libnvidia-ml.so.1"] == -1
    assert after["libcuda.so.1"] == 30
    assert after["libnvidia-ml.so.1"] == 31
    assert after["libtwo.so.2"] == before["libtwo.so.2"] == 2
    if layout != "compat":  # there glibc reads its own hwcaps' names from the wrong place
        assert after["libone.so.1"] == before["libone.so.1"]


def test_the_real_loader_still_takes_hwcap_variants(root: Path) -> None:
    """The glibc-hwcaps directories of a CPU work after a merge as they did before."""
    old = made_by_ldconfig(root, "new")
    if loaded(root, old)["libone.so.1"] != 21:
        pytest.skip("this machine's loader takes no x86-64-v2 libraries")
    assert loaded(root, ldcache.merge(old, DRIVER))["libone.so.1"] == 21


def test_the_real_loader_takes_a_cache_of_the_driver_alone(root: Path) -> None:
    """Where an image has no cache, the one made for it serves the driver's names."""
    found = loaded(root, ldcache.merge(None, DRIVER))
    assert (found["libcuda.so.1"], found["libnvidia-ml.so.1"]) == (30, 31)


@pytest.mark.parametrize("layout", ["new", "compat", "old"])
def test_the_real_ldconfig_lists_a_merge(root: Path, layout: str) -> None:
    """ldconfig -p reads the result and prints the driver's paths, each once."""
    merged = root / "merged.cache"
    merged.write_bytes(ldcache.merge(made_by_ldconfig(root, layout), DRIVER))
    command = [LDCONFIG, "-p", "-C", str(merged)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line.strip() for line in text.splitlines()]
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        own = [line for line in lines if line.startswith(name)]
        assert own == [f"{name} (libc6,x86-64) => /opt/drv/{name}"]


def test_a_cache_of_ldconfig_is_parsed_as_it_lists_it(root: Path) -> None:
    """Our reading of a real cache agrees with ldconfig's own listing of it."""
    rows = ldcache.parse(made_by_ldconfig(root, "new"))
    command = [LDCONFIG, "-p", "-C", str(root / "etc/ld.so.cache")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pairs = [line.split(" ")[0].strip() + line.rpartition("=>")[2] for line in text.splitlines()]
    assert [f"{name.decode()} {path.decode()}" for name, path, *_ in rows] == pairs[1:-1]
