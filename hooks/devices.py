"""The container's device rules: let it open exactly the granted character devices.

cgroup v1: one line a device into `devices.allow`. cgroup v2: each attached device program is
replaced, atomically, by itself with our rules in front; a second program could not allow
anything, because all of them must. Nothing is ever detached, and `m` is never granted.
"""

import errno
import posix

from hooks import syscalls
from hooks.cfunction import addressof, buffer

try:
    from _struct import pack, pack_into, unpack_from
except ImportError:  # pragma: no cover - the C part is all that `struct` is
    from struct import pack, pack_into, unpack_from

PROG_LOAD, PROG_ATTACH, PROG_GET_FD_BY_ID, OBJ_GET_INFO, PROG_QUERY = 5, 8, 13, 15, 16
PROG_TYPE_CGROUP_DEVICE, ATTACH_CGROUP_DEVICE = 15, 6
ALLOW_MULTI, REPLACE = 2, 4
DEV_CHAR, ACC_READ, ACC_WRITE = 2, 2, 4
EXIT = 0x95
ATTR_SIZE = 128
MAX_PROGRAMS = 64
MAX_INSTRUCTIONS = 4096

Rule = tuple[int, int]


class Cgroup:
    """The opened device cgroup of a container; `version` is 1 or 2."""

    def __init__(self, process_fd: int) -> None:
        relative = _paths(process_fd)
        # The kernel lists a v1 hierarchy mounted anywhere; a runtime goes by what it sees here.
        if b"devices" in relative and not _unified():
            self.version = 1
            self._fd = _open_below(
                (b"/sys/fs/cgroup/devices",), relative[b"devices"], syscalls.CGROUP_SUPER_MAGIC
            )
        elif b"" in relative:
            self.version = 2
            roots = (b"/sys/fs/cgroup", b"/sys/fs/cgroup/unified")
            self._fd = _open_below(roots, relative[b""], syscalls.CGROUP2_SUPER_MAGIC)
        else:
            raise OSError(errno.ENOENT, "process has no device cgroup")

    def allow(self, rules: list[Rule]) -> None:
        """Grant read and write on every (major, minor), all together."""
        if self.version == 1:
            self._allow_v1(rules)
        else:
            self._allow_v2(rules)

    def _allow_v1(self, rules: list[Rule]) -> None:
        flags = posix.O_WRONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC
        fd = posix.open(b"devices.allow", flags, dir_fd=self._fd)
        for major, minor in rules:
            # The file takes one rule a write.
            posix.write(fd, b"c %d:%d rw" % (major, minor))
        posix.close(fd)

    def _allow_v2(self, rules: list[Rule]) -> None:
        attach_flags, ids = self._query()
        # Without any program the kernel lets everything pass: there is nothing to open.
        for program_id in ids:
            old = _program(program_id)
            new = _load(prefix(rules) + _instructions(old))
            self._swap(old, new, attach_flags)
            posix.close(old)
            posix.close(new)
        if ids and set(ids) & set(self._query()[1]):
            raise OSError(errno.EBUSY, "device program is still the old one")

    def _query(self) -> tuple[int, list[int]]:
        ids = buffer(4 * MAX_PROGRAMS)
        attr = buffer(ATTR_SIZE)
        pack_into("IIIIQI", attr, 0, self._fd, ATTACH_CGROUP_DEVICE, 0, 0, addressof(ids), 64)
        syscalls.bpf(PROG_QUERY, attr)
        attach_flags = unpack_from("I", attr, 12)[0]
        count = unpack_from("I", attr, 24)[0]
        return attach_flags, list(unpack_from(f"{count}I", ids))

    def _swap(self, old: int, new: int, attach_flags: int) -> None:
        attr = buffer(ATTR_SIZE)
        if attach_flags & ALLOW_MULTI:
            flags, replaced = ALLOW_MULTI | REPLACE, old
        else:
            # A cgroup that holds a single program takes the new one in place of the old.
            flags, replaced = attach_flags, 0
        pack_into("IIIII", attr, 0, self._fd, new, ATTACH_CGROUP_DEVICE, flags, replaced)
        syscalls.bpf(PROG_ATTACH, attr)


