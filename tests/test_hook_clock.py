"""The phases of a replay add up and come as text that needs no escaping."""

from __future__ import annotations

import re

from hooks.clock import Clock


def test_phases_in_order_and_added_up() -> None:
    """A name that comes twice appears once, where it was first."""
    clock = Clock()
    for name in ("state", "find", "state"):
        clock.mark(name)
    text = clock.text()
    assert re.fullmatch(r"interpreter=\d+,state=\d+,find=\d+", text)
    added = sum(int(part.partition("=")[2]) for part in text.split(","))
    # Each phase is rounded down on its own.
    assert added <= clock.total_us() <= added + 3


def test_first_phase_is_the_time_before() -> None:
    """What the process has used so far counts as the interpreter's."""
    name, time_ns = Clock().phases[0]
    assert name == "interpreter"
    assert time_ns > 0
