"""What the image's loader must know: the merged ld.so.cache, musl's path file, CUDA compat.

It reads two small files of the image and gives whole files back to be written; it writes nothing
itself and runs no ldconfig. The image's bytes are hostile: they are looked at only when they are
those of a plain file of sensible size.
"""

import errno
import posix

from hooks.rootfs import S_IFMT, S_IFREG, Root
from hooks.state import digest

TYPE_CHECKING = False  # type checkers take it for True; `typing` costs 9 ms to import
if TYPE_CHECKING:
    from hooks.stagedir import Stage

CACHE = b"/etc/ld.so.cache"
CACHE_LIMIT = 16 << 20
COMPAT = b"/usr/local/cuda/compat"
MUSL_LIMIT = 1 << 16
# What musl's loader searches when it has no path file.
MUSL_DEFAULT = b"/lib:/usr/local/lib:/usr/lib"

Entry = tuple[bytes, bytes, int]
File = tuple[bytes, bytes]


def files(
    root: Root, entries: list[Entry], machine: str, compat: bytes | None, stage: "Stage | None"
) -> list[File]:
    """(path, new content) of the files that must change so that `entries` are found.

    An entry is (SONAME, container path, flags). With `compat`, the loaded driver's version, the
    image's own CUDA compat libraries come first if they fit it. Merged caches are kept in `stage`.
    """
    if compat is not None and root.find(COMPAT) is not None:
        entries = _prefer_compat(root, entries, machine, compat)
    changed = []
    old = read(root, CACHE, CACHE_LIMIT)
    new = _merged(old, entries, stage)
    if new != old:
        changed.append((CACHE, new))
    if root.find(b"lib/ld-musl-%s.so.1" % machine.encode()) is not None:
        changed += _musl(root, entries, machine)
    return changed


def _merged(old: bytes | None, entries: list[Entry], stage: "Stage | None") -> bytes:
    """The merged cache; containers of one image and plan get the one merged for the first."""
    name = "" if stage is None else _name(old, entries)
    known = None if stage is None else stage.recall(name)
    if known is not None:
        return known
    # Here only: a cache that was merged before needs neither the time nor the import.
    from hooks import ldcache

    try:
        new = ldcache.merge(old, entries)
    except ValueError:
        # A cache that no loader would accept is worth nothing: start a new one.
        new = ldcache.merge(None, entries)
    if stage is not None:
        stage.keep(name, new)
    return new


def _name(old: bytes | None, entries: list[Entry]) -> str:
    """What a merged cache is kept under: 256 bits, because images choose what goes in."""
    image = "absent" if old is None else digest(old, 32)
    driver = b"".join(b"\0%s\0%s\0%d" % entry for entry in entries)
    return digest(image.encode() + driver, 32)


def read(root: Root, path: bytes, limit: int) -> bytes | None:
    """A small plain file of the image; None if there is none that can be read without blocking.

    A volume's file, or one that the runtime is going to mask, is not the image's: root could read
    what the container may not, and hand it over in a file that the container can read.
    """
    try:
        fd = root.find(path)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return None
    if fd is None:
        return None
    seen = posix.fstat(fd)
    if seen.st_mode & S_IFMT != S_IFREG or seen.st_size > limit or not root.owns(fd):
        posix.close(fd)
        return None
    # The descriptor names the inode only; reading needs it opened again, and it is a plain file.
    again = posix.open(b"/proc/self/fd/%d" % fd, posix.O_RDONLY | posix.O_CLOEXEC)
    content = posix.read(again, seen.st_size)
    posix.close(again)
    posix.close(fd)
    return content


def _prefer_compat(root: Root, entries: list[Entry], machine: str, driver: bytes) -> list[Entry]:
    # Only images with CUDA's compat package pay for the import.
    from hooks import ldcache
    from hooks.compat import libraries

    flags = ldcache.FLAGS.get(machine, 0)
    preferred = libraries(root, driver)
    kept = [entry for entry in entries if entry[2] != flags or entry[0] not in preferred]
    return [*((soname, path, flags) for soname, path in preferred.items()), *kept]


def _musl(root: Root, entries: list[Entry], machine: str) -> list[File]:
    """musl has no cache: its loader searches the directories of a path file."""
    path = b"/etc/ld-musl-%s.path" % machine.encode()
    old = read(root, path, MUSL_LIMIT)
    known = (MUSL_DEFAULT if old is None else old).replace(b"\n", b":").split(b":")
    wanted = dict.fromkeys(target.rpartition(b"/")[0] for _, target, _ in entries)
    missing = [directory for directory in wanted if directory not in known]
    if not missing:
        return []
    before = MUSL_DEFAULT if old is None else old.rstrip(b"\n")
    return [(path, b"\n".join([before, *missing, b""]))]
