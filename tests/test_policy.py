"""The node's rules: they ignore or deny, and never widen what was asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import PolicySettings
from agent.errors import RequestDenied
from agent.policy import EnvRequests, Policy, policy_of
from agent.request import Capability

capability_sets = st.frozensets(st.sampled_from(Capability))


@pytest.mark.parametrize(
    ("rule", "privileged", "counts"),
    [
        (EnvRequests.ALL, False, True),
        (EnvRequests.ALL, True, True),
        (EnvRequests.PRIVILEGED, False, False),
        (EnvRequests.PRIVILEGED, True, True),
    ],
)
def test_whose_environment_counts(rule: EnvRequests, privileged: bool, counts: bool) -> None:
    """The matrix of rule and privilege; an objection is a reason for people."""
    objection = Policy(rule).objection_to_env(privileged=privileged)
    assert (objection is None) == counts


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
