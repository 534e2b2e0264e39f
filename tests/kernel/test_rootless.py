"""runc without root on the host: refused in words that say so, unless no GPU is asked for.

Such a runtime's hook may neither read what root alone may write, nor mount the host's files, nor
open a device cgroup; it must never end in a container without its GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.containers.image import copy_image, session_image
from tests.containers.runc import Container
from tests.containers.spec import Json, make_spec
from tests.containers.staging import GPU_ENV
from tests.kernel.starts import NEEDS_CONTAINERS, Starter, config, refused
from tests.kernel.trees import snapshot

pytestmark = NEEDS_CONTAINERS

USER = 65534
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "runc")
WORDS = "this runtime runs without root on the host, which the hook needs: "


def rootless(spec: Json) -> Json:
    """The spec as a user without subordinate ids writes it: one user, nothing to configure."""
    one = [{"containerID": 0, "hostID": USER, "size": 1}]
    kinds = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "user")]
    linux = {"namespaces": kinds, "uidMappings": one, "gidMappings": one}
    mounts = [m for m in spec["mounts"] if m["destination"] not in ("/sys", "/dev/pts")]
    return spec | {"linux": linux, "mounts": mounts}


@pytest.fixture
def owned(work: Path) -> Path:
    """A root of the user's own."""
    work.chmod(0o755)
    (work / "runc" / "test").mkdir(parents=True)
    for path in (work / "runc", work / "runc" / "test"):
        os.chown(path, USER, USER)
    return copy_image(session_image(), work / "root", owner=USER)


@contextmanager
def prepared(starter: Starter, root: Path, env: Iterable[str], hooks: Json) -> Iterator[Container]:
    """A bundle of the user's own; what it asks for is staged."""
    spec = make_spec(root, ["echo", "hello"], env=env, hooks=hooks)
    with Container(starter.work, spec, runtime=AS_USER) as container:
        (container.bundle / "config.json").write_text(json.dumps(rootless(spec)))
        os.chown(container.bundle, USER, USER)
        starter.node.stage_spec(config(container))
        yield container


@pytest.mark.parametrize("standalone", [False, True])
def test_gpu_is_refused(starter: Starter, owned: Path, standalone: bool) -> None:
    """The line says what is missing, and the root is as it was."""
    hooks = starter.hooks(standalone=standalone)
    with prepared(starter, owned, GPU_ENV, hooks) as container:
        before = snapshot(owned)
        outcome = container.run()
    assert refused(outcome).startswith(WORDS)
    assert "hello" not in outcome.stdout
    assert snapshot(owned) == before


def test_others_start(starter: Starter, owned: Path) -> None:
    """A container that asks for no GPU starts: the hook leaves before it needs anything."""
    with prepared(starter, owned, (), starter.hooks()) as container:
        outcome = container.run()
    assert (outcome.status, outcome.stdout) == (0, "hello\n"), outcome


def test_root_of_a_user_namespace_only(starter: Starter) -> None:
    """Where the runtime looks like root to itself, the line says the same."""
    hook = starter.hooks()["createRuntime"][0]["args"]
    command = ["unshare", "--user", "--map-root-user", *hook]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"gpu-agent: {WORDS}state: empty\n")
