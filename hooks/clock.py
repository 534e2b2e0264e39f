"""The phases of one replay and how long each took. It only measures; it writes nothing."""

import time


class Clock:
    """Marks the end of named phases; the first one is the interpreter's own start."""

    def __init__(self) -> None:
        # CPU time so far is what the interpreter needed to come here; nobody tells a process
        # its own start in wall-clock time finer than 10 ms.
        self.phases: list[tuple[str, int]] = [("interpreter", time.process_time_ns())]
        self._last = time.monotonic_ns()

    def mark(self, name: str) -> None:
        """The phase `name` ends now; a name that comes twice is added up."""
        now = time.monotonic_ns()
        self.phases.append((name, now - self._last))
        self._last = now

    def total_us(self) -> int:
        """Microseconds over all phases."""
        return sum(ns for _, ns in self.phases) // 1000

    def text(self) -> str:
        """`name=microseconds` joined by commas, each name once, in order of appearance."""
        added: dict[str, int] = {}
        for name, ns in self.phases:
            added[name] = added.get(name, 0) + ns
        return ",".join(f"{name}={ns // 1000}" for name, ns in added.items())
