"""What a container asks for: tables of variable values, and specs that nobody should write."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import spec as oci
from agent import tokens
from agent.errors import AgentError, RequestDenied, RequestError
from agent.policy import EnvRequests, Policy
from agent.request import Capability, Reading, Request, implied, parse_devices, read_spec

UUID = "11111111-2222-3333-4444-5555aaaabbbb"
DEFAULT = (Capability.COMPUTE, Capability.UTILITY)
EVERYTHING = tuple(sorted(Capability))


def spec(*env: str, **parts: object) -> bytes:
    """A spec with this environment; `parts` replace its top-level parts."""
    document: dict[str, object] = {
        "ociVersion": "1.0.2",
        "process": {"env": ["PATH=/bin", *env], "capabilities": {"bounding": ["CAP_KILL"]}},
        "root": {"path": "rootfs"},
        "linux": {"namespaces": [{"type": "mount"}]},
    }
    return json.dumps({**document, **parts}).encode()


def read(*env: str, policy: Policy | None = None, **parts: object) -> Reading:
    return read_spec(spec(*env, **parts), policy or Policy())


def request(*env: str) -> Request:
    made = read(*env).request
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("all", ("all",)),
        ("ALL", ("all",)),
        ("none", ()),
        ("None", ()),
        ("0", ("0",)),
        ("00", ("0",)),
        ("0,2", ("0", "2")),
        (" 2 , 0 ,", ("2", "0")),
        ("2,0,2,02", ("2", "0")),
        ("all,none", ("all",)),
        ("none,all", ()),
        ("1,none", ()),
        ("1,all", ("all",)),
        (f"GPU-{UUID}", (f"GPU-{UUID}",)),
        (f"gpu-{UUID.upper()}", (f"GPU-{UUID}",)),
        (f"MIG-{UUID}", (f"MIG-{UUID}",)),
        (f"mig-{UUID.upper()}", (f"MIG-{UUID}",)),
        (f"MIG-GPU-{UUID}/01/0", (f"MIG-GPU-{UUID}/1/0",)),
        ("0:1", ("0:1",)),
        ("00:01", ("0:1",)),
        ("0000:3b:00.0", ("0000:3b:00.0",)),
        ("00000000:3B:00.0", ("0000:3b:00.0",)),
        ("3:3b:00.0", ("0003:3b:00.0",)),
        ("10001:3b:00.0", ("10001:3b:00.0",)),
        (f"0,GPU-{UUID},1:0", ("0", f"GPU-{UUID}", "1:0")),
    ],
)
def test_visible_devices(value: str, devices: tuple[str, ...]) -> None:
    """Every form of NVIDIA_VISIBLE_DEVICES gives its tokens in order, once, in one spelling."""
    expected = Request(devices, DEFAULT, "NVIDIA_VISIBLE_DEVICES")
    assert request(f"NVIDIA_VISIBLE_DEVICES={value}") == expected


@pytest.mark.parametrize("value", ["", " ", ",", " , ", "void", "VOID", "0,void", "void,all"])
def test_no_request(value: str) -> None:
    """Empty, and void anywhere in the list, is a container like any other."""
    assert parse_devices(value) is None
    got = read(f"NVIDIA_VISIBLE_DEVICES={value}")
    assert got.request is None
    assert got.why == "not a GPU container: NVIDIA_VISIBLE_DEVICES is empty or contains void"


def test_unset_is_no_request() -> None:
    """Without the variable a container asks for nothing, whatever else is set."""
    got = read("NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99")
    assert got.request is None
    assert got.why == "not a GPU container: NVIDIA_VISIBLE_DEVICES is not set"


@pytest.mark.parametrize(
    "value",
    [
        *("gpu0", "-1", "1.0", "0-3", "0;1", "999999", "GPU-", f"GPU-{UUID[:-1]}", "GPU-1111"),
        *(f"GPU-{UUID}x", f"MIG-{UUID}/1/0", f"MIG-GPU-{UUID}", f"MIG-GPU-{UUID}/1", "0:", ":1"),
        *("0:1:2", "3b:00.0", "0000:3b:00.8", "/dev/nvidia0", "nvidia.com/net=0", "\u0661", "0 1"),
        *("0\n1", "../0"),
    ],
)
def test_bad_device_token(value: str) -> None:
    """A token of no known form is named with the forms there are; it is never ignored."""
    with pytest.raises(RequestError) as caught:
        parse_devices(f"0,{value}")
    assert str(caught.value).startswith("request: NVIDIA_VISIBLE_DEVICES=")
    assert "GPU-<uuid>" in str(caught.value) or "nvidia.com/gpu" in str(caught.value)


def test_too_many_devices() -> None:
    """A list that no host could satisfy is refused before anybody plans for it."""
    many = ",".join(str(n) for n in range(tokens.DEVICES_LIMIT + 1))
    with pytest.raises(RequestError, match="at most 1024"):
        parse_devices(many)


def test_last_value_wins() -> None:
    """The orchestrator's value comes after the image's and counts, also when it takes away."""
    image = "NVIDIA_VISIBLE_DEVICES=all"
    assert request(image, f"NVIDIA_VISIBLE_DEVICES=GPU-{UUID}").devices == (f"GPU-{UUID}",)
    assert read(image, "NVIDIA_VISIBLE_DEVICES=void").request is None
    assert read(image, "NVIDIA_VISIBLE_DEVICES=").request is None


@pytest.mark.parametrize(
    ("value", "capabilities"),
    [
        ("", DEFAULT),
        (" , ", DEFAULT),
        ("utility", (Capability.UTILITY,)),
        ("utility,compute,utility", DEFAULT),
        (" video , compute ", (Capability.COMPUTE, Capability.VIDEO)),
        ("all", EVERYTHING),
        ("compute,all", EVERYTHING),
        (",".join(Capability), EVERYTHING),
    ],
)
def test_driver_capabilities(value: str, capabilities: tuple[Capability, ...]) -> None:
    """Every form of NVIDIA_DRIVER_CAPABILITIES, sorted so that equal requests are equal."""
    made = request("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={value}")
    assert made.capabilities == capabilities


@pytest.mark.parametrize("value", ["gpu", "compute,cuda", "all,cuda", "Compute", "compute utility"])
def test_unknown_capability(value: str) -> None:
    """A word that is no capability is named together with what exists."""
    with pytest.raises(RequestError) as caught:
        read("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={value}")
    assert "NVIDIA_DRIVER_CAPABILITIES=" in str(caught.value)
    assert "compute, utility, video" in str(caught.value)


def test_capabilities_without_devices_are_not_looked_at() -> None:
    """A plain container starts even with capabilities that mean nothing."""
    assert read("NVIDIA_DRIVER_CAPABILITIES=nonsense").request is None


@pytest.mark.parametrize(
    ("env", "devices", "capabilities", "source"),
    [
        (("CUDA_VERSION=8.0",), ("all",), EVERYTHING, "CUDA_VERSION"),
        (("CUDA_VERSION=8.0", "NVIDIA_REQUIRE_CUDA="), ("all",), EVERYTHING, "CUDA_VERSION"),
        (
            ("CUDA_VERSION=8.0", "NVIDIA_DRIVER_CAPABILITIES=utility"),
            ("all",),
            (Capability.UTILITY,),
            "CUDA_VERSION",
        ),
        (
            ("CUDA_VERSION=8.0", "NVIDIA_DRIVER_CAPABILITIES="),
            ("all",),
            DEFAULT,
            "CUDA_VERSION",
        ),
        (
            ("CUDA_VERSION=8.0", "NVIDIA_VISIBLE_DEVICES=1"),
            ("1",),
            EVERYTHING,
            "NVIDIA_VISIBLE_DEVICES",
        ),
        (
            ("CUDA_VERSION=12", "NVIDIA_REQUIRE_CUDA=cuda>=12", "NVIDIA_VISIBLE_DEVICES=1"),
            ("1",),
            DEFAULT,
            "NVIDIA_VISIBLE_DEVICES",
        ),
    ],
)
def test_legacy_images(
    env: tuple[str, ...],
    devices: tuple[str, ...],
    capabilities: tuple[Capability, ...],
    source: str,
) -> None:
    """An image from before the requirement variables gets everything it does not narrow."""
    made = request(*env)
    assert (made.devices, made.capabilities, made.source) == (devices, capabilities, source)


def test_source_does_not_split_plans() -> None:
    """A legacy image and a variable that ask for the same share one plan."""
    named = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    assert len({request("CUDA_VERSION=8.0"), request(*named)}) == 1


@pytest.mark.parametrize(
    "env",
    [
        ("CUDA_VERSION=",),
        ("CUDA_VERSION=12", "NVIDIA_REQUIRE_CUDA=cuda>=12"),
        ("CUDA_VERSION=8.0", "NVIDIA_VISIBLE_DEVICES="),
        ("CUDA_VERSION=8.0", "NVIDIA_VISIBLE_DEVICES=void"),
    ],
)
def test_not_legacy(env: tuple[str, ...]) -> None:
    """A newer CUDA image, or a legacy one told to take nothing, asks for no GPU."""
    assert read(*env).request is None


def test_why_tells_what_was_asked() -> None:
    """The sentences for `agentctl explain`, for each kind of request."""
    assert read("NVIDIA_VISIBLE_DEVICES=0,1").why == (
        "NVIDIA_VISIBLE_DEVICES asks for 0, 1; capabilities: compute, utility"
    )
    assert "driver files without a GPU" in read("NVIDIA_VISIBLE_DEVICES=none").why
    assert read("CUDA_VERSION=8").why.startswith("legacy image: CUDA_VERSION is set")


def test_implied_capabilities() -> None:
    """Video needs the compute libraries, display the graphics ones; nothing else is added."""
    assert implied([Capability.VIDEO]) == (Capability.COMPUTE, Capability.VIDEO)
    assert implied([Capability.DISPLAY]) == (Capability.DISPLAY, Capability.GRAPHICS)
    for lone in (c for c in Capability if c not in (Capability.VIDEO, Capability.DISPLAY)):
        assert implied([lone]) == (lone,)


SYS_ADMIN = {"env": ["NVIDIA_VISIBLE_DEVICES=0"], "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}
USER_NAMESPACE = {
    "namespaces": [{"type": "user"}],
    "uidMappings": [{"containerID": 0, "hostID": 100000, "size": 65536}],
    "gidMappings": [{"containerID": 0, "hostID": 200000, "size": 65536}],
}


@pytest.mark.parametrize(
    ("parts", "asked"),
    [
        ({"process": SYS_ADMIN}, True),
        ({"process": SYS_ADMIN, "linux": USER_NAMESPACE}, False),
        ({}, False),
        ({"process": {"env": SYS_ADMIN["env"], "capabilities": None}}, False),
        (
            {
                "process": {
                    "env": SYS_ADMIN["env"],
                    "capabilities": {"effective": ["CAP_SYS_ADMIN"]},
                },
                "annotations": {"privileged": "true"},
            },
            False,
        ),
    ],
)
def test_privileged_policy(parts: dict[str, object], asked: bool) -> None:
    """With env_requests=privileged only CAP_SYS_ADMIN in the host's user namespace may ask."""
    policy = Policy(EnvRequests.PRIVILEGED)
    got = read("NVIDIA_VISIBLE_DEVICES=0", policy=policy, **parts)
    assert (got.request is not None) == asked
    if not asked:
        assert got.why == (
            "not a GPU container: NVIDIA_VISIBLE_DEVICES is ignored: the container is not "
            "privileged and policy.env_requests is privileged"
        )


