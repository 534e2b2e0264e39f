"""What the runtime tells the hook: the OCI state on stdin and the spec in the bundle.

Of the state only `id`, `pid` and `bundle` are used, and each is checked before it is. The spec
is never parsed here: its digest is the key under which the agent staged this very container,
so a plan can never be replayed for another request, whatever ids are used again.
"""

import posix

from hooks.errors import Refused

TYPE_CHECKING = False  # type checkers take it for True; `typing` costs 9 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable

STATE_LIMIT = 1 << 20
SPEC_LIMIT = 16 << 20
PID_LIMIT = 1 << 22  # the kernel's PID_MAX_LIMIT
# A pipe in the spec's place must not make the start wait.
READ_FLAGS = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-")

# A spec without one of these words, in any of its places, cannot ask for a GPU (DESIGN 5).
WORDS = (b"NVIDIA", b"nvidia", b"CUDA_VERSION")
# JSON may write any letter as \u00xx; containerd's encoder does so for these three only.
HARMLESS_ESCAPES = (b"\\u0026", b"\\u003c", b"\\u003e")

# The text between quotes in what runc writes; "" stands for a value.
RUNC_FORM = (
    *("{", "ociVersion", ":", "", ",", "id", ":", "", ",", "status", ":", "", ","),
    *("pid", "", "bundle", ":", ""),
)


class State:
    """The checked OCI state. `bundle` is an absolute path in bytes."""

    __slots__ = ("bundle", "id", "namespace", "pid")

    def __init__(self, text: str) -> None:
        state = _at_sight(text) or _object(text)
        name, pid, bundle = state.get("id"), state.get("pid"), state.get("bundle")
        if not isinstance(name, str) or not 0 < len(name) <= 128:
            raise Refused("state: id: missing or too long")
        if not ID_CHARACTERS.issuperset(name):
            raise Refused("state: id: character that no container id has")
        if not isinstance(pid, int) or not 1 < pid < PID_LIMIT:
            raise Refused("state: pid: no process of a container")
        if not isinstance(bundle, str) or not bundle.startswith("/") or "\0" in bundle:
            raise Refused("state: bundle: not an absolute path")
        self.id, self.pid = name, pid
        self.bundle = bundle.encode("utf-8", "surrogateescape")
        # containerd lays bundles out as .../<namespace>/<id>; it is only used to name the start.
        self.namespace = bundle.rstrip("/").rpartition("/")[0].rpartition("/")[2]

    def spec(self) -> bytes:
        """The bundle's config.json as it is."""
        path = self.bundle + b"/config.json"
        try:
            fd = posix.open(path, READ_FLAGS)
        except OSError as error:
            where = path.decode("utf-8", "replace")
            raise Refused(f"bundle: {where}: {posix.strerror(error.errno or 0)}") from None
        return _read_all(fd, SPEC_LIMIT, "bundle: config.json")


def read_state(fd: int = 0) -> State:
    """The state from `fd`; Refused if it is empty, huge or not such an object."""
    data = _read_all(fd, STATE_LIMIT, "state")
    if not data:
        raise Refused("state: empty")
    try:
        return State(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError, StopIteration, SystemError):
        # The last one comes from the C scanner where `json`, which has its error, is not loaded.
        raise Refused("state: not a JSON object") from None


def digest(content: bytes, size: int = 16) -> str:
    """BLAKE2b of `size` bytes in hex; with 16, what `agent.plan.digest` computes."""
    try:
        from _blake2 import blake2b
    except ImportError:  # pragma: no cover - the C part is all that is used of `hashlib`
        from hashlib import blake2b
    return blake2b(content, digest_size=size).hexdigest()


def asks(spec: bytes, more: tuple[bytes, ...] = ()) -> bool:
    """False only if this spec certainly asks for no GPU; `more` are configured variable names."""
    if any(word in spec for word in WORDS + more):
        return True
    return spec.count(b"\\u00") > sum(spec.count(escape) for escape in HARMLESS_ESCAPES)


def _read_all(fd: int, limit: int, what: str) -> bytes:
    parts = []
    size = 0
    while part := posix.read(fd, 1 << 16):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise Refused(f"{what}: more than {limit >> 20} MiB")
    return b"".join(parts)


def _at_sight(text: str) -> "dict[str, object]":
    """The members we use, where `text` is written as runc writes it; else nothing.

    runc's members come in one order, and nothing before the annotations needs an escape: so they
    are told by their quotes. Loading even the C part of `json` takes 0.2 ms.
    """
    text = text.strip()
    head = text.partition('"annotations"')[0]
    words = text.split('"', len(RUNC_FORM))
    if len(words) <= len(RUNC_FORM) or "\\" in head or not head.isprintable():
        return {}
    if any(form not in ("", word) for form, word in zip(RUNC_FORM, words, strict=False)):
        return {}
    name, pid, bundle, rest = words[7], words[14][1:-1], words[17], words[18]
    whole = rest == "}" or (rest.startswith(',"annotations":{') and rest.endswith("}}"))
    numeric = pid.isascii() and pid.isdecimal() and pid[0] != "0" and words[14] == f":{pid},"
    if not (whole and numeric):
        return {}
    return {"id": name, "pid": int(pid), "bundle": bundle}


class _Decoder:
    """The attributes that the C scanner reads off its context; see json.JSONDecoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _object(text: str) -> "dict[str, object]":
    """`text` as a JSON object. Importing `json` costs 7 ms (most of it `re`), its C part 0.1."""
    try:
        from _json import make_scanner
    except ImportError:  # pragma: no cover - a Python without the C part
        import json

        value = json.loads(text)
    else:
        scan: Callable[[str, int], tuple[object, int]] = make_scanner(_Decoder)  # type: ignore[arg-type]
        text = text.strip()
        value, end = scan(text, 0)
        if end != len(text):
            raise ValueError("data after the object")
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value
