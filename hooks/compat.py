"""CUDA forward compatibility: whether the image's own newer libcuda shall come first.

An image may carry the user-space driver of a newer CUDA in /usr/local/cuda/compat, made to run on
an older kernel module. If it fits this host, its directory goes first in the loader's order, and
that is all: no file of the image is mounted, opened for running or trusted. The one file that is
read is libcuda itself, a few bytes of its ELF headers, by descriptor and bounded.
"""

import errno
import posix

from hooks.rootfs import S_IFMT, S_IFREG, Root
from hooks.state import _object as json_object

try:
    from _struct import error as StructError  # type: ignore[attr-defined]
    from _struct import unpack_from
except ImportError:  # pragma: no cover - the C part is all that `struct` is
    from struct import error as StructError
    from struct import unpack_from

DIRECTORY = b"/usr/local/cuda/compat"
NOTE = b".note.cuda.fwd_compatibility"
VENDOR = b"NVIDIA Corporation"
MAX_NAMES = 1024
MAX_SECTIONS = 512
MAX_BYTES = 1 << 16

Version = tuple[int, ...]


def libraries(root: Root, host: bytes) -> dict[bytes, bytes]:
    """SONAME to container path of the compat libraries to prefer; empty where they do not fit.

    `host` is the loaded module's version. There must be exactly one libcuda of a version.
    """
    fd = root.find(DIRECTORY, posix.O_RDONLY | posix.O_DIRECTORY)
    if fd is None:
        return {}
    try:
        names = _names(fd)
        found = [name for name in names if _version_of(name, b"libcuda.so.") is not None]
        if len(found) != 1 or not _fits(fd, found[0], _version(host) or ()):
            return {}
    finally:
        posix.close(fd)
    return {name: b"%s/%s" % (DIRECTORY, name) for name in names if _is_soname(name)}


def fits(host: Version, compat: Version, drivers: "list[object] | None") -> bool:
    """Whether a compat libcuda of version `compat` is for this host.

    `drivers` are the majors its note names, None without a note: then a newer major decides.
    """
    if drivers is None:
        return host[:1] < compat[:1]
    return host[0] in drivers and compat > host


def note_drivers(fd: int) -> "list[object] | None":
    """The driver majors that libcuda's note names; None if it has no note that can be read."""
    try:
        text = _description(fd)
        if text is None:
            return None
        drivers = json_object(text.decode("utf-8").rstrip("\0")).get("Driver")
    except (ValueError, StructError, RecursionError, StopIteration):
        return None
    return drivers if isinstance(drivers, list) else None


def _fits(directory: int, name: bytes, host: Version) -> bool:
    compat = _version_of(name, b"libcuda.so.")
    if compat is None or not host:
        return False
    # Looked at before it is opened: the image may have a FIFO or a device under this name.
    if posix.stat(name, dir_fd=directory, follow_symlinks=False).st_mode & S_IFMT != S_IFREG:
        return False
    flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_CLOEXEC
    try:
        fd = posix.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise
    try:
        regular = posix.fstat(fd).st_mode & S_IFMT == S_IFREG
        return regular and fits(host, compat, note_drivers(fd))
    finally:
        posix.close(fd)


def _description(fd: int) -> bytes | None:
    """The note's description, found by section name in a 64-bit little-endian ELF file."""
    head = posix.pread(fd, 64, 0)
    if head[:6] != b"\x7fELF\x02\x01":
        return None
    table, size, count, names = unpack_from("<40xQ10xHHH", head)
    if size != 64 or not names < count <= MAX_SECTIONS:
        return None
    headers = posix.pread(fd, 64 * count, table)
    sections = [unpack_from("<I20xQQ", headers, 64 * n) for n in range(count)]
    _, offset, length = sections[names]
    strings = posix.pread(fd, min(length, MAX_BYTES), offset)
    for name, offset, length in sections:
        if strings[name : name + len(NOTE) + 1] == NOTE + b"\0":
            return _note(posix.pread(fd, min(length, MAX_BYTES), offset))
    return None


def _note(data: bytes) -> bytes | None:
    name_size, size, _ = unpack_from("<III", data)
    start = 12 + (name_size + 3 & ~3)
    if data[12 : 12 + name_size].rstrip(b"\0") != VENDOR:
        return None
    return data[start : start + size]


def _names(fd: int) -> list[bytes]:
    names = []
    with posix.scandir(fd) as entries:
        for entry in entries:
            names.append(entry.name.encode("utf-8", "surrogateescape"))
            if len(names) > MAX_NAMES:
                return []
    return sorted(names)


def _version_of(name: bytes, prefix: bytes) -> Version | None:
    """The version in a full library name: at least two numbers."""
    version = _version(name[len(prefix) :]) if name.startswith(prefix) else None
    return version if version and len(version) > 1 else None


def _is_soname(name: bytes) -> bool:
    stem, dot, number = name.rpartition(b".so.")
    return stem.startswith(b"lib") and bool(dot) and number.isdigit()


def _version(text: bytes) -> Version | None:
    parts = text.split(b".")
    if len(parts) > 4 or not all(p.isdigit() and len(p) < 8 for p in parts):
        return None
    return tuple(int(p) for p in parts)