def test_ignored_environment_cannot_fail() -> None:
    """What policy ignores is not read: nonsense there does not keep a container from starting."""
    policy = Policy(EnvRequests.PRIVILEGED)
    assert read("NVIDIA_VISIBLE_DEVICES=nonsense", policy=policy).request is None


def test_supported_capabilities_bound_requests() -> None:
    """The node's bound cuts `all` and the default, and denies a word above it."""
    policy = Policy(supported_capabilities=(Capability.UTILITY, Capability.VIDEO))
    gpu = "NVIDIA_VISIBLE_DEVICES=0"
    default = read(gpu, policy=policy).request
    everything = read(gpu, "NVIDIA_DRIVER_CAPABILITIES=all", policy=policy).request
    assert default is not None
    assert everything is not None
    assert default.capabilities == (Capability.UTILITY,)
    assert everything.capabilities == (Capability.UTILITY, Capability.VIDEO)
    with pytest.raises(RequestDenied, match="NVIDIA_DRIVER_CAPABILITIES=compute"):
        read(gpu, "NVIDIA_DRIVER_CAPABILITIES=compute,video", policy=policy)


def test_owner_of_a_user_namespace() -> None:
    """The owner is the host id of the container's id 0, wherever that mapping stands."""
    linux = {
        **USER_NAMESPACE,
        "gidMappings": [
            {"containerID": 1, "hostID": 5, "size": 10},
            {"containerID": 0, "hostID": 7, "size": 1},
        ],
    }
    assert read("NVIDIA_VISIBLE_DEVICES=0", linux=linux).owner == (100000, 7)


