"""Which part of a spec asks: swarm variables, mounts, annotations, CDI names, and their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.errors import RequestDenied, RequestError
from agent.policy import EnvRequests, Policy
from agent.request import read_spec
from agent.tokens import parse_devices, parse_names
from tests.request_specs import BELOW, POD_NAMESPACE, UUID, asked, read, spec

OPEN = Policy(
    swarm_resources=("DOCKER_RESOURCE_GPU", "DOCKER_RESOURCE_NVIDIA-GPU"),
    accept_volume_mounts=True,
    annotation_prefixes=("cdi.k8s.io/",),
)
STRICT = replace(OPEN, env_requests=EnvRequests.PRIVILEGED)
CDI = "cdi.k8s.io/nvidia-device-plugin_1"
ALL = "NVIDIA_VISIBLE_DEVICES=all"


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("nvidia.com/gpu=0", ("0",)),
        ("nvidia.com/gpu=all", ("all",)),
        ("nvidia.com/gpu=none", ()),
        (f"nvidia.com/gpu=GPU-{UUID}", (f"GPU-{UUID}",)),
        (f"nvidia.com/gpu=MIG-{UUID}", (f"MIG-{UUID}",)),
        ("nvidia.com/gpu=0:1", ("0:1",)),
        ("nvidia.com/gpu=gpu0", ("0",)),
        ("nvidia.com/gpu=mig1:2", ("1:2",)),
        ("nvidia.com/gpu=0000:3B:00.0", ("0000:3b:00.0",)),
        ("runtime.nvidia.com/gpu=3", ("3",)),
        ("runtime.nvidia.com/gpu=all", ("all",)),
        ("nvidia.com/gpu=0, nvidia.com/gpu=1", ("0", "1")),
        ("nvidia.com/gpu=0,1,runtime.nvidia.com/gpu=gpu0", ("0", "1")),
        ("nvidia.com/gpu=1,nvidia.com/gpu=all", ("all",)),
        ("void,nvidia.com/gpu=0", None),
    ],
)
def test_cdi_names(value: str, devices: tuple[str, ...] | None) -> None:
    """A qualified name means what its last part means, and mixes with plain names."""
    assert parse_devices(value) == devices


@pytest.mark.parametrize(
    "value",
    [
        *("nvidia.com/gpu=", "nvidia.com/gpu=void", "nvidia.com/gpu=x", "nvidia.com/gpu", "gpu0"),
        *("nvidia.com/net=0", "vendor.com/gpu=0", "Nvidia.com/gpu=0", "nvidia.com/gpu=/dev/x"),
        *("k8s.gpu.nvidia.com/claim=a-b", "nvidia.com/gpu=../0", "=0", "/=0", "mig0:1"),
    ],
)
def test_bad_cdi_names(value: str) -> None:
    """A name of another kind, or without a device, is named with what was expected."""
    with pytest.raises(RequestError, match="request: NVIDIA_VISIBLE_DEVICES="):
        parse_devices(value)


def test_too_long_list() -> None:
    """A list longer than any host's is refused before it is taken apart."""
    with pytest.raises(RequestError, match="'65537 characters': expected at most 65536"):
        parse_devices("0" * 65537)


@pytest.mark.parametrize(
    ("env", "devices", "source"),
    [
        (("DOCKER_RESOURCE_GPU=1",), ("1",), "DOCKER_RESOURCE_GPU"),
        (("DOCKER_RESOURCE_GPU=1", ALL), ("1",), "DOCKER_RESOURCE_GPU"),
        (("DOCKER_RESOURCE_NVIDIA-GPU=1,2", ALL), ("1", "2"), "DOCKER_RESOURCE_NVIDIA-GPU"),
        (
            ("DOCKER_RESOURCE_NVIDIA-GPU=2", "DOCKER_RESOURCE_GPU=1,0"),
            ("1", "0", "2"),
            "DOCKER_RESOURCE_GPU, DOCKER_RESOURCE_NVIDIA-GPU",
        ),
        (("DOCKER_RESOURCE_OTHER=1", ALL), ("all",), "NVIDIA_VISIBLE_DEVICES"),
    ],
)
def test_swarm_variables(env: tuple[str, ...], devices: tuple[str, ...], source: str) -> None:
    """Configured variables that are set are joined, and take the usual variable's place."""
    made = asked(read(OPEN, *env))
    assert (made.devices, made.source) == (devices, source)


