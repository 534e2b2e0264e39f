"""The main job with crun, and with containerd of other Debian releases, each with its own shim,
ctr and runc."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrib.localnode import LocalNode
from tests.containerd.daemon import DIR_VARIABLE, why_not
from tests.containers.image import missing_tools, session_image
from tests.containers.runtimes import PACKAGES, find_runtime, other_release
from tests.containers.workdir import work_dir
from tests.debian_pool import NotObtainable

MISSING = why_not() or missing_tools()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "all there"),
    pytest.mark.timeout(600),
]

MAJORS = {"trixie": ("1.7.",), "sid": ("2.", "3.")}
"""What the versions of a release begin with; sid moves on."""


@pytest.fixture(params=["crun", *(pytest.param(name, marks=pytest.mark.slow) for name in PACKAGES)])
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalNode]:
    """A node with crun, or with the containerd of one release."""
    with work_dir() as work:
        runtime = None
        try:
            if request.param == "crun":
                runtime = as_program(work / "crun", find_runtime("crun", work).command)
            else:
                monkeypatch.setenv(DIR_VARIABLE, str(other_release(request.param)))
        except NotObtainable as e:
            pytest.skip(str(e))
        with LocalNode("a100x8-minors", image=session_image(), runtime=runtime) as made:
            server = made.containerd.ctr("version").partition("Server:")[2].split()
            expected = MAJORS.get(request.param, ("",))
            assert server[server.index("Version:") + 1].startswith(expected)
            yield made


def as_program(path: Path, command: tuple[str, ...]) -> Path:
    """A program that is `command` in one word."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
    return path


def test_announced_staged_and_started(node: LocalNode) -> None:
    """The event is understood, the plan staged and replayed; nothing is left at the end."""
    with node.container("exact", ["NVIDIA_VISIBLE_DEVICES=4"]) as container:
        opened = container.sh("probe-open /dev/nvidia6 /dev/nvidiactl").splitlines()
        assert opened == ["/dev/nvidia6 ok", "/dev/nvidiactl ok"]
        assert container.sh("ls /dev | grep -c '^nvidia[0-9]'") == "1\n"
        assert container.sh("probe-dlopen libcuda.so.1").startswith("libcuda.so.1 ")
        assert node.answer("explain", "exact")["replay"]["path"] == "staged"
    with node.container("plain") as container:
        assert container.sh("ls /dev | grep -c nvidia || true") == "0\n"
    with (
        pytest.raises(AssertionError) as refusal,
        node.container("refused", ["NVIDIA_VISIBLE_DEVICES=9"]),
    ):
        pass
    # crun keeps a hook's words for itself.
    said = str(refusal.value) + (node.run_dir / "replays.log").read_text().splitlines()[-1]
    assert "no such GPU: 9" in said
    assert node.answer("status")["entries_staged"] == 0