def test_mappings_without_a_user_namespace_mean_nothing() -> None:
    """Without a user namespace root is root."""
    linux = {**USER_NAMESPACE, "namespaces": [{"type": "mount"}]}
    assert read("NVIDIA_VISIBLE_DEVICES=0", linux=linux).owner == (0, 0)


@pytest.mark.parametrize(
    "mapping",
    [
        *([], [{"containerID": 1, "hostID": 1, "size": 1}]),
        *([{"containerID": 0, "hostID": 2**32, "size": 1}], [{"hostID": -1, "size": 1}]),
        *([{"hostID": True, "size": 1}], [{"hostID": "0", "size": 1}], [3], {"hostID": 0}),
        [{"hostID": 5, "size": 0}],
    ],
)
def test_user_namespace_without_root(mapping: object) -> None:
    """A GPU container whose root user has no host id is refused; a plain one is left alone."""
    linux = {**USER_NAMESPACE, "uidMappings": mapping}
    with pytest.raises(RequestError, match=r"linux\.uidMappings"):
        read("NVIDIA_VISIBLE_DEVICES=0", linux=linux)
    assert read(linux=linux).owner == (0, 0)


@pytest.mark.parametrize(
    ("root", "path"),
    [({"path": "rootfs"}, "rootfs"), ({"path": "/a/b", "readonly": True}, "/a/b")],
)
def test_root_is_as_written(root: object, path: str) -> None:
    """root.path is handed on as it stands, relative or not."""
    assert read("NVIDIA_VISIBLE_DEVICES=0", root=root).root == path


