"""The state and the spec: what the hook takes from them, and when it leaves at once."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.errors import Refused
from hooks.state import State, _at_sight, asks, read_state

GOOD = {"id": "c1", "pid": 4711, "bundle": "/run/x/io.containerd.runtime.v2.task/k8s.io/c1"}


def through_pipe(data: bytes) -> State:
    """The state as the hook reads it from its stdin; small enough for a pipe to hold."""
    read, write = os.pipe()
    try:
        os.write(write, data)
        os.close(write)
        return read_state(read)
    finally:
        os.close(read)


def test_good_state() -> None:
    """Of a state as runtimes write it the three used keys are taken, and the namespace's name
    from the bundle."""
    extra = {"ociVersion": "1.2.0", "status": "creating", "annotations": {"a": ["b", None]}}
    state = through_pipe(json.dumps({**extra, **GOOD}).encode())
    assert (state.id, state.pid, state.namespace) == ("c1", 4711, "k8s.io")
    assert state.bundle == b"/run/x/io.containerd.runtime.v2.task/k8s.io/c1"


@pytest.mark.parametrize(
    ("bundle", "namespace"),
    [("/a/b/c", "b"), ("/a/b/c/", "b"), ("/a/b", "a"), ("/a", ""), ("/", "")],
)
def test_namespace(bundle: str, namespace: str) -> None:
    """The namespace is the bundle's parent; a bundle without one has none."""
    assert State(json.dumps({**GOOD, "bundle": bundle})).namespace == namespace


def test_odd_bytes_of_the_bundle_survive() -> None:
    """A bundle path that is no UTF-8 is the same bytes again."""
    raw = json.dumps({**GOOD, "bundle": "/@"}).encode().replace(b"@", b"\xff\xfe")
    assert through_pipe(raw).bundle == b"/\xff\xfe"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, JSON_VALUES)))
def test_any_object_is_read_or_refused(values: dict[str, object]) -> None:
    """Whatever the values are, the answer is a state or Refused."""
    state = None
    with suppress(Refused):
        state = through_pipe(json.dumps(values).encode())
    assert state is None or (1 < state.pid < 1 << 22 and state.bundle.startswith(b"/"))


RUNC = {
    **{"ociVersion": "1.0.2-dev", "id": "c1", "status": "creating", "pid": 4711},
    **{"bundle": "/run/x/k8s.io/c1", "annotations": {"a": 'b"c'}},
}


def as_runc_writes(values: dict[str, object]) -> str:
    """Go's encoding: no blanks."""
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("left_out", ["", "annotations"])
def test_what_runc_writes_is_read_at_sight(left_out: str) -> None:
    """The form that every start brings needs no JSON reader, and means the same without it."""
    text = as_runc_writes({k: v for k, v in RUNC.items() if k != left_out})
    assert _at_sight(text) == {key: RUNC[key] for key in ("id", "pid", "bundle")}
    assert _at_sight(text + "\n") == _at_sight(text)
    assert _at_sight(text.replace("/run", "/r\\u0075n")) == {}
    assert _at_sight(json.dumps(RUNC)) == {}


@given(st.data())
def test_sight_agrees_with_json(data: st.DataObject) -> None:
    """A state with one character changed is read at sight as JSON reads it, or not at sight."""
    text = as_runc_writes({k: v for k, v in RUNC.items() if k != "annotations"})
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from(['"', "\\", ",", "{", "}", ":", "0", "-", "\n", "\0", "e", ""]))
    changed = text[:at] + put + text[at + data.draw(st.integers(0, 2)) :]
    if seen := _at_sight(changed):
        whole = json.loads(changed)
        assert seen == {key: whole[key] for key in ("id", "pid", "bundle")}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Whatever comes on stdin, the answer is Refused if it is no state."""
    with pytest.raises(Refused):
        through_pipe(data)


def test_spec_is_read_whole(tmp_path: Path) -> None:
    """The spec's bytes come as they are, larger than one read too."""
    content = os.urandom(200_000)
    (tmp_path / "config.json").write_bytes(content)
    assert State(json.dumps({**GOOD, "bundle": str(tmp_path)})).spec() == content


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (b'{"process": {"env": ["PATH=/bin"]}}', False),
        (b'{"env": ["NVIDIA_VISIBLE_DEVICES=all"]}', True),
        (b'{"env": ["CUDA_VERSION=12.0"]}', True),
        (b'{"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"}}', True),
        (b'{"mounts": ["/var/run/nvidia-container-devices/all"]}', True),
        # A letter may be written so; the hook does not decode it, so it must not conclude.
        (rb'{"env": ["\u004eVIDIA_VISIBLE_DEVICES=all"]}', True),
        (rb'{"env": ["A=\u003cb\u003e\u0026"]}', False),
        (rb'{"env": ["A=\u003cb\u003e", "\u004eV=1"]}', True),
        (b'{"env": ["GPU_REQUEST=all"]}', False),
    ],
)
def test_who_asks(spec: bytes, expected: bool) -> None:
    """Only a spec that certainly names nothing of ours is let through unread."""
    assert asks(spec) is expected


def test_configured_words_ask_too() -> None:
    """A variable that the configuration names counts as a request."""
    assert asks(b'{"env": ["GPU_REQUEST=all"]}', (b"GPU_REQUEST",))
