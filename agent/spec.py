"""An OCI runtime spec as containerd keeps it, taken apart: JSON bytes to the few parts we read.

Pure, and it decides nothing: `agent.request` says what the parts mean. The spec is hostile
input: it is bounded in size and depth, and a message quotes at most the one value that is wrong.
"""

from __future__ import annotations

import json

from agent.errors import RequestError

SPEC_LIMIT = 16 * 1024 * 1024
"""Bytes of one spec; containerd itself sends no message above this."""

Document = dict[str, object]


def parse(spec: bytes) -> Document:
    """The spec's JSON object. Raises RequestError for anything else."""
    if len(spec) > SPEC_LIMIT:
        raise RequestError("spec", f"{len(spec)} bytes", f"at most {SPEC_LIMIT} bytes")
    try:
        document = json.loads(spec.decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as e:
        raise RequestError("spec", f"byte {e.start}", "UTF-8") from e
    except json.JSONDecodeError as e:
        raise RequestError("spec", f"line {e.lineno} column {e.colno}", "JSON") from e
    except RecursionError as e:
        raise RequestError("spec", "nested too deep", "an OCI runtime spec") from e
    except ValueError as e:  # an integer of thousands of digits
        raise RequestError("spec", "number too long", "an OCI runtime spec") from e
    if not isinstance(document, dict):
        raise RequestError("spec", type(document).__name__, "an object")
    return document


def environment(document: Document) -> dict[str, str]:
    """process.env; of a name that occurs twice the last value, as runtimes do."""
    process = _table(document.get("process"), "process")
    env: dict[str, str] = {}
    for item in _list(process.get("env"), "process.env"):
        if not isinstance(item, str):
            raise RequestError("process.env", type(item).__name__, "a list of strings")
        name, equals, value = item.partition("=")
        if equals:
            env[name] = value
    return env


def annotation_map(document: Document) -> dict[str, str]:
    """The annotations; runtimes accept none but strings."""
    found: dict[str, str] = {}
    for key, value in _table(document.get("annotations"), "annotations").items():
        if not isinstance(value, str):
            raise RequestError("annotations", type(value).__name__, "strings")
        found[key] = value
    return found


def mounts(document: Document) -> list[tuple[str, str]]:
    """(source, destination) of each mount that has both; what is no string is no mount here."""
    found = []
    for item in _list(document.get("mounts"), "mounts"):
        mount = _table(item, "mounts")
        source, destination = mount.get("source"), mount.get("destination")
        if isinstance(source, str) and isinstance(destination, str):
            found.append((source, destination))
    return found


def volumes(document: Document) -> tuple[str, ...]:
    """The host paths that the spec binds into the container, sorted; a path once."""
    found = set()
    for item in _list(document.get("mounts"), "mounts"):
        mount = _table(item, "mounts")
        source, options = mount.get("source"), _list(mount.get("options"), "mounts.options")
        bound = mount.get("type") == "bind" or "bind" in options or "rbind" in options
        if bound and isinstance(source, str) and source.startswith("/") and _is_path(source):
            found.add(source)
    return tuple(sorted(found))


def _has_user_namespace(linux: Document) -> bool:
    spaces = _list(linux.get("namespaces"), "linux.namespaces")
    return any(isinstance(space, dict) and space.get("type") == "user" for space in spaces)


def privileged(document: Document) -> bool:
    """Whether the container's processes could administer the host, by the spec's own word."""
    process = _table(document.get("process"), "process")
    capabilities = _table(process.get("capabilities"), "process.capabilities")
    bounding = _list(capabilities.get("bounding"), "process.capabilities.bounding")
    linux = _table(document.get("linux"), "linux")
    return "CAP_SYS_ADMIN" in bounding and not _has_user_namespace(linux)


def user(document: Document) -> int:
    """process.user.uid, 0 where it is absent."""
    found = _table(_table(document.get("process"), "process").get("user"), "process.user")
    uid = found.get("uid", 0)
    if type(uid) is not int or not 0 <= uid < 2**32:
        raise RequestError("process.user.uid", str(uid), "an id of 32 bits")
    return uid


def root(document: Document, *, required: bool) -> str:
    """root.path as written, maybe relative; "" where it is absent and not `required`."""
    path = _table(document.get("root"), "root").get("path")
    if path is None and not required:
        return ""
    if not isinstance(path, str) or not path or not _is_path(path):
        raise RequestError("root.path", str(path), "a path")
    return path


def _is_path(text: str) -> bool:
    # JSON can write half a surrogate pair, which no file name has.
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def owner(document: Document, *, required: bool) -> tuple[int, int]:
    """The host (uid, gid) of the container's root user.

    (0, 0) without a user namespace, and where it is not `required`.
    """
    linux = _table(document.get("linux"), "linux")
    if not required or not _has_user_namespace(linux):
        return (0, 0)
    return (_host_id(linux, "uidMappings"), _host_id(linux, "gidMappings"))


def _host_id(linux: Document, name: str) -> int:
    """The host id of the container's id 0. Raises RequestError when nothing maps it."""
    where = f"linux.{name}"
    for item in _list(linux.get(name), where):
        mapping = _table(item, where)
        first, host, size = (mapping.get(k, 0) for k in ("containerID", "hostID", "size"))
        numbers = [n for n in (first, host, size) if type(n) is int and 0 <= n < 2**32]
        if len(numbers) != 3:
            raise RequestError(where, str(item), "ids of 32 bits")
        if numbers[0] == 0 and numbers[2] > 0:
            return numbers[1]
    raise RequestError(where, "no mapping", "one for the container's root user")


def _object(pairs: list[tuple[str, object]]) -> Document:
    made = dict(pairs)
    if len(made) != len(pairs):
        # Readers differ in which one they take, so what was checked may not be what runs.
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RequestError("spec", key, "every key once")
            seen.add(key)
    return made


def _table(value: object, where: str) -> Document:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(where, type(value).__name__, "an object")
    return value


def _list(value: object, where: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RequestError(where, type(value).__name__, "a list")
    return value
