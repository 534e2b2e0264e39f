"""Replay a plan into one container: sources, targets, device rules, then join and attach.

Everything that opens, reads, parses or imports happens before the container's mount namespace
is joined; afterwards there are only system calls on descriptors. A failure anywhere takes back
what was done. It decides nothing: the plan says what, the image's layout says where.
"""

import errno
import posix
import sys

from hooks import loader, syscalls
from hooks.devices import Cgroup
from hooks.errors import Changed, Refused, shown
from hooks.mounts import KINDS, Source, Tmpfs, mounter
from hooks.planfile import Fields, Plan, conflict
from hooks.rootfs import S_IFCHR, S_IFDIR, S_IFREG, Root, Target, layout, write_all
from hooks.syscalls import O_PATH

TYPE_CHECKING = False  # type checkers take it for True; `typing` costs 9 ms to import
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hooks.clock import Clock
    from hooks.stagedir import Stage


class Container:
    """The container being created: its process directory, root and owner, all opened.

    `pid` is the runtime's init process; `rootfs` an absolute host path, and so are the `volumes`.
    Raises Refused when the process shares the hook's own mount namespace or the root is the host's.
    """

    def __init__(
        self, pid: int, rootfs: bytes, owner: tuple[int, int], volumes: "Sequence[bytes]" = ()
    ) -> None:
        flags = O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC
        # Everything goes through this one descriptor: it stays with this very process, whatever
        # becomes of its number.
        try:
            self.process = posix.open(b"/proc/%d" % pid, flags)
        except FileNotFoundError:
            raise Refused(f"state: no process {pid}") from None
        if syscalls.fs_magic(self.process) != syscalls.PROC_SUPER_MAGIC:
            raise Refused("state: /proc is not procfs")
        readable = posix.O_RDONLY | posix.O_CLOEXEC
        self.namespace = posix.open(b"ns/mnt", readable, dir_fd=self.process)
        if _same(posix.fstat(self.namespace), posix.stat(b"/proc/self/ns/mnt")):
            raise Refused(f"state: pid {pid} is in the host's mount namespace")
        # The path is the runtime's, not the image's; its links mean that process's root.
        host = posix.open(b"root", flags, dir_fd=self.process)
        root = Root(host).find(rootfs, O_PATH | posix.O_DIRECTORY)
        if root is None:
            raise Refused(f"state: no container root at {rootfs.decode('utf-8', 'replace')}")
        if _same(posix.fstat(root), posix.fstat(host)):
            raise Refused("state: the container root is the host's")
        self.root = Root(root, volumes)
        self.owner = owner