@pytest.mark.parametrize("root", [None, {}, [], {"path": ""}, {"path": 3}, {"path": "a\0b"}])
def test_gpu_container_needs_a_root(root: object) -> None:
    """Without a root there is nothing to mount into."""
    with pytest.raises(RequestError, match="root"):
        read("NVIDIA_VISIBLE_DEVICES=0", root=root)


def test_half_a_surrogate_is_no_path() -> None:
    """JSON can write characters that no path can have."""
    with pytest.raises(RequestError, match=r"root\.path"):
        read_spec(spec("NVIDIA_VISIBLE_DEVICES=0", root={"path": "\ud800"}), Policy())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON"),
        (b"{", "expected JSON"),
        (b"null", "expected an object"),
        (b"[]", "expected an object"),
        (b"3", "expected an object"),
        (b"\xff{}", "expected UTF-8"),
        (b'{"a": "\xc3"}', "expected UTF-8"),
        (b'{"a": 1, "a": 2}', "expected every key once"),
        (b'{"process": {"env": [], "env": ["A=1"]}}', "expected every key once"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"a":' * 200_000, "nested too deep"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "number too long"),
        (b'{"process": []}', "request: process='list': expected an object"),
        (b'{"process": {"env": {}}}', "request: process.env='dict': expected a list"),
        (b'{"process": {"env": [3]}}', "request: process.env='int': expected a list of strings"),
        (b" " * (oci.SPEC_LIMIT + 1), "expected at most 16777216 bytes"),
    ],
)
def test_malformed_spec(content: bytes, message: str) -> None:
    """Each kind of broken spec is one clear error and quotes none of the spec."""
    with pytest.raises(RequestError) as caught:
        read_spec(content, Policy())
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