def prefix(rules: list[Rule]) -> bytes:
    """Instructions that answer "allowed" for our devices and else fall through.

    The context holds (access << 16 | type), major and minor, 32 bits each. R1 is left alone:
    the old program, which follows, starts from it.
    """
    code = [
        _instruction(0x61, 2, 1, 0, 0),  # r2 = context.access_type
        _instruction(0xBF, 3, 2, 0, 0),  # r3 = r2
        _instruction(0x57, 2, 0, 0, 0xFFFF),  # r2 &= 0xffff: the type
        _instruction(0x77, 3, 0, 0, 16),  # r3 >>= 16: the access
        _instruction(0x61, 4, 1, 4, 0),  # r4 = context.major
        _instruction(0x61, 5, 1, 8, 0),  # r5 = context.minor
    ]
    refused = ~(ACC_READ | ACC_WRITE) & 0xFFFF
    body = []
    for major, minor in rules:
        body += [
            _instruction(0x55, 4, 0, 3, major),  # if r4 != major: next rule
            _instruction(0x55, 5, 0, 2, minor),  # if r5 != minor: next rule
            _instruction(0xB7, 0, 0, 0, 1),  # r0 = 1: allowed
            _instruction(EXIT, 0, 0, 0, 0),
        ]
    # Type and access are the same for all rules, so they are looked at once, before them.
    skip = len(body)
    code.append(_instruction(0x55, 2, 0, skip + 1, DEV_CHAR))  # not a character device: skip
    code.append(_instruction(0x45, 3, 0, skip, refused))  # asks for more than rw: skip
    return b"".join(code + body)


def _instruction(opcode: int, to: int, source: int, offset: int, value: int) -> bytes:
    return pack("<BBhI", opcode, source << 4 | to, offset, value & 0xFFFFFFFF)


def _program(program_id: int) -> int:
    attr = buffer(ATTR_SIZE)
    pack_into("I", attr, 0, program_id)
    return syscalls.bpf(PROG_GET_FD_BY_ID, attr)


def _instructions(program: int) -> bytes:
    length = unpack_from("I", _info(program, 0, 0), 20)[0]
    if not 0 < length <= MAX_INSTRUCTIONS * 8:
        raise OSError(errno.EPERM, "the kernel does not show the device program's instructions")
    code = buffer(length)
    _info(program, length, addressof(code))
    # Every program ends with exit; hardened kernels (bpf_jit_harden) show zeroes instead.
    if code.raw[length - 8] != EXIT:
        raise OSError(errno.EPERM, "the kernel does not show the device program's instructions")
    return bytes(code.raw)


def _info(program: int, length: int, address: int) -> bytes:
    info = buffer(232)
    pack_into("I", info, 20, length)
    pack_into("Q", info, 32, address)
    attr = buffer(ATTR_SIZE)
    pack_into("IIQ", attr, 0, program, 232, addressof(info))
    syscalls.bpf(OBJ_GET_INFO, attr)
    return bytes(info.raw)


def _load(code: bytes) -> int:
    instructions = buffer(len(code))
    pack_into(f"{len(code)}s", instructions, 0, code)
    licence = buffer(16)
    pack_into("6s", licence, 0, b"Apache")
    attr = buffer(ATTR_SIZE)
    count = len(code) // 8
    pack_into(
        "IIQQ", attr, 0, PROG_TYPE_CGROUP_DEVICE, count, addressof(instructions), addressof(licence)
    )
    pack_into("I", attr, 68, ATTACH_CGROUP_DEVICE)
    return syscalls.bpf(PROG_LOAD, attr)


def _paths(process_fd: int) -> dict[bytes, bytes]:
    fd = posix.open(b"cgroup", posix.O_RDONLY | posix.O_CLOEXEC, dir_fd=process_fd)
    try:
        text = posix.read(fd, 65536)
    finally:
        posix.close(fd)
    paths = {}
    for line in text.splitlines():
        _, controllers, path = line.split(b":", 2)
        for controller in controllers.split(b","):
            paths[controller] = path
    return paths


def _open_below(roots: tuple[bytes, ...], path: bytes, magic: int) -> int:
    for candidates in (lambda: roots, lambda: _mounted(magic)):
        for root in candidates():
            fd = _open_directory(root + path)
            if fd is None:
                continue
            if syscalls.fs_magic(fd) == magic:
                return fd
            posix.close(fd)
    raise OSError(errno.ENOENT, "no mounted device cgroup", path)


def _unified() -> bool:
    """Whether the v2 tree is mounted alone in the usual place."""
    fd = _open_directory(b"/sys/fs/cgroup")
    if fd is None:
        return False
    magic = syscalls.fs_magic(fd)
    posix.close(fd)
    return magic == syscalls.CGROUP2_SUPER_MAGIC


def _open_directory(path: bytes) -> int | None:
    flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        return posix.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _mounted(magic: int) -> list[bytes]:
    """Where the hierarchy is mounted; read only when it is not in its usual place."""
    kind = b"cgroup2" if magic == syscalls.CGROUP2_SUPER_MAGIC else b"cgroup"
    found = []
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            left, _, right = line.partition(b" - ")
            kind_found, _, options = right.split(b" ", 2)
            named = kind == b"cgroup2" or b"devices" in options.strip().split(b",")
            if kind_found == kind and named:
                found.append(left.split(b" ")[4])
    return found