class Replay:
    """One replay of `plan` into `container`.

    `run_dir` is the agent's directory on tmpfs, `stage` what is in it, None if it is not there.
    """

    def __init__(
        self,
        plan: Plan,
        container: Container,
        run_dir: bytes,
        stage: "Stage | None",
        clock: "Clock",
    ) -> None:
        self._container = container
        self._root = container.root
        self._clock = clock
        self._mounter = mounter()
        self._binds: list[tuple[Source, bytes, bytes]] = []
        self._nested: list[tuple[Source, bytes]] = []
        self._links: list[tuple[bytes, bytes, bytes]] = []
        self._cache: list[tuple[bytes, bytes, bytes, int]] = []
        self._rules: list[tuple[int, int]] = []
        self._mask: tuple[bytes, list[tuple[bytes, bytes]]] | None = None
        self._texts: list[loader.File] = []
        self._compat: bytes | None = None
        self._run_dir = run_dir
        self._stage = stage
        self._spares: list[bytes] = []
        self._spare_dir = -1
        for step in plan.steps:
            self._sort(step)

    def run(self) -> None:
        """Do it. Raises mounts.Changed if a source is not what was staged, else OSError."""
        for source in [bind[0] for bind in self._binds] + [bind[0] for bind in self._nested]:
            self._mounter.open(source)
        self._clock.mark("sources")
        # What is made in the container is for all its users, however the runtime was started.
        posix.umask(0o022)
        try:
            targets = self._make_targets()
            mask = self._open_mask()
            self._clock.mark("targets")
            if self._rules:
                Cgroup(self._container.process).allow(self._rules)
            self._clock.mark("devices")
            # From here on an import would find the container's files; none is left to do.
            sys.meta_path.clear()
            syscalls.setns(self._container.namespace)
            self._attach(targets, mask)
            self._root.commit()
            self._clock.mark("mounts")
        except BaseException:
            self._mounter.undo()
            self._root.undo()
            raise
        finally:
            for spare in self._spares:
                posix.unlink(spare, dir_fd=self._spare_dir)

    def _sort(self, step: Fields) -> None:
        """One line of the plan to its list; planfile has checked the number of fields."""
        match step[0]:
            case b"file":
                numbers = tuple(map(int, step[5:9]))
                self._binds.append((Source(step[4], S_IFREG, step[3], numbers), step[1], step[2]))
            case b"node":
                numbers = (int(step[4]), int(step[5]))
                self._binds.append((Source(step[3], S_IFCHR, step[2], numbers), b"abs", step[1]))
            case b"ipc":
                source = Source(step[4], KINDS[step[1]], step[3], ())
                self._binds.append((source, b"abs", step[2]))
            case b"link":
                self._links.append((step[1], step[2], step[3]))
            case b"cache":
                self._cache.append((step[2], step[1], step[3], int(step[4])))
            case b"text":
                self._texts.append((step[1], step[2]))
            case b"compat":
                self._compat = step[1]
            case b"rule":
                self._rules.append((int(step[1]), int(step[2])))
            case b"mask":
                self._mask = (step[1], list(zip(step[2::2], step[3::2], strict=True)))
            case b"procgpu":
                self._nested.append((Source(step[3], S_IFDIR, step[2], ()), step[1]))

    def _make_targets(self) -> list[tuple[Source, Target]]:
        """Mount points, links and the loader's files, owned by the container's root user."""
        machine = posix.uname().machine
        places = layout(self._root, machine)
        changed = self._changed_files(places, machine)
        self._clock.mark("cache")
        binds = [(source, _join(places[place], name)) for source, place, name in self._binds]
        links = [(_join(places[place], name), points_to) for place, name, points_to in self._links]
        self._refuse_conflicts([path for _, path in binds] + [path for path, _ in links])
        owner = self._container.owner
        # The container's root may not even look into the run directory: what touches that
        # happens before or after.
        if owner != (0, 0):
            syscalls.set_fs_owner(*owner)
        targets = [(source, self._root.mount_point(path, source.kind)) for source, path in binds]
        for path, points_to in links:
            self._root.link(path, points_to)
        unwritten = self._write(changed)
        if owner != (0, 0):
            syscalls.set_fs_owner(0, 0)
        targets += [self._bind_content(path, content) for path, content in unwritten]
        return targets

    def _refuse_conflicts(self, paths: list[bytes]) -> None:
        """Only here is known which directories the plan's places are in this image (R9)."""
        bad = conflict(paths + [path for path, _ in self._texts])
        if bad is not None:
            raise Refused(f"plan: two steps for {shown(bad)}, or one inside of the other")

    def _changed_files(self, places: dict[bytes, bytes], machine: str) -> list[loader.File]:
        """Texts and the loader's files, as far as the image does not have them like that."""
        changed = [
            (path, content)
            for path, content in self._texts
            if loader.read(self._root, path, len(content)) != content
        ]
        if self._cache:
            entries = [
                (soname, _join(places[place], name), flags)
                for soname, place, name, flags in self._cache
            ]
            changed += loader.files(self._root, entries, machine, self._compat, self._stage)
        return changed

    def _write(self, changed: list[loader.File]) -> list[loader.File]:
        """Write whole files; gives back those that the root does not take."""
        unwritten = []
        for path, content in changed:
            try:
                self._root.write(path, content)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                unwritten.append((path, content))
        return unwritten

    def _bind_content(self, path: bytes, content: bytes) -> tuple[Source, Target]:
        # A root that cannot be written gets the file as a mount. Its source needs a name only
        # until it is mounted.
        if self._spare_dir < 0:
            self._spare_dir = posix.open(
                self._run_dir, O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC
            )
        name = b".spare-%d-%d" % (posix.getpid(), len(self._spares))
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        fd = posix.open(name, flags, 0o644, dir_fd=self._spare_dir)
        self._spares.append(name)
        write_all(fd, content)
        seen = posix.fstat(fd)
        posix.close(fd)
        identity = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)
        spare = b"%s/%s" % (self._run_dir, name)
        source = Source(spare, S_IFREG, b"ro,nosuid,nodev,noexec", identity)
        self._mounter.open(source)
        return source, self._root.mount_point(path, S_IFREG)

    def _open_mask(self) -> tuple[Target, Tmpfs] | None:
        """The procfs directory to cover; one that does not exist has nothing to hide."""
        if self._mask is None:
            return None
        path, files = self._mask
        fd = self._root.find(path, O_PATH | posix.O_DIRECTORY)
        if fd is None:
            return None
        if syscalls.fs_magic(fd) != syscalls.PROC_SUPER_MAGIC:
            raise Refused(f"{path.decode('utf-8', 'replace')} in the container is not procfs")
        target = self._root.mount_point(path, S_IFDIR)
        tmpfs = Tmpfs(files, [name for _, name in self._nested])
        self._mounter.open_tmpfs(tmpfs)
        return target, tmpfs

    def _attach(
        self, targets: list[tuple[Source, Target]], mask: tuple[Target, Tmpfs] | None
    ) -> None:
        try:
            for source, target in targets:
                self._mounter.attach(source, target)
            if mask is None:
                return
            target, tmpfs = mask
            self._mounter.attach_tmpfs(tmpfs, target)
            for source, name in self._nested:
                self._mounter.attach(source, tmpfs.dirs[name])
        except Changed as change:
            # Too late to ask for another plan: this process has left the host's namespace.
            raise Refused(str(change)) from None


def _join(directory: bytes, name: bytes) -> bytes:
    return name if name.startswith(b"/") else b"%s/%s" % (directory, name)


def _same(one: posix.stat_result, other: posix.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