def test_empty_swarm_variable_asks_for_nothing() -> None:
    """A scheduler that gives nothing is obeyed, whatever the image would take."""
    got = read(OPEN, "DOCKER_RESOURCE_GPU=", ALL)
    assert got.request is None
    assert got.why == "not a GPU container: DOCKER_RESOURCE_GPU is empty or contains void"


def test_swarm_variables_need_the_config() -> None:
    """Without the setting such a variable is one like any other."""
    assert read(Policy(), "DOCKER_RESOURCE_GPU=1").request is None
    with pytest.raises(RequestError, match="request: DOCKER_RESOURCE_GPU='x'"):
        read(OPEN, "DOCKER_RESOURCE_GPU=x")


@pytest.mark.parametrize(
    ("mounts", "devices", "channels"),
    [
        ((f"{BELOW}/all",), ("all",), ()),
        ((f"{BELOW}/0", f"{BELOW}/GPU-{UUID}"), ("0", f"GPU-{UUID}"), ()),
        ((f"{BELOW}/MIG-GPU-{UUID}/1/0",), (f"MIG-GPU-{UUID}/1/0",), ()),
        ((f"{BELOW}/0:1/",), ("0:1",), ()),
        ((f"{BELOW}/cdi/nvidia.com/gpu/1",), ("1",), ()),
        ((f"{BELOW}/cdi/nvidia.com/gpu=1",), ("1",), ()),
        ((f"{BELOW}/cdi/runtime.nvidia.com/gpu/all",), ("all",), ()),
        ((f"{BELOW}/0", f"{BELOW}/imex/7", f"{BELOW}/imex/0"), ("0",), (0, 7)),
        ((f"{BELOW}/imex/7",), (), (7,)),
        ((f"{BELOW}/cdi/nvidia.com/imex-channel/3",), (), (3,)),
        ((f"{BELOW}/0", f"{BELOW}/cdi/vendor.com/net/eth0"), ("0",), ()),
        (("/var/run/./nvidia-container-devices//2",), ("2",), ()),
    ],
)
def test_volume_mounts(
    mounts: tuple[str, ...], devices: tuple[str, ...], channels: tuple[int, ...]
) -> None:
    """Each form of a mount's path names its device or channel."""
    made = asked(read(OPEN, mounts=mounts))
    assert (made.devices, made.channels, made.source) == (devices, channels, "mounts")


@pytest.mark.parametrize(
    "path",
    [
        *("x", "../0", "0/..", "cdi", "cdi/nvidia.com", "cdi/nvidia.com/gpu", "cdi/a/b/c/d"),
        *("imex", "imex/x", "imex/1048576", "imex/-1", "imex/1/2", "cdi/nvidia.com/gpu/x"),
        "cdi/nvidia.com/net/0",
    ],
)
def test_bad_volume_mounts(path: str) -> None:
    """A mount there that names nothing is refused with its value; it is never ignored."""
    with pytest.raises(RequestError, match="request: mounts="):
        read(OPEN, mounts=[f"{BELOW}/{path}"])


@pytest.mark.parametrize("at", [BELOW, f"{BELOW}/", "/var/run/nvidia", "/run/x/0", f"/x{BELOW}/0"])
def test_other_mounts_are_no_requests(at: str) -> None:
    """A mount of /dev/null elsewhere, or on the directory itself, asks for nothing."""
    assert read(OPEN, mounts=[at]).request is None


def test_only_mounts_of_dev_null_are_requests() -> None:
    """A mount of anything else there is the image's or the user's own business."""
    other = spec(mounts=[f"{BELOW}/0"]).replace(b"/dev/null", b"/dev/zero")
    assert read_spec(other, OPEN).request is None


def test_volume_mounts_need_the_config() -> None:
    """Without the setting a mount is no request."""
    assert read(Policy(), mounts=[f"{BELOW}/all"]).request is None


