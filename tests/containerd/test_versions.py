"""The main job with containerd of other Debian releases, each with its shim, ctr and runc."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrib.localnode import LocalNode
from tests.containerd.daemon import DIR_VARIABLE, why_not
from tests.containers.image import missing_tools, session_image
from tests.containers.runtimes import PACKAGES, other_release
from tests.debian_pool import NotObtainable

MISSING = why_not() or missing_tools()
pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "all there"),
    pytest.mark.timeout(600),
]

MAJORS = {"trixie": ("1.7.",), "sid": ("2.", "3.")}
"""What the versions of a release begin with; sid moves on."""


@pytest.fixture(params=PACKAGES)
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalNode]:
    """A node with the containerd of one release."""
    try:
        root = other_release(request.param)
    except NotObtainable as e:
        pytest.skip(str(e))
    monkeypatch.setenv(DIR_VARIABLE, str(root))
    with LocalNode("a100x8-minors", image=session_image()) as made:
        server = made.containerd.ctr("version").partition("Server:")[2].split()
        assert server[server.index("Version:") + 1].startswith(MAJORS[request.param])
        yield made


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
        pytest.raises(AssertionError, match="no such GPU: 9"),
        node.container("refused", ["NVIDIA_VISIBLE_DEVICES=9"]),
    ):
        pass
    assert node.answer("status")["entries_staged"] == 0
