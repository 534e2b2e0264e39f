"""Which groups the user of a container needs to open the device nodes that its plan brings.

Only the runtime wrapper can give them: groups stand in the spec, and a hook cannot change that.
They are the groups of the host's nodes where not everybody may open them (driver parameter
`DeviceFileGID`), never root's. What is executed in the container later has the groups that its
caller asks for.
"""

import posix

from hooks import slowpath
from hooks.errors import Unanswered, Untrusted, Unusable
from hooks.stagedir import Stage
from hooks.state import digest

TYPE_CHECKING = False  # type checkers take it for True; `typing` costs 9 ms to import
if TYPE_CHECKING:
    from hooks.planfile import Plan

READ_WRITE = 0o6


def needed(run_dir: str, spec: bytes, bundle: str, name: str) -> list[int]:
    """The groups of the nodes planned for container `name`, sorted; none where nothing is planned.

    Whatever is wrong with the plan is the hook's to say, in the container's own start.
    """
    try:
        plan = _plan(_bytes(run_dir), spec, slowpath.namespace_of(_bytes(bundle), name))
    except (Unanswered, Untrusted, Unusable, OSError):
        return []
    return sorted({g for step in plan.steps if step[0] == b"node" for g in _group(step[3])})


def _plan(run_dir: bytes, spec: bytes, namespace: bytes) -> "Plan":
    stage = Stage(run_dir)
    try:
        _, plan = stage.find(digest(spec))
    except Unusable:
        answer = slowpath.ask(run_dir, spec, b"missing", namespace)
        verdict, _, name = answer.partition(b" ")
        if verdict != b"staged":
            raise
        _, plan = stage.find(name.decode("ascii", "replace"))
    if plan is None:
        raise Unusable("no plan")
    return plan


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _group(node: bytes) -> list[int]:
    """The group that may open `node` where others may not."""
    seen = posix.stat(node)
    others, group = seen.st_mode & 0o7, seen.st_mode >> 3 & 0o7
    opened = others & READ_WRITE == READ_WRITE or group & READ_WRITE != READ_WRITE
    return [] if opened or seen.st_gid == 0 else [seen.st_gid]
