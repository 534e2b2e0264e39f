"""NVIDIA_REQUIRE_*: what an image demands of the driver and of its GPUs, read and checked.

    brand=tesla,driver>=470,driver<471 cuda>=11.4

A space separates alternatives, a comma separates conditions that hold together, and all
variables must hold. Pure. Requirements only ever refuse a container: they choose no GPU and
change no plan, so they are no part of a request and containers with different ones share plans.
Unlike the usual tools it reads every alternative, also behind one that holds: what an image
says has the same meaning on every host.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.errors import RequestError, Unsatisfied
from agent.inventory import Gpu, Inventory

PREFIX = "NVIDIA_REQUIRE_"
JETPACK = "NVIDIA_REQUIRE_JETPACK"
DISABLE = "NVIDIA_DISABLE_REQUIRE"
LEGACY = "CUDA_VERSION"

REQUIREMENTS_LIMIT = 32
"""Variables of one container, as the usual tools have it."""
VALUE_LIMIT = 16 * 1024
"""Characters of one variable; those of current CUDA images have about two thousand."""
CONDITION_LIMIT = 127
"""Characters of one condition, as the usual tools have it."""

# The CUDA version of each driver branch. It stands in where NVML has not been asked, so that a
# start needs no NVML; a branch that is missing here counts as the one before it.
CUDA_OF_BRANCH = (
    *((384, (9, 0)), (390, (9, 1)), (396, (9, 2)), (410, (10, 0)), (418, (10, 1))),
    *((440, (10, 2)), (450, (11, 0)), (455, (11, 1)), (460, (11, 2)), (465, (11, 3))),
    *((470, (11, 4)), (495, (11, 5)), (510, (11, 6)), (515, (11, 7)), (520, (11, 8))),
    *((525, (12, 0)), (530, (12, 1)), (535, (12, 2)), (545, (12, 3)), (550, (12, 4))),
    *((555, (12, 5)), (560, (12, 6)), (565, (12, 7)), (570, (12, 8)), (575, (12, 9))),
    *((580, (13, 0)), (590, (13, 1))),
)

Version = tuple[int, ...]

_CONDITION = re.compile(r"([A-Za-z_]+)(!=|<=|>=|=|<|>)(.+)", re.ASCII)
_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,7}", re.ASCII)
_BRAND = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LEGACY_VERSION = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:\.[0-9]+)*", re.ASCII)
_FORM = "conditions such as cuda>=12.4, with cuda, driver, arch or brand, and = != < <= > >="

# What Go's strconv.ParseBool takes, which is what the usual tools ask.
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("", "0", "f", "F", "FALSE", "false", "False"), False),
}


class Key(enum.StrEnum):
    """What a condition is about; `cuda` and `driver` are the driver's, the others a GPU's."""

    CUDA = "cuda"
    DRIVER = "driver"
    ARCH = "arch"
    BRAND = "brand"


_OF_A_GPU = (Key.ARCH, Key.BRAND)


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison; `text` is it as written."""

    key: Key
    operator: str
    value: Version | str
    text: str


@dataclass(frozen=True, slots=True)
class Requirement:
    """One variable: at least one of the alternatives must hold, each as a whole."""

    alternatives: tuple[tuple[Condition, ...], ...]


def read_requirements(env: Mapping[str, str], *, legacy: bool) -> tuple[Requirement, ...]:
    """The requirements in a container's environment; none where NVIDIA_DISABLE_REQUIRE says so.

    A `legacy` image requires the CUDA version that it names. Raises RequestError.
    """
    if _disabled(env.get(DISABLE, "")):
        return ()
    variables = {
        name: value
        for name, value in sorted(env.items())
        if name.startswith(PREFIX) and not name.startswith(JETPACK)
    }
    if legacy:
        variables[LEGACY] = _legacy_condition(env[LEGACY])
    found = [parse_requirement(name, value) for name, value in variables.items()]
    found = [requirement for requirement in found if requirement.alternatives]
    if len(found) > REQUIREMENTS_LIMIT:
        raise RequestError(f"{PREFIX}*", f"{len(found)} variables", f"at most {REQUIREMENTS_LIMIT}")
    return tuple(found)


@functools.lru_cache(64)  # the containers of a node come from few images
def parse_requirement(variable: str, value: str) -> Requirement:
    """The value of one variable. Raises RequestError for what is no condition."""
    if len(value) > VALUE_LIMIT:
        expected = f"at most {VALUE_LIMIT} characters"
        raise RequestError(variable, f"{len(value)} characters", expected)
    alternatives = (
        tuple(_condition(variable, text) for text in words.split(",") if text)
        for words in value.split(" ")
    )
    return Requirement(tuple(a for a in alternatives if a))


