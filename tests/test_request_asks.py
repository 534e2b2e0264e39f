"""The hook's quick look at a spec never misses what the agent would take for a request."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.runtime import Node, hook_entry
from agent.config import HookSettings
from agent.errors import RequestDenied, RequestError
from agent.policy import EnvRequests, Policy
from agent.request import read_spec
from hooks.hook import Options
from hooks.state import asks
from tests.request_specs import BELOW, UUID, spec

SWARM = ("DOCKER_RESOURCE_GPU", "gpus-of.this")
OPEN = Policy(
    swarm_resources=SWARM,
    accept_volume_mounts=True,
    annotation_prefixes=("cdi.k8s.io/", "a.b/"),
)
DEVICES = ("all", "0", f"GPU-{UUID}", "nvidia.com/gpu=0", "runtime.nvidia.com/gpu=gpu1", "none")

devices = st.sampled_from(DEVICES)
variables = st.sampled_from(
    ("NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "PATH", "A&B<C>", "NVIDIA_GDS", *SWARM)
)
environments = st.lists(st.tuples(variables, devices | st.text()).map("=".join), max_size=4)
mounts = st.lists(
    st.sampled_from(("0", "all", "imex/0", "cdi/nvidia.com/gpu/0", "cdi/v.com/c/0")).map(
        lambda name: f"{BELOW}/{name}"
    ),
    max_size=2,
)
notes = st.dictionaries(
    st.sampled_from(("cdi.k8s.io/x", "a.b/c", "other")), devices | st.text(), max_size=2
)
policies = st.builds(
    Policy,
    env_requests=st.sampled_from(EnvRequests),
    env_containerd_namespaces=st.sampled_from(((), ("moby",))),
    swarm_resources=st.sampled_from(((), SWARM[:1], SWARM)),
    accept_volume_mounts=st.booleans(),
    annotation_prefixes=st.sampled_from(((), OPEN.annotation_prefixes)),
)


def rewritten(text: bytes, choices: list[int]) -> bytes:
    """The same JSON with some characters of its strings written as escapes."""
    out, inside, index = [], False, 0
    characters = text.decode()
    while index < len(characters):
        c = characters[index]
        index += 1
        if c == "\\":
            size = 5 if characters[index] == "u" else 1
            out.append(c + characters[index : index + size])
            index += size
        elif c == '"':
            inside = not inside
            out.append(c)
        elif inside and choices and choices[index % len(choices)] == 1:
            out.append(f"\\u{ord(c):04x}")
        elif inside and c == "/" and choices and choices[index % len(choices)] == 2:
            out.append("\\/")
        else:
            out.append(c)
    return "".join(out).encode()


@given(
    policies,
    environments,
    mounts,
    notes,
    st.booleans(),
    st.sampled_from((None, "moby", "k8s.io")),
    st.lists(st.sampled_from((0, 0, 0, 1, 2)), max_size=7),
)
def test_no_request_is_missed(
    policy: Policy,
    env: list[str],
    mounts: list[str],
    annotations: dict[str, str],
    privileged: bool,
    namespace: str | None,
    choices: list[int],
) -> None:
    """Whatever the agent reads as a request, or refuses as one, the hook does not let pass."""
    plain = spec(*env, mounts=mounts, annotations=annotations, privileged=privileged)
    content = rewritten(plain, choices)
    assert json.loads(content) == json.loads(plain)
    try:
        is_request = read_spec(content, policy, namespace).request is not None
    except RequestDenied:
        is_request = True
    except RequestError as e:
        # The quick look cannot know every annotation that makes no sense; such a container
        # names no GPU, and starts as the plain one it is.
        is_request = "names such as nvidia.com/gpu=0" not in str(e)
    assert asks(content, policy.words) or not is_request


@pytest.mark.parametrize(
    "content",
    [
        spec("NVIDIA_VISIBLE_DEVICES=0"),
        spec("CUDA_VERSION=8.0"),
        spec(f"{SWARM[0]}=0"),
        spec(f"{SWARM[1]}=0"),
        spec(mounts=[f"{BELOW}/0"]),
        spec(annotations={"a.b/c": "nvidia.com/gpu=0"}),
        spec("NVIDIA_VISIBLE_DEVICES=0").replace(b"NVIDIA", b"\\u004e\\u0056IDIA"),
        spec(f"{SWARM[0]}=0").replace(b"DOCKER", b"\\u0044OCKER"),
    ],
)
def test_each_way_to_ask_is_seen(content: bytes) -> None:
    """One spec for each source, plain and with escapes: each is a request and looks like one."""
    assert read_spec(content, OPEN).request is not None
    assert asks(content, OPEN.words)


def test_swarm_variables_reach_the_hook() -> None:
    """The hook entry that is installed tells the hook every configured variable."""
    entry = hook_entry(Node("/run/gpu-agent", HookSettings(), "/usr/bin/python3", words=SWARM))
    arguments = entry["args"]
    assert isinstance(arguments, list)
    options = Options(arguments[5:])
    assert options.words == OPEN.words
    assert options.arguments == []
    content = spec(f"{SWARM[1]}=0")
    assert asks(content, options.words)
    assert not asks(content)
