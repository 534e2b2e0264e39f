"""The node's rules: they ignore or deny, and never widen what was asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import PolicySettings
from agent.errors import RequestDenied
from agent.policy import EnvRequests, Policy, policy_of
from agent.request import Capability
from agent.sources import Asker

capability_sets = st.frozensets(st.sampled_from(Capability))


NOBODY_LISTED = "the container is not privileged and policy.env_requests is privileged"
NOT_LISTED = "the container is not privileged and its namespace is not listed in policy"
PODS = {"env_pod_namespaces": ("ml", "ops")}
CONTAINERDS = {"env_containerd_namespaces": ("moby",)}
BOTH = {**PODS, **CONTAINERDS}


@pytest.mark.parametrize(
    ("rule", "lists", "asker", "objection"),
    [
        (EnvRequests.ALL, {}, Asker(False), None),
        (EnvRequests.ALL, {}, Asker(True, "k8s.io", "web"), None),
        (EnvRequests.PRIVILEGED, {}, Asker(True), None),
        (EnvRequests.PRIVILEGED, {}, Asker(False), NOBODY_LISTED),
        (EnvRequests.PRIVILEGED, {}, Asker(False, "moby", "ml"), NOBODY_LISTED),
        (EnvRequests.PRIVILEGED, PODS, Asker(False, "k8s.io", "ml"), None),
        (EnvRequests.PRIVILEGED, PODS, Asker(False, None, "ops"), None),
        (EnvRequests.PRIVILEGED, PODS, Asker(False, "k8s.io", "web"), NOT_LISTED),
        (EnvRequests.PRIVILEGED, PODS, Asker(False, "ml", None), NOT_LISTED),
        (EnvRequests.PRIVILEGED, PODS, Asker(False), NOT_LISTED),
        (EnvRequests.PRIVILEGED, CONTAINERDS, Asker(False, "moby"), None),
        (EnvRequests.PRIVILEGED, CONTAINERDS, Asker(False, "Moby"), NOT_LISTED),
        (EnvRequests.PRIVILEGED, CONTAINERDS, Asker(False, "k8s.io", "moby"), NOT_LISTED),
        (EnvRequests.PRIVILEGED, BOTH, Asker(False, "moby", "web"), None),
        (EnvRequests.PRIVILEGED, BOTH, Asker(False, "k8s.io", "ml"), None),
        (EnvRequests.PRIVILEGED, BOTH, Asker(False, "k8s.io", "web"), NOT_LISTED),
        (EnvRequests.PRIVILEGED, BOTH, Asker(True, "k8s.io", "web"), None),
    ],
)
def test_whose_environment_counts(
    rule: EnvRequests, lists: dict[str, Any], asker: Asker, objection: str | None
) -> None:
    """The matrix of rule, lists and container; an objection is a reason for people."""
    assert replace(Policy(rule), **lists).objection_to_env(asker) == objection


def test_unknown_namespace_is_not_ignored() -> None:
    """Where the containerd namespace decides and nobody knows it, the container is refused."""
    policy = Policy(EnvRequests.PRIVILEGED, env_containerd_namespaces=("moby",))
    with pytest.raises(RequestDenied, match="its namespace is not known yet"):
        policy.objection_to_env(Asker(False))
    assert policy.objection_to_env(Asker(True)) is None


@pytest.mark.parametrize(
    ("prefixes", "key", "allowed"),
    [
        ((), "cdi.k8s.io/x", False),
        (("cdi.k8s.io/",), "cdi.k8s.io/x", True),
        (("cdi.k8s.io/",), "cdi.k8s.io.evil/x", False),
        (("cdi.k8s.io/",), "x.cdi.k8s.io/x", False),
        (("a.b/", "gpu-agent/"), "gpu-agent/opt-out", True),
    ],
)
def test_annotations_by_prefix(prefixes: tuple[str, ...], key: str, allowed: bool) -> None:
    """No annotation says anything unless its beginning is listed."""
    assert Policy(annotation_prefixes=prefixes).allows_annotation(key) == allowed


@given(capability_sets, capability_sets)
def test_bound_is_never_exceeded(
    bound: frozenset[Capability], asked: frozenset[Capability]
) -> None:
    """What is bounded lies in the request and in the bound; a grant is the request or nothing."""
    policy = Policy(supported_capabilities=tuple(sorted(bound)))
    assert set(policy.bounded(asked)) == bound & asked
    if asked <= bound:
        assert policy.granted(asked, "X") == tuple(sorted(asked))
    else:
        with pytest.raises(RequestDenied):
            policy.granted(asked, "X")


def test_denial_names_the_words_and_the_bound() -> None:
    """The refused start says which capability was too much and what would be allowed."""
    policy = Policy(supported_capabilities=(Capability.UTILITY,))
    with pytest.raises(RequestDenied) as caught:
        policy.granted([Capability.NGX, Capability.UTILITY], "NVIDIA_DRIVER_CAPABILITIES")
    assert str(caught.value) == (
        "request denied: NVIDIA_DRIVER_CAPABILITIES=ngx: this node supports utility"
    )
    assert caught.value.exit_code == 3


def test_policy_of_the_config() -> None:
    """The [policy] table becomes the policy; its defaults are the policy's own."""
    assert policy_of(PolicySettings()) == Policy()
    made = policy_of(PolicySettings("privileged", ("video", "compute")))
    assert made == Policy(EnvRequests.PRIVILEGED, (Capability.COMPUTE, Capability.VIDEO))
