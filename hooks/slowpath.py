"""When no usable plan is staged: ask the agent, or plan without it.

Both get the container's spec as bytes and its containerd namespace, and name no path. The agent
answers one line once it has staged the container; the standalone planner, a child process, answers
the entry and the plan themselves, because only the agent writes to the stage. Both waits are
bounded.
"""

import posix
import select
import time

from hooks.errors import Unanswered
from hooks.rootfs import S_IFDIR, S_IFMT

ASK_TIMEOUT_S = 4.0
STANDALONE_TIMEOUT_S = 8.0
ANSWER_LIMIT = 4096
PLAN_LIMIT = 4 << 20
# The planner's whole environment: nothing of the runtime's or the image's (R12, R13).
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
# containerd's directory for the bundles of running containers, and below it their namespaces.
TASKS = b"io.containerd.runtime.v2.task"
NAMESPACE_LIMIT = 76
NAMESPACE_CHARACTERS = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
)


def namespace_of(bundle: bytes, name: str) -> bytes:
    """The containerd namespace that the bundle's place proves, b"" where it proves none.

    containerd lays the bundle of container `name` out as .../io.containerd.runtime.v2.task/
    NAMESPACE/NAME, in directories that only root can change; any other place is a caller's choice.
    """
    parts = bundle.split(b"/")
    if len(parts) < 4 or parts[-3] != TASKS or parts[-1] != name.encode():
        return b""
    namespace = parts[-2]
    if not 0 < len(namespace) <= NAMESPACE_LIMIT or not NAMESPACE_CHARACTERS.issuperset(namespace):
        return b""
    for end in range(2, len(parts) + 1):
        try:
            found = posix.lstat(b"/".join(parts[:end]))
        except OSError:
            return b""
        # A sticky /tmp above it is root's too: nobody else can move what root has made there.
        loose = found.st_mode & 0o022 and not found.st_mode & 0o1000
        if found.st_mode & S_IFMT != S_IFDIR or found.st_uid != 0 or loose:
            return b""
    return namespace


def ask(run_dir: bytes, spec: bytes, reason: bytes, namespace: bytes = b"") -> bytes:
    """Have the running agent stage the container; returns its answer, one line.

    `reason` is `missing` or `stale`: a stale plan makes the agent read the host again. `namespace`
    is containerd's for the container, b"" where it is not known.
    """
    # The only path that needs sockets; a staged start never pays for the import.
    import _socket as socket

    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        client.settimeout(ASK_TIMEOUT_S)
        client.connect(run_dir + b"/hook.sock")
        peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if peer[4:8] != bytes(4):
            raise Unanswered("the hook socket's owner is not root")
        known = b" %s" % namespace if namespace else b""
        client.sendall(b"ask %s %d%s\n" % (reason, len(spec), known) + spec)
        return _line(client)
    except OSError as error:
        raise Unanswered(f"agent does not answer: {error.strerror or error}") from None
    finally:
        client.close()


def standalone(python: str, arguments: list[str], spec: bytes) -> tuple[bytes, bytes]:
    """Plan in a child process from what the host shows now; returns (entry, plan) bytes."""
    argv = [python, "-I", "-m", "agent.standalone", *arguments]
    read_in, write_in = posix.pipe()
    read_out, write_out = posix.pipe()
    actions = [
        (posix.POSIX_SPAWN_DUP2, read_in, 0),
        (posix.POSIX_SPAWN_DUP2, write_out, 1),
        (posix.POSIX_SPAWN_OPEN, 2, "/dev/null", posix.O_WRONLY, 0),
    ]
    try:
        child = posix.posix_spawn(python, argv, ENVIRONMENT, file_actions=actions)
    except OSError as error:
        raise Unanswered(f"standalone planner: {python}: {error.strerror}") from None
    posix.close(read_in)
    posix.close(write_out)
    try:
        answer = _exchange(write_in, read_out, spec)
    except Unanswered:
        posix.kill(child, 9)
        raise
    finally:
        posix.close(read_out)
        status = posix.waitstatus_to_exitcode(posix.waitpid(child, 0)[1])
    return _split(answer, status)


def _line(client: "object") -> bytes:
    answer = b""
    while not answer.endswith(b"\n"):
        part: bytes = client.recv(ANSWER_LIMIT)  # type: ignore[attr-defined]
        if not part or len(answer) > ANSWER_LIMIT:
            raise Unanswered("agent closed the hook socket without an answer")
        answer += part
    return answer[:-1]


def _exchange(write_fd: int, read_fd: int, spec: bytes) -> bytes:
    """Write all of `spec`, read all of the answer, by one deadline; closes `write_fd`."""
    end = time.monotonic() + STANDALONE_TIMEOUT_S
    posix.set_blocking(write_fd, False)
    left = memoryview(spec)
    answer = b""
    writing = [write_fd]
    while True:
        wait = max(0.0, end - time.monotonic())
        readable, writable, _ = select.select([read_fd], writing, [], wait)
        if not readable and not writable:
            raise Unanswered(f"standalone planner: no answer in {STANDALONE_TIMEOUT_S:g} s")
        if writable:
            try:
                left = left[posix.write(write_fd, left) :]
            except BrokenPipeError:
                left = left[len(left) :]
            if not left:
                posix.close(write_fd)
                writing = []
        if readable:
            part = posix.read(read_fd, 1 << 16)
            answer += part
            if not part:
                return answer
            if len(answer) > PLAN_LIMIT:
                raise Unanswered("standalone planner: answer too long")


def _split(answer: bytes, status: int) -> tuple[bytes, bytes]:
    head, _, rest = answer.partition(b"\n")
    numbers = head.split()
    if status != 0 or len(numbers) != 2 or not all(n.isdigit() for n in numbers):
        raise Unanswered(f"standalone planner: exit status {status}, no plan")
    size = int(numbers[0])
    if size + int(numbers[1]) != len(rest):
        raise Unanswered("standalone planner: answer cut short")
    return rest[:size], rest[size:]
