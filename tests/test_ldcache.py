"""The loader cache merge against a model of glibc's lookup, hostile bytes, and real tools."""

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks import ldcache, ldcache_table
from tests.ldcache_files import (
    AARCH64,
    ACCEPTS,
    I386,
    LAYOUTS,
    LEGACY_HWCAP,
    NAMED,
    X86_64,
    Entry,
    compare_names,
    in_order,
    lookup,
    write,
)

RECORDED = Path(__file__).parent / "hosts/h200-580/etc/ld.so.cache"
LDCONFIG = "/usr/sbin/ldconfig"
HWCAPS = (b"x86-64-v2", b"x86-64-v3")
DRIVER = [
    (b"libcuda.so.1", b"/drv/libcuda.so.1", X86_64),
    (b"libcuda.so.1", b"/drv32/libcuda.so.1", I386),
    (b"libnvidia-ml.so.1", b"/drv/libnvidia-ml.so.1", X86_64),
    (b"libnvidia-ml.so.10", b"/drv/libnvidia-ml.so.10", X86_64),
]
IMAGE: list[Entry] = [
    (b"libc.so.6", b"/lib/libc.so.6", X86_64, 0, 0),
    (b"libc.so.6", b"/lib32/libc.so.6", I386, 0, 0),
    (b"libcuda.so.1", b"/usr/lib/libcuda.so.1", X86_64, 0, 0),
    (b"libcuda.so.1", b"/usr/lib/v2/libcuda.so.1", X86_64, 0, LEGACY_HWCAP),
    (b"libcuda.so.1", b"/usr/lib/x32/libcuda.so.1", 0x0803, 0, 0),
    (b"libm.so.6", b"/lib/libm.so.6", X86_64, 0, 0),
    (b"libnvidia-ml.so.9", b"/usr/lib/libnvidia-ml.so.9", X86_64, 0, 0),
    (b"libz.so.1", b"/lib/libz.so.1", X86_64, 0x020600, 0),
    (b"libz.so.1", b"/lib/legacy/libz.so.1", X86_64, 0, 15 * LEGACY_HWCAP),
]
NAMED_IMAGE: list[Entry] = [
    *IMAGE,
    (b"libcuda.so.1", b"/usr/lib/glibc-hwcaps/x86-64-v3/libcuda.so.1", X86_64, 0, NAMED | 1),
    (b"libz.so.1", b"/lib/glibc-hwcaps/x86-64-v2/libz.so.1", X86_64, 0, NAMED),
    (b"libz.so.1", b"/lib/glibc-hwcaps/x86-64-v3/libz.so.1", X86_64, 0, NAMED | 1),
]


def image(layout: str) -> bytes:
    """A small image's cache in one layout."""
    if layout.endswith("2.33"):
        return write(in_order(NAMED_IMAGE), layout, HWCAPS)
    if layout == "old":
        return write(in_order([entry for entry in IMAGE if entry[3] == entry[4] == 0]), layout)
    return write(in_order(IMAGE), layout)


def taken_by_driver(
    driver: list[tuple[bytes, bytes, int]], name: bytes, machine: int
) -> bytes | None:
    """The path of the first of the driver's libraries that stands for this name."""
    for own, path, flags in driver:
        if compare_names(own, name) == 0 and flags in ACCEPTS[machine]:
            return path
    return None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_parses_to_the_entries_written(layout: str) -> None:
    """parse gives name, path, flags, osversion and hwcap of each entry in file order."""
    entries = in_order(NAMED_IMAGE if layout.endswith("2.33") else IMAGE)
    if layout == "old":
        entries = [(*entry[:3], 0, 0) for entry in entries]
    hwcaps = HWCAPS if layout.endswith("2.33") else ()
    assert ldcache.parse(write(entries, layout, hwcaps)) == entries


