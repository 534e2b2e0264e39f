"""NVIDIA_REQUIRE_*: tables of conditions and hosts, and values that mean nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import requirement as req
from agent.errors import RequestError, Unsatisfied
from agent.inventory import Gpu, Inventory, build
from agent.requirement import check_requirements, parse_requirement, read_requirements
from tests import fact_values as fv

# Driver 550.54.14 with CUDA 12.4; two GPUs of brand Nvidia and compute capability 8.9.
HOST = build(fv.HOST)
SILENT = replace(
    HOST,
    cuda_version=None,
    gpus=tuple(replace(g, brand=None, compute_capability=None) for g in HOST.gpus),
)


ADVICE = ", please update your driver to a newer version, or use an earlier cuda container"


def holds(value: str, inventory: Inventory = HOST, gpus: tuple[Gpu, ...] | None = None) -> bool:
    """Whether the value of one variable holds on this host, for all of its GPUs by default."""
    try:
        check_requirements(
            [parse_requirement("NVIDIA_REQUIRE_X", value)],
            inventory,
            inventory.gpus if gpus is None else gpus,
        )
    except Unsatisfied:
        return False
    return True


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("cuda>=12.4", True), ("cuda>=12.5", False), ("cuda>12.4", False), ("cuda>12.3", True)),
        *(("cuda<=12.4", True), ("cuda<12.4", False), ("cuda=12.4", True), ("cuda!=12.4", False)),
        *(("cuda!=12", True), ("cuda>=12", True), ("cuda>=9.9", True), ("cuda>=12.10", False)),
        *(("cuda=12.4.0", True), ("cuda=12.4.0.0", True), ("cuda<12.4.1", True)),
        *(("driver>=550", True), ("driver>=550.54.14", True), ("driver>=550.54.15", False)),
        *(("driver<551", True), ("driver=550", False), ("driver>=550.54.2", True)),
        *(("arch>=8.9", True), ("arch=8.9", True), ("arch>=9.0", False), ("arch<10", True)),
        *(("brand=nvidia", True), ("BRAND=NVIDIA", True), ("brand=tesla", False)),
        *(("brand!=tesla", True), ("brand!=Nvidia", False), ("CUDA>=12.4", True)),
    ],
)
def test_conditions(value: str, expected: bool) -> None:
    """Each key and operator against a known host; versions compare number by number."""
    assert holds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("brand=tesla,driver>=470,driver<471 cuda>=11.4", True),
        ("brand=tesla,driver>=470 cuda>=13", False),
        ("brand=nvidia,driver>=470,driver<471 cuda>=13", False),
        ("cuda>=13 brand=tesla arch>=8", True),
        ("cuda>=12,cuda>=13", False),
        ("cuda>=13 cuda>=12,driver>=500", True),
        ("", True),
        (" ", True),
        (",", True),
        (" , ", True),
        ("cuda>=13 ,", False),
        (",cuda>=12,, ", True),
        ("  cuda>=13   cuda>=12  ", True),
    ],
)
def test_alternatives_and_conjunctions(value: str, expected: bool) -> None:
    """A comma binds tighter than a space, and empty parts between them say nothing."""
    assert holds(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *("cuda", "cuda>=", ">=12", "cuda=>12", "cuda==12", "cuda~12", "cuda>=a", "cuda>=12.x"),
        *("cuda>=12.", "cuda>=.4", "cuda>=-1", "cuda >=12", "cuda>= 12", "cuda>=1234567890"),
        *("gpu>=1", "cud>=12", "driver>=\u0661", "brand>=tesla", "brand=", "brand=a b;"),
        *("csv-mounts=all", "cuda>=12\n", "cuda>=1.2.3.4.5.6.7.8.9", "brand=" + "x" * 122),
    ],
)
def test_what_is_no_condition(value: str) -> None:
    """An unknown key or operator, or a value of the wrong kind, is named with what there is."""
    with pytest.raises(RequestError) as caught:
        parse_requirement("NVIDIA_REQUIRE_CUDA", value)
    assert str(caught.value).startswith("request: NVIDIA_REQUIRE_CUDA=")
    assert ": expected " in str(caught.value)


def test_bad_condition_behind_a_good_one_is_found() -> None:
    """A value means the same on every host, so all of its alternatives are read."""
    with pytest.raises(RequestError, match="NVIDIA_REQUIRE_CUDA='colour=red'"):
        parse_requirement("NVIDIA_REQUIRE_CUDA", "cuda>=1 colour=red")


def test_value_and_number_of_variables_are_bounded() -> None:
    """A value or a list longer than any image's is refused before it is read."""
    with pytest.raises(RequestError, match="at most 16384 characters"):
        parse_requirement("NVIDIA_REQUIRE_CUDA", "cuda>=1 " * 4000)
    many = {f"NVIDIA_REQUIRE_{n}": "cuda>=1" for n in range(req.REQUIREMENTS_LIMIT + 1)}
    with pytest.raises(RequestError, match="33 variables': expected at most 32"):
        read_requirements(many, legacy=False)
    del many["NVIDIA_REQUIRE_0"]
    assert len(read_requirements(many, legacy=False)) == req.REQUIREMENTS_LIMIT


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cuda>=12.5", f"requirement error: unsatisfied condition: cuda>=12.5{ADVICE}"),
        ("brand=tesla,driver>=1 cuda>=13", "requirement error: unsatisfied condition: brand=tesla"),
        ("driver>=1,driver>=999", "requirement error: unsatisfied condition: driver>=999"),
    ],
)
def test_failure_text(value: str, message: str) -> None:
    """The line that users know: the first alternative's failing condition, advice for cuda>=."""
    with pytest.raises(Unsatisfied) as caught:
        check_requirements([parse_requirement("X", value)], HOST, HOST.gpus)
    assert str(caught.value) == message
    assert caught.value.exit_code == 3


