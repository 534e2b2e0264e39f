"""The runtime wrapper: add our hook to the spec on `create`, then become the real runtime.

A user other than root also gets the groups that the container's device nodes are open to.

For callers whose containerd has no `base_runtime_spec` for them: `ctr --runc-binary`, nerdctl,
Docker. Every other subcommand, and every container that asks for no GPU, goes to the runtime
untouched. It looks for the settings in `wrapper.conf` beside itself: the runtime to exec and
the hook entry to add. Whatever fails is written where the shim looks for errors, and the
container does not start.
"""

import posix
import sys
import time

from hooks.errors import Refused
from hooks.state import asks, digest

TYPE_CHECKING = False  # type checkers take it for True; `typing` costs 9 ms to import
if TYPE_CHECKING:
    from typing import Any

SETTINGS = "wrapper.conf"
# Global options of runc and crun that take their value from the next argument.
WITH_VALUE = ("--root", "--log", "--log-format", "--criu", "--rootless", "--cgroup-manager")


def subcommand(arguments: list[str]) -> tuple[str, list[str]]:
    """The runtime's subcommand and what follows it; ("", []) if there is none."""
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        if not argument.startswith("-"):
            return argument, arguments[index + 1 :]
        index += 2 if argument in WITH_VALUE else 1
    return "", []


def option(arguments: list[str], *names: str) -> str | None:
    """The value of the last option of one of these names, in both ways of writing it."""
    found = None
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names and (equals or index + 1 < len(arguments)):
            found = value if equals else arguments[index + 1]
    return found


def add_hook(bundle: str, name: str, entry: str) -> None:
    """Put the hook into the config.json of container `name`, bound to the spec as it was."""
    path = f"{bundle}/config.json"
    with open(path, "rb") as file:
        original = file.read()
    # Variable names need no JSON to be read, and most containers end here.
    words = tuple(part.partition('"')[0].encode() for part in entry.split('"--word=')[1:])
    if not asks(original, words):
        return
    import json

    try:
        spec = json.loads(original)
        hook = json.loads(entry)
        if needs_groups(spec):
            # `agentctl runtime-config` has written: python3 -I -S -B HOOK RUN_DIR ...
            run_dir = hook["args"][hook["args"].index("-B") + 2]
            add_groups(spec["process"]["user"], run_dir, original, bundle, name)
        hook["args"].append(f"--spec={digest(original)}")
        spec.setdefault("hooks", {}).setdefault("createRuntime", []).append(hook)
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise Refused(f"{path}: not a runtime spec: {type(error).__name__}") from None
    draft = f"{path}.gpu-agent"
    with open(draft, "xb") as file:
        # The spec holds the container's environment: it must stay as closed as it was.
        posix.fchmod(file.fileno(), posix.stat(path).st_mode & 0o777)
        file.write(json.dumps(spec, separators=(",", ":")).encode())
    posix.rename(draft, path)


def needs_groups(spec: "dict[str, Any]") -> bool:
    """Whether the container's process opens its nodes by their modes, and groups can help.

    Root owns the nodes. In a user namespace the host's groups are nobody's.
    """
    spaces = spec.get("linux", {}).get("namespaces", [])
    mapped = any(space.get("type") == "user" for space in spaces)
    return not mapped and spec.get("process", {}).get("user", {}).get("uid", 0) != 0


def add_groups(
    user: "dict[str, Any]", run_dir: str, original: bytes, bundle: str, name: str
) -> None:
    """Give `user` the groups of the nodes that are planned for its container."""
    from hooks import groups

    has = user.get("additionalGids", [])
    new = [gid for gid in groups.needed(run_dir, original, bundle, name) if gid not in has]
    if new:
        user["additionalGids"] = [*has, *new]


def main(arguments: list[str]) -> int:
    """Exec the runtime; returns only if that, or adding the hook, failed."""
    name, rest = subcommand(arguments)
    try:
        runtime, entry = settings()
        if name == "create":
            add_hook(option(rest, "--bundle", "-b") or ".", rest[-1] if rest else "", entry)
        posix.execv(runtime, [runtime, *arguments])
    except Refused as error:
        _report(option(arguments, "--log"), f"gpu-agent: {error}")
    except OSError as error:
        _report(option(arguments, "--log"), f"gpu-agent: {error.filename}: {error.strerror}")
    return 1


def settings() -> tuple[str, str]:
    """The runtime to exec, and the hook entry as JSON: the two lines of the settings file."""
    path = f"{sys.argv[0].rpartition('/')[0]}/{SETTINGS}"
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read().splitlines()
    if len(lines) != 2 or not lines[0].startswith("/"):
        raise Refused(f"{path}: not the path of a runtime and a hook entry")
    return lines[0], lines[1]


def _report(log: str | None, message: str) -> None:
    """The shim shows the last error line of the runtime's log; stderr is the container's own."""
    import json

    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = json.dumps({"level": "error", "msg": message[:1000], "time": now})
    if log is None:
        sys.stderr.write(message[:1000] + "\n")
        return
    with open(log, "a", encoding="utf-8") as file:
        file.write(line + "\n")