def test_the_recording_of_a_real_host_parses() -> None:
    """An Ubuntu 24.04 cache gives its 520 entries, the driver's both copies among them."""
    entries = ldcache.parse(RECORDED.read_bytes())
    paths = [path for name, path, flags, _, _ in entries if name == b"libcuda.so.1"]
    assert len(entries) == 520
    assert paths == [b"/usr/local/nvidia/lib64/libcuda.so.1", b"/lib/libcuda.so.1"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_merged_lookups(layout: str) -> None:
    """After a merge the driver's names give its files, and every other name its old file."""
    old = image(layout)
    new = ldcache.merge(old, DRIVER)
    names = {entry[0] for entry in NAMED_IMAGE} | {library[0] for library in DRIVER}
    for name in names | {b"libnone.so.1"}:
        for machine in (X86_64, I386):
            own = taken_by_driver(DRIVER, name, machine)
            expected = own or lookup(old, name, machine, HWCAPS[::-1])
            assert lookup(new, name, machine, HWCAPS[::-1]) == expected, (name, machine)


def test_a_merge_keeps_other_architectures_and_drops_hwcap_variants() -> None:
    """Of a driver's name only entries with other architecture bits survive."""
    new = ldcache.merge(image("new-2.33"), DRIVER)
    rows = [entry[1:3] for entry in ldcache.parse(new) if entry[0] == b"libcuda.so.1"]
    assert rows == [
        (b"/usr/lib/x32/libcuda.so.1", 0x0803),
        (b"/drv/libcuda.so.1", X86_64),
        (b"/drv32/libcuda.so.1", I386),
    ]


@pytest.mark.parametrize("layout", [*LAYOUTS, "none"])
def test_merging_twice_changes_nothing(layout: str) -> None:
    """A merge of a merge's result is the same bytes, so a restarted container's file is kept."""
    once = ldcache.merge(None if layout == "none" else image(layout), DRIVER)
    assert ldcache.merge(once, DRIVER) == once


def test_a_driver_entry_goes_before_those_of_lower_flags() -> None:
    """Among entries of one name the flags descend, as ldconfig leaves them."""
    new = ldcache.merge(image("new"), [(b"libc.so.6", b"/drv/libc.so.6", X86_64)])
    rows = [entry[1] for entry in ldcache.parse(new) if entry[0] == b"libc.so.6"]
    assert rows == [b"/drv/libc.so.6", b"/lib32/libc.so.6"]


def test_an_entry_for_other_hardware_is_not_taken_for_the_drivers() -> None:
    """An old entry with the driver's path but a hwcap is replaced by one that always counts."""
    name, path, flags = DRIVER[2]
    new = ldcache.merge(write([(name, path, flags, 0, LEGACY_HWCAP)]), [DRIVER[2]])
    assert ldcache.parse(new) == [(name, path, flags, 0, 0)]


def test_a_newer_driver_replaces_the_older_one() -> None:
    """Paths of an earlier merge do not survive one with other paths."""
    newer = [(name, path.replace(b"drv", b"newer"), flags) for name, path, flags in DRIVER]
    new = ldcache.merge(ldcache.merge(image("new-2.33"), DRIVER), newer)
    assert not [path for _, path, *_ in ldcache.parse(new) if path.startswith(b"/drv")]


def test_without_a_cache_the_driver_gets_one() -> None:
    """merge(None, ...) is a cache of the driver's libraries alone, in glibc's order."""
    rows = [entry[:3] for entry in ldcache.parse(ldcache.merge(None, DRIVER))]
    assert rows == [DRIVER[3], DRIVER[2], DRIVER[0], DRIVER[1]]


def test_the_first_of_two_driver_files_of_one_name_counts() -> None:
    """A name that comes twice for one architecture is taken from its first place."""
    twice = [*DRIVER, (b"libcuda.so.1", b"/second/libcuda.so.1", X86_64)]
    assert ldcache.merge(image("new"), twice) == ldcache.merge(image("new"), DRIVER)


def test_an_unsorted_table_is_sorted() -> None:
    """In a table that no search could use the driver's names are found all the same."""
    entries = in_order(NAMED_IMAGE)[::-1]
    new = ldcache.merge(write(entries, "new-2.33", HWCAPS), DRIVER)
    assert [lookup(new, n, f) for n, _, f in DRIVER] == [path for _, path, _ in DRIVER]
    assert lookup(new, b"libz.so.1", X86_64, HWCAPS) == b"/lib/glibc-hwcaps/x86-64-v2/libz.so.1"
    assert ldcache.parse(new) == in_order(ldcache.parse(new))


@pytest.mark.parametrize(("machine", "signed"), [(X86_64, True), (AARCH64, False)])
def test_bytes_beyond_ascii_sort_as_the_machine_has_them(machine: int, signed: bool) -> None:
    """C's char is signed on x86 and not on arm, and so are the tables sorted there."""
    names = [b"lib\xc3\xa9%d.so" % i for i in range(9)] + [b"lib", b"libd.so", b"lib\x7f.so"]
    old = write(in_order([(n, b"/" + n, machine, 0, 0) for n in names], signed))
    new = ldcache.merge(old, [(b"libcuda.so.1", b"/drv/libcuda.so.1", machine)])
    assert lookup(new, b"libcuda.so.1", machine, (), signed) == b"/drv/libcuda.so.1"
    assert [lookup(new, n, machine, (), signed) for n in names] == [b"/" + n for n in names]


NAMES = st.builds(
    lambda stem, tail: b"lib" + stem + b".so" + tail,
    st.sampled_from([b"a", b"ab", b"b", b"a1", b"a-1b", b"\xe9"]),
    st.sampled_from([b"", b".1", b".01", b".2", b".10", b".9.1", b".1a"]),
)
PATHS = st.sampled_from([b"/x", b"/lib/y", b"/z/z/z"])
ENTRIES = st.builds(
    lambda name, path, flags, osversion, hwcap: (name, path + b"/" + name, flags, osversion, hwcap),
    NAMES,
    PATHS,
    st.sampled_from([X86_64, I386, 1, 0x0803, AARCH64]),
    st.sampled_from([0, 0, 0x020600, 0x7F0000]),
    st.sampled_from([0, 0, LEGACY_HWCAP, NAMED, NAMED | 1, NAMED | 7]),
)
LIBRARIES = st.builds(
    lambda name, flags: (name, b"/drv%d/" % flags + name, flags),
    NAMES,
    st.sampled_from([X86_64, I386]),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(ENTRIES, max_size=40, unique_by=lambda entry: (entry[0], *entry[2:])),
    st.lists(LIBRARIES, max_size=12),
    st.sampled_from(LAYOUTS),
    st.lists(st.sampled_from(HWCAPS), unique=True),
)
def test_any_cache_and_any_driver(
    entries: list[Entry], driver: list[tuple[bytes, bytes, int]], layout: str, usable: list[bytes]
) -> None:
    """Whatever the two hold: the driver's names give its files, others what they gave before."""
    if not layout.endswith("2.33"):
        entries = [entry for entry in entries if entry[4] < NAMED]
    hwcaps = HWCAPS if layout.endswith("2.33") else ()
    old = write(in_order(entries), layout, hwcaps)
    new = ldcache.merge(old, driver)
    for name in {entry[0] for entry in entries} | {library[0] for library in driver}:
        for machine in (X86_64, I386):
            own = taken_by_driver(driver, name, machine)
            expected = own or lookup(old, name, machine, usable)
            assert lookup(new, name, machine, usable) == expected
    assert ldcache.merge(new, driver) == new


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_cache_is_refused(layout: str) -> None:
    """Cut at any byte, a cache is refused, never read past its end or half taken."""
    whole = image(layout)
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="loader cache: "):
            ldcache.parse(whole[:size])
        with pytest.raises(ValueError, match="loader cache: "):
            ldcache.merge(whole[:size], DRIVER)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_cache_is_refused_or_serves_the_driver(layout: str) -> None:
    """With bytes changed at random a merge refuses, or the driver's names still give its files."""
    dice = random.Random(layout)
    for _ in range(1500):
        data = bytearray(image(layout))
        for _ in range(dice.choice((1, 1, 2, 8))):
            data[dice.randrange(len(data))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF))
        try:
            ldcache.parse(bytes(data))
        except ValueError as e:
            assert str(e).startswith("loader cache: ")  # noqa: PT017 - not raising is right too
        try:
            new = ldcache.merge(bytes(data), DRIVER)
        except ValueError as e:
            assert str(e).startswith("loader cache: ")  # noqa: PT017 - not raising is right too
            continue
        assert [lookup(new, n, f) for n, _, f in DRIVER] == [path for _, path, _ in DRIVER]