def test_every_chosen_gpu_counts() -> None:
    """One GPU that does not fit refuses the container, unless it was not chosen."""
    old = replace(HOST.gpus[1], brand="Tesla", compute_capability=(3, 7))
    gpus = (HOST.gpus[0], old)
    assert not holds("arch>=8", gpus=gpus)
    assert holds("arch>=8", gpus=gpus[:1])
    with pytest.raises(Unsatisfied) as caught:
        check_requirements([parse_requirement("X", "arch>=8")], HOST, gpus)
    assert caught.value.hint == f"GPU {old.index} has arch 3.7"


def test_without_a_gpu_only_the_driver_counts() -> None:
    """For a container without a GPU brand and arch hold, cuda and driver are checked."""
    assert holds("brand=tesla,arch>=99", gpus=())
    assert not holds("cuda>=99", gpus=())
    assert not holds("driver>=999", gpus=())


def test_all_variables_must_hold() -> None:
    """Variables are joined by and, whatever comes behind the prefix."""
    good, bad = {"NVIDIA_REQUIRE_CUDA": "cuda>=12"}, {"NVIDIA_REQUIRE_": "driver>=999"}
    check_requirements(read_requirements(good, legacy=False), HOST, HOST.gpus)
    with pytest.raises(Unsatisfied, match="driver>=999"):
        check_requirements(read_requirements(good | bad, legacy=False), HOST, HOST.gpus)


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        *(("580.159.04", (13, 0)), ("550.54.14", (12, 4)), ("470.256.02", (11, 4))),
        *(("595.1", (13, 1)), ("430.50", (10, 1)), ("384.81", (9, 0)), ("340.108", None)),
    ],
)
def test_cuda_version_of_the_driver_branch(driver: str, cuda: tuple[int, int] | None) -> None:
    """Without NVML the branch tells the CUDA version, so a start need not wait for NVML."""
    assert req.cuda_version(replace(SILENT, driver_version=driver)) == cuda


def test_nvml_is_believed_before_the_branch() -> None:
    """NVML's own CUDA version counts where there is one."""
    assert req.cuda_version(replace(HOST, cuda_version=(12, 9))) == (12, 9)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("brand=nvidia", "brand=nvidia: the brand of GPU 0 is not known"),
        ("arch>=1,brand!=x cuda>=13", "arch>=1: the arch of GPU 0 is not known"),
    ],
)
def test_unknown_property_is_said(value: str, message: str) -> None:
    """What cannot be checked is refused as that, and not as a driver that is too old."""
    with pytest.raises(Unsatisfied) as caught:
        check_requirements([parse_requirement("X", value)], SILENT, SILENT.gpus)
    assert str(caught.value) == f"requirement error: cannot check condition: {message}"