def test_many_keys_with_one_twice() -> None:
    """Finding the key that stands twice does not take time with the square of the keys."""
    keys = ",".join(f'"{n}": 0' for n in range(200_000))
    with pytest.raises(RequestError, match="request: spec='199999'"):
        read_spec(f'{{{keys}, "199999": 1}}'.encode(), Policy())


def test_errors_hold_nothing_of_the_environment() -> None:
    """A message reaches tenants: it has the wrong value, cut, and no other variable."""
    with pytest.raises(RequestError) as caught:
        read("SECRET=swordfish", "NVIDIA_VISIBLE_DEVICES=\x1b[31m" + "x" * 5000)
    assert "swordfish" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_entries_without_a_value_are_no_variables() -> None:
    """An environment entry without `=` sets nothing."""
    assert read("NVIDIA_VISIBLE_DEVICES").request is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
env_entries = st.tuples(
    st.sampled_from(["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VERSION"]),
    st.text() | st.sampled_from(["all", "none", "void", "0,1", f"GPU-{UUID}", "0:1", "compute"]),
).map("=".join)


@given(
    st.lists(env_entries, max_size=4),
    st.dictionaries(st.sampled_from(["root", "linux", "process"]), json_values),
)
def test_any_spec_is_read_or_refused(env: list[str], parts: dict[str, object]) -> None:
    """Whatever a spec holds, the answer is a reading or one of our errors."""
    try:
        sentence = read_spec(spec(*env, **parts), Policy()).why
    except AgentError as e:
        sentence = str(e)
    assert sentence.isprintable()


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """No byte string makes the reader fail in another way than by RequestError."""
    try:
        sentence = read_spec(content, Policy()).why
    except RequestError as e:
        sentence = str(e)
    assert sentence.startswith(("request: ", "not a GPU container: "))


@given(st.text(alphabet="0123456789abcdefGPUMIGpumig-:/., alnoevdi", max_size=60))
def test_tokens_are_in_their_last_spelling(value: str) -> None:
    """A parsed request parses to itself, so plans are shared whichever spelling was used."""
    try:
        tokens = parse_devices(value)
    except RequestError:
        return
    if tokens:
        assert parse_devices(",".join(tokens)) == tokens


def test_volumes_are_host_paths_that_are_bound() -> None:
    """By type or by option; a tmpfs of the container's own, and half a path, are none."""
    mounts = [
        {"destination": "/a", "type": "bind", "source": "/b"},
        {"destination": "/c", "type": "none", "source": "/a", "options": ["rbind", "ro"]},
        {"destination": "/d", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        {"destination": "/e", "type": "bind", "source": "relative"},
        {"destination": "/f", "type": "bind", "source": "/\ud800"},
        {"destination": "/g", "type": "bind"},
    ]
    content = json.dumps({"mounts": mounts}).encode()
    assert oci.volumes(oci.parse(content)) == ("/a", "/b")