@pytest.mark.parametrize(
    ("offset", "word"),
    [
        (20, 1 << 31),  # more entries than bytes
        (20, 10**6),
        (24, 0xFFFFFFFF),  # more strings than bytes
        (28, 3),  # a big-endian machine's file
        (28, 1),
        (32, 2),  # extension not at a multiple of 4
        (32, 0xFFFFFFFC),
        (48 + 4, 47),  # a string in the header
        (48 + 4, 0xFFFFFFFF),
        (48 + 24 + 8, 0x80000000),
        (48 + 24 + 8, 0),
    ],
)
def test_a_lying_header_or_offset_is_refused(offset: int, word: int) -> None:
    """Counts, byte order and offsets that the file does not bear out are refused by both."""
    data = bytearray(image("new-2.33"))
    struct.pack_into("<I", data, offset, word)
    with pytest.raises(ValueError, match="loader cache: "):
        ldcache.parse(bytes(data))
    with pytest.raises(ValueError, match="loader cache: "):
        ldcache.merge(bytes(data), DRIVER)


@pytest.mark.parametrize("layout", ["new", "combined", "old"])
def test_strings_whose_last_does_not_end_are_refused(layout: str) -> None:
    """Without its NUL the last string would run on into what a merge puts behind it."""
    data = bytearray(image(layout))
    data[-1] = ord("x")
    with pytest.raises(ValueError, match="does not end"):
        ldcache.parse(bytes(data))
    with pytest.raises(ValueError, match="does not end"):
        ldcache.merge(bytes(data), DRIVER)