@pytest.mark.parametrize(
    ("annotations", "devices", "channels"),
    [
        ({CDI: "nvidia.com/gpu=0"}, ("0",), ()),
        ({CDI: "nvidia.com/gpu=1, nvidia.com/gpu=0"}, ("1", "0"), ()),
        ({"cdi.k8s.io/b": "nvidia.com/gpu=0", "cdi.k8s.io/a": "nvidia.com/gpu=1"}, ("1", "0"), ()),
        ({CDI: "vendor.com/net=eth0,nvidia.com/gpu=0"}, ("0",), ()),
        ({CDI: "k8s.gpu.nvidia.com/claim=u-0,nvidia.com/gpu=gpu1"}, ("1",), ()),
        ({CDI: "nvidia.com/gpu=0,nvidia.com/imex-channel=5"}, ("0",), (5,)),
        ({CDI: "nvidia.com/imex-channel=5"}, (), (5,)),
    ],
)
def test_annotations(
    annotations: dict[str, str], devices: tuple[str, ...], channels: tuple[int, ...]
) -> None:
    """NVIDIA's CDI names in allowed annotations ask, in the order of the keys."""
    made = asked(read(OPEN, annotations=annotations))
    assert (made.devices, made.channels, made.source) == (devices, channels, "annotations")


@pytest.mark.parametrize(
    "annotations",
    [
        {CDI: ""},
        {CDI: "vendor.com/net=eth0"},
        {"x.cdi.k8s.io/a": "nvidia.com/gpu=0"},
        {"cdi.k8s.io.x/a": "nvidia.com/gpu=0"},
        {"nvidia.cdi.k8s.io": "nvidia.com/gpu=0"},
    ],
)
def test_annotations_that_ask_for_nothing(annotations: dict[str, str]) -> None:
    """Other keys, other vendors and empty values are no request."""
    assert read(OPEN, annotations=annotations).request is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", "expected names such as nvidia.com/gpu=0"),
        ("all", "expected names such as nvidia.com/gpu=0"),
        ("/dev/nvidia0", "expected names such as nvidia.com/gpu=0"),
        ("nvidia.com/gpu=x", "expected all, none, void"),
        ("nvidia.com/gds=all", "expected a name of nvidia.com/gpu"),
        ("nvidia.com/gpu=0," * 300, "expected at most 4096"),
    ],
)
def test_bad_annotations(value: str, expected: str) -> None:
    """An allowed annotation holds CDI names and nothing else, and not without end."""
    with pytest.raises(RequestError, match=expected):
        read(OPEN, annotations={CDI: value})


def test_annotations_are_no_requests_by_default() -> None:
    """Whoever writes a pod can annotate it: without the setting an annotation grants nothing."""
    got = read(Policy(), annotations={CDI: "nvidia.com/gpu=all"})
    assert got.request is None


def test_annotations_that_are_served_already() -> None:
    """After CDI the environment says void, and nothing is given twice."""
    got = read(OPEN, ALL, "NVIDIA_VISIBLE_DEVICES=void", annotations={CDI: "nvidia.com/gpu=0"})
    assert got.request is None
    assert got.why == (
        "not a GPU container: NVIDIA_VISIBLE_DEVICES is void: the annotations are served already"
    )


@pytest.mark.parametrize(
    ("annotations", "mounts", "env", "devices", "source"),
    [
        ({CDI: "nvidia.com/gpu=0"}, (f"{BELOW}/1",), (ALL,), ("0",), "annotations"),
        ({}, (f"{BELOW}/1",), (ALL, "DOCKER_RESOURCE_GPU=2"), ("1",), "mounts"),
        ({}, (), (ALL, "DOCKER_RESOURCE_GPU=2"), ("2",), "DOCKER_RESOURCE_GPU"),
        ({}, (), (ALL,), ("all",), "NVIDIA_VISIBLE_DEVICES"),
        ({}, (f"{BELOW}/imex/1",), (ALL,), ("all",), "NVIDIA_VISIBLE_DEVICES"),
        ({CDI: "nvidia.com/imex-channel=1"}, (), (ALL,), ("all",), "NVIDIA_VISIBLE_DEVICES"),
    ],
)
def test_precedence(
    annotations: dict[str, str],
    mounts: tuple[str, ...],
    env: tuple[str, ...],
    devices: tuple[str, ...],
    source: str,
) -> None:
    """Annotations before mounts before variables; whoever names devices first counts alone."""
    made = asked(read(OPEN, *env, annotations=annotations, mounts=mounts))
    assert (made.devices, made.source) == (devices, source)


