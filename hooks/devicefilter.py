"""A container's device program on cgroup v2, with our rules in front of it.

Each attached program is replaced, atomically, by itself with the rules in front; a second program
could not allow anything, because all of them must. Nothing is ever detached.
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


def allow(fd: int, rules: list[Rule]) -> None:
    """Let the cgroup `fd` read and write every (major, minor), all together."""
    attach_flags, ids = _query(fd)
    # Without any program the kernel lets everything pass: there is nothing to open.
    for program_id in ids:
        old = _program(program_id)
        new = _load(prefix(rules) + _instructions(old))
        _swap(fd, old, new, attach_flags)
        posix.close(old)
        posix.close(new)
    if ids and set(ids) & set(_query(fd)[1]):
        raise OSError(errno.EBUSY, "device program is still the old one")


def _query(fd: int) -> tuple[int, list[int]]:
    ids = buffer(4 * MAX_PROGRAMS)
    attr = buffer(ATTR_SIZE)
    pack_into("IIIIQI", attr, 0, fd, ATTACH_CGROUP_DEVICE, 0, 0, addressof(ids), 64)
    syscalls.bpf(PROG_QUERY, attr)
    attach_flags = unpack_from("I", attr, 12)[0]
    count = unpack_from("I", attr, 24)[0]
    return attach_flags, list(unpack_from(f"{count}I", ids))


def _swap(fd: int, old: int, new: int, attach_flags: int) -> None:
    attr = buffer(ATTR_SIZE)
    if attach_flags & ALLOW_MULTI:
        flags, replaced = ALLOW_MULTI | REPLACE, old
    else:
        # A cgroup that holds a single program takes the new one in place of the old.
        flags, replaced = attach_flags, 0
    pack_into("IIIII", attr, 0, fd, new, ATTACH_CGROUP_DEVICE, flags, replaced)
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