def check_requirements(
    requirements: Iterable[Requirement], inventory: Inventory, gpus: Sequence[Gpu]
) -> None:
    """Raises Unsatisfied unless every requirement holds for every one of `gpus`.

    Without a GPU only the driver counts: a condition about a GPU then holds.
    """
    for requirement in requirements:
        for gpu in gpus or (None,):
            _check(requirement, inventory, gpu)


def cuda_version(inventory: Inventory) -> Version | None:
    """The driver's CUDA version: NVML's answer, or else that of its branch."""
    if inventory.cuda_version is not None:
        return inventory.cuda_version
    driver = _numbers(inventory.driver_version)
    known = [cuda for branch, cuda in CUDA_OF_BRANCH if driver and branch <= driver[0]]
    return known[-1] if known else None


def _check(requirement: Requirement, inventory: Inventory, gpu: Gpu | None) -> None:
    first_failed: Condition | None = None
    unknown: Condition | None = None
    for alternative in requirement.alternatives:
        answers = [(_holds(c, inventory, gpu), c) for c in alternative]
        failed = next((c for answer, c in answers if answer is False), None)
        if failed is not None:
            first_failed = first_failed or failed
        elif (open_one := next((c for answer, c in answers if answer is None), None)) is None:
            return
        else:
            unknown = unknown or open_one
    if unknown is not None:
        whose = f"GPU {gpu.index}" if gpu and unknown.key in _OF_A_GPU else "the driver"
        raise Unsatisfied(unknown.text, unknown=f"the {unknown.key} of {whose} is not known")
    if first_failed is not None:
        raise Unsatisfied(first_failed.text, _shown(first_failed.key, inventory, gpu))


def _holds(condition: Condition, inventory: Inventory, gpu: Gpu | None) -> bool | None:
    """Whether a condition holds; None if that is not known."""
    if gpu is None and condition.key in _OF_A_GPU:
        return True
    have = _property(condition.key, inventory, gpu)
    if have is None:
        return None
    if isinstance(have, str) or isinstance(condition.value, str):
        same = str(have).lower() == str(condition.value).lower()
        return same == (condition.operator == "=")
    return _compared(have, condition.operator, condition.value)


def _property(key: Key, inventory: Inventory, gpu: Gpu | None) -> Version | str | None:
    match key:
        case Key.CUDA:
            return cuda_version(inventory)
        case Key.DRIVER:
            return _numbers(inventory.driver_version)
        case Key.ARCH:
            return gpu.compute_capability if gpu else None
        case Key.BRAND:
            return gpu.brand if gpu else None


def _shown(key: Key, inventory: Inventory, gpu: Gpu | None) -> str:
    have = _property(key, inventory, gpu)
    text = have if isinstance(have, str) else ".".join(map(str, have or ()))
    whose = f"GPU {gpu.index}" if gpu and key in _OF_A_GPU else "this host"
    return f"{whose} has {key} {text}"


def _compared(have: Version, operator: str, wanted: Version) -> bool:
    """Component by component; one that is missing counts as 0."""
    size = max(len(have), len(wanted))
    left, right = (v + (0,) * (size - len(v)) for v in (have, wanted))
    match operator:
        case "=":
            return left == right
        case "!=":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case _:
            return left >= right


def _condition(variable: str, text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None or len(text) > CONDITION_LIMIT or match[1].lower() not in list(Key):
        raise RequestError(variable, text, _FORM)
    key, operator, value = Key(match[1].lower()), match[2], match[3]
    if key is Key.BRAND:
        if operator not in ("=", "!=") or not _BRAND.fullmatch(value):
            raise RequestError(variable, text, "brand=<name> or brand!=<name>")
        return Condition(key, operator, value, text)
    if (version := _numbers(value)) is None:
        raise RequestError(variable, text, f"a version such as 12.4 after {key}{operator}")
    return Condition(key, operator, version, text)


def _numbers(text: str | None) -> Version | None:
    if text is None or not _VERSION.fullmatch(text):
        return None
    return tuple(int(part) for part in text.split("."))


def _disabled(value: str) -> bool:
    if (answer := _BOOLEANS.get(value)) is None:
        raise RequestError(DISABLE, value, "true or false")
    return answer


def _legacy_condition(version: str) -> str:
    match = _LEGACY_VERSION.fullmatch(version.strip())
    if match is None:
        raise RequestError(LEGACY, version, "a version such as 11.2")
    return f"cuda>={match[1]}.{match[2] or 0}"