# Who asks, by: image environment, the pod's own environment, the orchestrator's list, privilege.
# What is granted where everybody's environment counts, and where only a privileged one's does.
@pytest.mark.parametrize(
    ("image", "pod", "device", "privileged", "anybody", "strict"),
    [
        (None, None, None, False, None, None),
        ("all", None, None, False, ("all",), None),
        ("all", None, None, True, ("all",), ("all",)),
        ("all", "1", None, False, ("1",), None),
        ("all", "1", None, True, ("1",), ("1",)),
        ("all", "void", None, True, None, None),
        ("all", "none", None, False, (), None),
        (None, "all", None, False, ("all",), None),
        (None, None, "2", False, ("2",), ("2",)),
        ("all", None, "2", False, ("2",), ("2",)),
        ("all", "1", "2", False, ("2",), ("2",)),
        ("all", "void", "2", True, ("2",), ("2",)),
    ],
)
def test_who_gets_what(
    image: str | None,
    pod: str | None,
    device: str | None,
    privileged: bool,
    anybody: tuple[str, ...] | None,
    strict: tuple[str, ...] | None,
) -> None:
    """An image that asks for every GPU by itself gets what the node's policy lets it (B145)."""
    env = [f"NVIDIA_VISIBLE_DEVICES={value}" for value in (image, pod) if value is not None]
    mounts = [f"{BELOW}/{device}"] if device else []
    for policy, expected in ((OPEN, anybody), (STRICT, strict)):
        request = read(policy, *env, mounts=mounts, privileged=privileged).request
        assert (request.devices if request else None) == expected


def test_void_mount_ends_the_search() -> None:
    """A mount that says void is an answer, and what the image would take does not matter."""
    got = read(OPEN, ALL, mounts=[f"{BELOW}/void"])
    assert got.request is None
    assert got.why == "not a GPU container: mounts contain void"


def test_trusted_sources_need_no_privilege() -> None:
    """Mounts and annotations count where the environment does not, and it may still narrow."""
    env = (ALL, "NVIDIA_DRIVER_CAPABILITIES=utility", "NVIDIA_GDS=enabled")
    by_mount = asked(read(STRICT, *env, mounts=[f"{BELOW}/1"]))
    by_annotation = asked(read(STRICT, *env, annotations={CDI: "nvidia.com/gpu=1"}))
    assert by_mount == by_annotation
    assert by_mount.devices == ("1",)
    assert by_mount.capabilities == ("utility",)
    assert by_mount.features == ()
    assert read(STRICT, *env).request is None


def test_equal_requests_from_every_source() -> None:
    """Whichever way a GPU is asked for, the plan is one and the same."""
    ways = (
        read(OPEN, "NVIDIA_VISIBLE_DEVICES=0"),
        read(OPEN, "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=gpu0"),
        read(OPEN, "DOCKER_RESOURCE_GPU=0"),
        read(OPEN, mounts=[f"{BELOW}/0"]),
        read(OPEN, annotations={CDI: "runtime.nvidia.com/gpu=0"}),
    )
    assert len({asked(way) for way in ways}) == 1


@pytest.mark.parametrize(
    ("namespace", "pod", "counts"),
    [
        *(("k8s.io", "ml", True), ("k8s.io", "web", False), ("moby", None, True)),
        *(("default", None, False), ("ml", None, False), ("moby", "web", True)),
    ],
)
def test_namespaces_that_may_ask(namespace: str, pod: str | None, counts: bool) -> None:
    """With lists the environment counts in those namespaces, and is ignored in the others."""
    policy = replace(
        Policy(EnvRequests.PRIVILEGED),
        env_containerd_namespaces=("moby",),
        env_pod_namespaces=("ml",),
    )
    annotations = {POD_NAMESPACE: pod} if pod else {}
    got = read(policy, ALL, annotations=annotations, namespace=namespace)
    assert (got.request is not None) == counts
    assert counts or "its namespace is not listed in policy" in got.why


def test_unknown_namespace_refuses_only_who_asks() -> None:
    """Not knowing the namespace matters for a container that asks by environment, else not."""
    policy = Policy(EnvRequests.PRIVILEGED, env_containerd_namespaces=("moby",))
    with pytest.raises(RequestDenied, match="its namespace is not known yet"):
        read(policy, ALL)
    assert read(policy).request is None
    assert asked(read(policy, ALL, privileged=True)).devices == ("all",)


def test_names_of_channels_and_devices_are_apart() -> None:
    """One list of CDI names may have both kinds."""
    named = parse_names(["nvidia.com/gpu=1", "nvidia.com/imex-channel=007"], "X")
    assert (named.devices, named.channels) == (("1",), (7,))