def test_unknown_property_beside_a_known_answer() -> None:
    """An unknown property matters only where the rest does not decide."""
    assert holds("brand=tesla cuda>=12", SILENT)
    with pytest.raises(Unsatisfied, match="unsatisfied condition: driver>=999"):
        check_requirements([parse_requirement("X", "brand=a,driver>=999")], SILENT, SILENT.gpus)


@pytest.mark.parametrize("value", ["1", "t", "T", "true", "True", "TRUE"])
def test_requirements_switched_off(value: str) -> None:
    """NVIDIA_DISABLE_REQUIRE takes every requirement away, those that mean nothing too."""
    env = {"NVIDIA_DISABLE_REQUIRE": value, "NVIDIA_REQUIRE_CUDA": "nonsense", "CUDA_VERSION": "x"}
    assert read_requirements(env, legacy=True) == ()


@pytest.mark.parametrize("value", ["", "0", "f", "F", "false", "False", "FALSE"])
def test_requirements_not_switched_off(value: str) -> None:
    """The other words leave them in force."""
    env = {"NVIDIA_DISABLE_REQUIRE": value, "NVIDIA_REQUIRE_CUDA": "cuda>=12"}
    assert len(read_requirements(env, legacy=False)) == 1


@pytest.mark.parametrize("value", ["yes", "on", "2", " true"])
def test_switch_that_means_nothing(value: str) -> None:
    """A switch that is neither on nor off is refused: both guesses could be wrong."""
    with pytest.raises(RequestError, match=r"NVIDIA_DISABLE_REQUIRE=.*: expected true or false"):
        read_requirements({"NVIDIA_DISABLE_REQUIRE": value}, legacy=False)


@pytest.mark.parametrize(
    ("version", "condition"),
    [
        *(("8.0", "cuda>=8.0"), ("8", "cuda>=8.0"), ("11.2.1", "cuda>=11.2")),
        *(("9.1.85.3", "cuda>=9.1"), (" 10.1 ", "cuda>=10.1")),
    ],
)
def test_legacy_image_requires_its_cuda(version: str, condition: str) -> None:
    """CUDA_VERSION of a legacy image is a requirement of its first two numbers."""
    (made,) = read_requirements({"CUDA_VERSION": version}, legacy=True)
    assert [c.text for a in made.alternatives for c in a] == [condition]


def test_cuda_version_of_other_images_requires_nothing() -> None:
    """An image with requirements of its own has said what it needs."""
    assert read_requirements({"CUDA_VERSION": "99.0"}, legacy=False) == ()


@pytest.mark.parametrize("version", ["latest", "v8.0", "8.", "8.x", ".8"])
def test_legacy_version_that_is_none(version: str) -> None:
    """A legacy image whose version cannot be read is refused with its value."""
    with pytest.raises(RequestError, match=r"CUDA_VERSION=.*: expected a version such as 11\.2"):
        read_requirements({"CUDA_VERSION": version}, legacy=True)


def test_jetpack_variables_are_no_requirements() -> None:
    """NVIDIA_REQUIRE_JETPACK* names file sets of Tegra boards and is not of this language."""
    env = {"NVIDIA_REQUIRE_JETPACK": "csv-mounts=all", "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS": "x"}
    assert read_requirements(env, legacy=False) == ()


@given(st.text(alphabet="cudaver brnh<>=!,.0123456789\n", max_size=40))
def test_any_value_is_read_or_refused(value: str) -> None:
    """Whatever the value, it holds, does not hold, or is a RequestError of one line."""
    try:
        sentence = str(holds(value))
    except RequestError as e:
        sentence = str(e)
    assert sentence.startswith(("True", "False", "request: NVIDIA_REQUIRE_X="))
    assert sentence.isprintable()


versions = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(tuple)


@given(versions, versions)
def test_exactly_one_order_holds(have: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Of <, = and > exactly one holds between two versions, and the others follow from it."""
    host = replace(HOST, driver_version=".".join(map(str, have)))
    text = ".".join(map(str, wanted))
    less, same, more = (holds(f"driver{op}{text}", host) for op in ("<", "=", ">"))
    assert [less, same, more].count(True) == 1
    assert holds(f"driver<={text}", host) == (less or same)
    assert holds(f"driver>={text}", host) == (more or same)
    assert holds(f"driver!={text}", host) == (not same)
