"""What every runtime does with the hook and the wrapper: its report, its bundle, its state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.containers.image import copy_image, session_image
from tests.containers.runc import Container
from tests.containers.spec import MAPPED_ROOT, Json, make_spec
from tests.containers.staging import GPU_ENV
from tests.kernel.starts import NEEDS_CONTAINERS, SLEEP, Starter, asking, config, refused
from tests.kernel.trees import contents, host_mounts

pytestmark = NEEDS_CONTAINERS

DLOPEN = ("probe-dlopen", "libcuda.so.1")


def test_refusal(every: Starter, root: Path) -> None:
    """A container that asks for what is not there is refused by every runtime, in our words, and
    leaves its root and the host as they were. crun gives the words only to the file that an
    annotation names; the agent has them from the replay log."""
    before, mounts = contents(root), host_mounts()
    said = every.work / "said"
    annotations = {"run.oci.hooks.stderr": str(said)}
    hooks = every.hooks(standalone=True)
    options: Json = {"hooks": hooks, "stage": False, "annotations": annotations}
    with every.prepared(root, env=asking("9"), **options) as container:
        outcome = container.create(check=False)
    line = every.records()[-1][7]
    assert line.startswith("no such GPU: 9: this host has 0 (GPU-")
    if said.exists():
        assert outcome.status != 0
        assert said.read_text() == f"gpu-agent: {line}\n"
    else:
        assert refused(outcome) == line
    assert contents(root) == before
    assert host_mounts() == mounts


def test_start_without_a_plan_staged(every: Starter, root: Path) -> None:
    """Nothing is staged and no agent answers: the hook plans alone."""
    hooks = every.hooks(standalone=True)
    with every.started(root, hooks=hooks, stage=False) as container:
        assert container.exec(*DLOPEN).status == 0
    assert every.records()[-1][4:6] == ["standalone", "ok"]


def test_user_namespace(every: Starter, work: Path) -> None:
    """In a user namespace the driver is found and its nodes can be opened."""
    root = copy_image(session_image(), work / "root", owner=MAPPED_ROOT)
    with every.started(root, user_namespace=True) as container:
        assert container.exec(*DLOPEN).status == 0
        opened = container.exec("probe-open", "/dev/nvidiactl").stdout
        assert opened == "/dev/nvidiactl ok\n"


def test_read_only_root(every: Starter, root: Path) -> None:
    """`root.readonly` holds for the container and not for the hook."""
    with every.started(root, readonly=True) as container:
        assert container.exec(*DLOPEN).status == 0
        assert "Read-only" in container.exec("touch", "/made").stderr


def test_mounts_stay_private(every: Starter, root: Path) -> None:
    """Nothing that the hook mounts can spread, so a checkpoint finds no shared peer of it."""
    with every.started(root) as container:
        table = container.exec("cat", "/proc/self/mountinfo").stdout.splitlines()
    ours = [line.split() for line in table if "/nvidia" in line.split()[4]]
    assert len(ours) > 5
    # Between the options and the dash stand `shared:` and `master:`.
    assert {line[6] for line in ours} == {"-"}


@pytest.mark.parametrize(("opt_out", "status"), [("", 1), ('"proc_mask"', 0)])
def test_nested_procfs(every: Starter, root: Path, opt_out: str, status: int) -> None:
    """The kernel lets a container in the container mount procfs only where nothing of the outer
    one is covered: with the mask it cannot, without it can."""
    with every.node.config.open("a") as settings:
        settings.write(f"[policy]\nopt_out = [{opt_out}]\n")
    linux = make_spec(root, SLEEP)["linux"] | {"maskedPaths": [], "readonlyPaths": []}
    hooks = every.hooks(standalone=True)
    options: Json = {"hooks": hooks, "stage": False, "changes": {"linux": linux}}
    with every.started(root, **options) as container:
        inner = container.exec("busybox", "unshare", "-Urpf", "--mount-proc", "true")
    assert inner.status == status, inner
    assert ("Operation not permitted" in inner.stderr) is bool(status)


def test_wrapper(every: Starter, root: Path) -> None:
    """In front of every runtime the wrapper adds the hook, and everything else passes."""
    wrapper = every.node.hook.with_name("gpu-agent-runc")
    entry = every.hooks()["createRuntime"][0]
    settings = f"{shutil.which(every.runtime.program)}\n{json.dumps(entry)}\n"
    wrapper.with_name("wrapper.conf").write_text(settings)
    spec = make_spec(root, SLEEP, env=GPU_ENV)
    command = (*every.runtime.prefix, str(wrapper))
    with Container(every.work, spec, runtime=command) as container:
        every.node.stage_spec(config(container))
        container.create()
        container.start()
        assert container.exec(*DLOPEN).status == 0
        container.delete()
    with Container(every.work, spec | {"root": {"path": "/none"}}, runtime=command) as container:
        assert container.create(check=False).status != 0
    assert every.records()[-1][4:6] == ["staged", "ok"]
