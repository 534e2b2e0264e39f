"""The createRuntime hook: replay a staged plan into the container that is being created.

    python3 -I -S -B hook.pyc RUN_DIR [STANDALONE_PYTHON [ARGUMENT ...]]

The OCI state comes on stdin; of it only `id`, `pid` and `bundle` are used. A container whose
spec names nothing of ours leaves at once. One line on stderr and a non-zero exit refuse the
start. ARGUMENTs go to the standalone planner, but `--spec=DIGEST`, which the runtime wrapper
adds because it has edited the bundle's config.json, and `--word=NAME`, a configured variable.

It reads no environment, runs nothing of the image, and imports only built-in modules: each
package of the standard library costs more than a whole mount.
"""

import posix
import sys
import time

from hooks.clock import Clock
from hooks.errors import Changed, Refused, Unanswered, Untrusted, Unusable, shown
from hooks.state import State, asks, digest, read_state

TYPE_CHECKING = False  # type checkers take it for True; `typing` costs 9 ms to import
if TYPE_CHECKING:
    from hooks.planfile import Entry, Plan
    from hooks.stagedir import Stage

    Found = tuple[Entry, Plan | None]

LINE_LIMIT = 1000
FD_LIMIT = (1 << 31) - 1


class Start:
    """One container's start: find its plan, replay it, leave a record.

    `way` says how the plan was found (`staged`, `asked`, `standalone`) and `why` what was wrong
    before, if anything.
    """

    def __init__(self, options: "Options", state: State, spec: bytes, clock: Clock) -> None:
        self._options = options
        self._state = state
        self._spec = spec
        self._digest = options.spec or digest(spec)
        self._clock = clock
        self._stage: Stage | None = None
        self.way = "staged"
        self.why = ""
        self.label = f"{state.namespace}/{state.id}"

    def run(self) -> None:
        """Do all of it; raises Refused or OSError where the container must not start."""
        # Everything below is imported only by containers that may ask for a GPU.
        from hooks.stagedir import Stage

        try:
            self._stage = Stage(self._options.run_dir)
        except FileNotFoundError:
            self.why = "no run directory"
        except Untrusted as error:
            raise Refused(f"stage: {error}") from None
        found = self._find()
        try:
            self._replay(found)
        except Changed as change:
            self.why = str(change)
            self._replay_again()

    def _replay_again(self) -> None:
        """The host moved on: replay a plan made now; what changes meanwhile refuses."""
        try:
            self._replay(self._slow(b"stale"))
        except Changed as change:
            raise Refused(str(change)) from None

    def _find(self) -> "Found":
        if self._stage is None:
            return self._slow(b"missing")
        try:
            found = self._stage.find(self._digest)
        except Untrusted as error:
            raise Refused(f"stage: {error}") from None
        except Unusable as error:
            self.why = str(error)
            found = self._slow(b"missing")
        self._clock.mark("find")
        return found

    def _slow(self, reason: bytes) -> "Found":
        """Ask the agent; if nobody answers, plan without it."""
        # Imported only here: a start whose plan is staged never needs it.
        from hooks import slowpath

        self.way = "asked"
        try:
            if self._stage is None:
                raise Unanswered("no run directory")
            namespace = slowpath.namespace_of(self._state.bundle, self._state.id)
            answer = slowpath.ask(self._options.run_dir, self._spec, reason, namespace)
            verdict, _, detail = answer.partition(b" ")
            if verdict == b"unable":
                raise Unanswered(shown(detail) or "the agent is unable to plan")
            if verdict != b"staged":
                raise Refused(shown(detail) or "the agent's answer cannot be understood")
            return self._stage.find(shown(detail))
        except (Unanswered, Unusable) as error:
            self.why += f"; {error}"
        self.way = "standalone"
        return self._plan_alone()

    def _plan_alone(self) -> "Found":
        from hooks import planfile, slowpath

        if not self._options.python:
            raise Refused(f"no plan: {self.why.strip('; ')}; no standalone planner is set up")
        arguments = self._options.arguments
        if namespace := slowpath.namespace_of(self._state.bundle, self._state.id):
            arguments = [*arguments, f"--namespace={namespace.decode()}"]
        try:
            entry, plan = slowpath.standalone(self._options.python, arguments, self._spec)
            return _answered(planfile.parse_entry(entry), plan)
        except (Unanswered, ValueError) as error:
            raise Refused(f"no plan: {self.why.strip('; ')}; {error}") from None
        finally:
            self._clock.mark("find")

    def _replay(self, found: "Found") -> None:
        entry, plan = found
        if entry.verdict == b"refuse":
            raise Refused(shown(entry.detail))
        if plan is None:
            self.way = "none"
            return
        from hooks import replay

        _expect(plan)
        root = entry.root
        rootfs = root if root.startswith(b"/") else b"%s/%s" % (self._state.bundle, root)
        owner = entry.uid, entry.gid
        container = replay.Container(self._state.pid, rootfs, owner, entry.volumes)
        run_dir = self._options.run_dir
        replay.Replay(plan, container, run_dir, self._stage, self._clock).run()

    def record(self, error: str) -> None:
        """Leave one line for the agent: who, how, how long in which phase, and what failed."""
        if self._stage is None:
            return
        fields = (
            "1",
            str(time.time_ns()),
            self.label,
            self._digest,
            self.way,
            "failed" if error else "ok",
            self._clock.text(),
            error or self.why.strip("; "),
        )
        line = "\t".join(_clean(field) for field in fields)
        self._stage.record(line.encode("utf-8", "replace")[:3000] + b"\n")