def test_a_huge_file_is_refused() -> None:
    """A cache beyond 4 MiB is not worked on at all."""
    with pytest.raises(ValueError, match="more than"):
        ldcache.merge(write(in_order(IMAGE)) + bytes(4 << 20), DRIVER)


@pytest.mark.parametrize("sizes", [(256, 10), (10, 4096)])
def test_overlong_strings_are_refused(sizes: tuple[int, int]) -> None:
    """A name beyond 255 bytes or a path beyond 4095 is no library's."""
    entry = (b"n" * sizes[0], b"p" * sizes[1], X86_64, 0, 0)
    with pytest.raises(ValueError, match="no end within"):
        ldcache.parse(write([entry]))


def test_one_long_string_for_every_entry_is_refused() -> None:
    """Entries that all point into one string cannot make a reader copy it once for each."""
    text = b"p" * 4000
    data = bytearray(write([(text[:9], text, X86_64, 0, 0)] * 400))
    first = struct.unpack_from("<I", data, 48 + 8)[0]
    for row in range(400):
        struct.pack_into("<II", data, 48 + 24 * row + 4, first + 3990, first + row)
    strings = bytes(data[48 + 24 * 400 : first + 4001])
    small = bytes(data[:24]) + struct.pack("<I", len(strings)) + bytes(20)
    with pytest.raises(ValueError, match="overlap beyond measure"):
        ldcache.parse(small + bytes(data[48 : 48 + 24 * 400]) + strings)


@pytest.mark.parametrize("library", [(b"", b"/x", 3), (b"a\0", b"/x", 3), (b"a" * 256, b"/x", 3)])
def test_a_driver_string_that_cannot_stand_in_a_cache_is_refused(
    library: tuple[bytes, bytes, int],
) -> None:
    """Empty, overlong or NUL-holding driver strings never reach a cache."""
    with pytest.raises(ValueError, match="driver library"):
        ldcache.merge(None, [library])


def test_names_compare_as_numbers() -> None:
    """The sort key orders names as glibc's comparison does, digits by value."""
    names = [b"a", b"a1", b"a01", b"a10", b"a9", b"ab", b"a-", b"a.1", b"a.1.2", b"", b"1", b"\xe9"]
    for left in names:
        for right in names:
            a = ldcache_table.sort_key(left, ldcache_table.SIGNED)
            b = ldcache_table.sort_key(right, ldcache_table.SIGNED)
            order = compare_names(left, right)
            assert ((a > b) - (a < b)) == ((order > 0) - (order < 0)), (left, right)


def test_importing_it_loads_no_other_module() -> None:
    """The hook pays for what it imports: nothing but builtin modules comes with this one."""
    root = str(Path(ldcache.__file__).parent.parent)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); before = set(sys.modules);"
        "import hooks.ldcache; print(*sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-I", "-S", "-B", "-c", code, root]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert set(loaded) <= {"_struct", "hooks", "hooks.ldcache", "hooks.ldcache_table"}


def listed(cache: Path) -> list[str]:
    """What the real ldconfig prints of a cache, without its first line."""
    command = [LDCONFIG, "-p", "-C", str(cache)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line.strip() for line in text.splitlines()[1:]]


def test_ldconfig_lists_a_merged_recording(tmp_path: Path) -> None:
    """The real ldconfig reads the merged file: our entries and all others, its maker's name too."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_bytes(RECORDED.read_bytes())
    after.write_bytes(ldcache.merge(RECORDED.read_bytes(), DRIVER))
    own = {name.decode() for name, _, _ in DRIVER}
    kept = [line for line in listed(before) if line.split(" ")[0] not in own]
    lines = listed(after)
    assert [line for line in lines if line.split(" ")[0] not in own] == kept
    assert "libcuda.so.1 (libc6,x86-64) => /drv/libcuda.so.1" in lines
    assert "libcuda.so.1 (libc6) => /drv32/libcuda.so.1" in lines