class Options:
    """The hook's command line, which is part of the OCI spec and fixed at installation."""

    def __init__(self, arguments: list[str]) -> None:
        if not arguments or not arguments[0].startswith("/"):
            raise Refused("usage: hook RUN_DIR [STANDALONE_PYTHON [ARGUMENT ...]]")
        self.run_dir = arguments[0].encode("utf-8", "surrogateescape")
        self.python = ""
        self.spec = ""
        self.words: tuple[bytes, ...] = ()
        self.arguments: list[str] = []
        # The wrapper adds its own at the end, whether there is a planner or not.
        for argument in arguments[1:]:
            if argument.startswith("--spec="):
                self.spec = argument[7:]
            elif argument.startswith("--word="):
                self.words += (argument[7:].encode(),)
            elif not self.python:
                self.python = argument
            else:
                self.arguments.append(argument)


def _answered(entry: "Entry", plan: bytes) -> "Found":
    """The standalone planner's answer. Raises ValueError where its two halves disagree."""
    from hooks import planfile

    if (entry.verdict == b"plan") != bool(plan):
        raise ValueError("standalone planner: verdict and plan do not fit together")
    return entry, planfile.parse_plan(plan) if plan else None


def _expect(plan: "Plan") -> None:
    """The loaded driver module must still be the one that the plan was made for."""
    try:
        fd = posix.open(plan.version_file, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        raise Changed(f"driver {shown(plan.driver)} is no longer loaded") from None
    text = posix.read(fd, 4096)
    posix.close(fd)
    if text != plan.version_text:
        raise Changed(f"driver {shown(plan.driver)} has been replaced")


def main(arguments: list[str]) -> int:
    """The hook's exit status; everything it has to say goes to stderr, on one line."""
    clock = Clock()
    # What the runtime forgot to close must not reach the planner, and nothing here wants it (R16).
    posix.closerange(3, FD_LIMIT)
    start = None
    error = ""
    try:
        options = Options(arguments)
        state = read_state()
        spec = state.spec()
        if not asks(spec, options.words):
            return 0
        clock.mark("state")
        start = Start(options, state, spec, clock)
        start.run()
    except Refused as problem:
        error = str(problem)
    except OSError as problem:
        what = problem.filename
        where = f": {shown(what) if isinstance(what, bytes) else what}" if what else ""
        error = f"{problem.strerror}{where}"
    except Exception as problem:
        # Other errors are told from their class; all of them must refuse the start in one line.
        error = f"{type(problem).__name__}: {problem}"
    if start is not None:
        start.record(error)
    if error:
        # Importing ends where the container's namespace is joined: no path is opened from there on,
        # and who has come so far is root enough.
        if sys.meta_path and _rootless():
            error = f"this runtime runs without root on the host, which the hook needs: {error}"
        line = f"gpu-agent: {_clean(error)}".encode("utf-8", "replace")[:LINE_LIMIT]
        # Half a character would make the runtime's error unfit for gRPC, which then shows none.
        posix.write(2, line.decode("utf-8", "ignore").encode() + b"\n")
    return 1 if error else 0


def _rootless() -> bool:
    """Whether this is another user than root, or root of a user namespace only."""
    if posix.geteuid():
        return True
    try:
        with open("/proc/self/uid_map", "rb") as table:
            return table.read().split() != [b"0", b"0", b"4294967295"]
    except OSError:
        return False


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


if __name__ == "__main__":
    # Not sys.exit: there is nothing to tear down, and tearing down costs a millisecond.
    posix._exit(main(sys.argv[1:]))
