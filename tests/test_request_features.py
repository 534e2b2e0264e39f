"""What a container asks for besides GPUs, and does without: from variables to steps of plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent import planner
from agent.errors import MissingNode, RequestDenied, RequestError
from agent.facts.values import DataFact, IpcFact, MigManagement
from agent.features import Feature, OptOut, parse_imex, parse_opt_out
from agent.inventory import build
from agent.plan import BindFile, BindIpc, BindNode, BindProcGpu, DeviceRule, MaskProc, Plan
from agent.planner import ProcPaths
from agent.policy import EnvRequests, Policy
from agent.request import Request, ask
from tests import fact_values as fv
from tests.request_specs import BELOW, UUID, asked, read

GPU = "NVIDIA_VISIBLE_DEVICES=0"
OPT_OUT = "gpu-agent/opt-out"
TOLERANT = Policy(annotation_prefixes=("gpu-agent/",))
NODES = (
    fv.node("/dev/nvidia-fs0", 500, 0),
    fv.node("/dev/nvidia-fs15", 500, 15),
    fv.node("/dev/gdrdrv", 501, 0),
    fv.node("/dev/nvidia-nvswitchctl", 502, 255),
    fv.node("/dev/nvidia-nvswitch0", 502, 0),
    fv.node("/dev/infiniband/uverbs0", 231, 192),
    fv.node("/dev/infiniband/rdma_cm", 10, 60),
    fv.node("/dev/nvidia-caps/nvidia-cap1", fv.CAPS_MAJOR, 1),
    fv.node("/dev/nvidia-caps/nvidia-cap2", fv.CAPS_MAJOR, 2),
    fv.node("/dev/nvidia-caps/nvidia-cap12", fv.CAPS_MAJOR, 12),
    fv.node("/dev/nvidia-caps-imex-channels/channel0", 503, 0),
    fv.node("/dev/nvidia-caps-imex-channels/channel10", 503, 10),
    fv.node("/dev/nvidia-nvlink", 504, 0),
)
MAJORS = (
    *fv.DRIVER.majors,
    ("nvidia-caps-imex-channels", 503),
    ("nvidia-nvswitch", 502),
)
FACTS = replace(
    fv.HOST,
    driver=replace(fv.DRIVER, majors=MAJORS),
    nodes=(*fv.HOST.nodes, *NODES),
    firmware=(DataFact("/lib/firmware/nvidia/550/gsp_ga10x.bin", fv.file("/lib/firmware/a")),),
    ipc=(IpcFact("/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket", "socket"),),
)
HOST = build(FACTS)
PLAIN = Request(("0",), asked(read(Policy(), GPU)).capabilities, "test")


def planned(request: Request) -> Plan:
    return planner.plan(HOST, request, ProcPaths())


def extra_nodes(request: Request) -> set[str]:
    """The nodes that a request gets and the same one without features does not."""
    with_them, without = (
        {s.node.target for s in planned(r).steps if isinstance(s, BindNode)}
        for r in (request, PLAIN)
    )
    assert without <= with_them
    return with_them - without


@pytest.mark.parametrize(
    ("variable", "feature", "nodes"),
    [
        ("NVIDIA_GDS", Feature.GDS, {"/dev/nvidia-fs0", "/dev/nvidia-fs15"}),
        ("NVIDIA_GDRCOPY", Feature.GDRCOPY, {"/dev/gdrdrv"}),
        (
            "NVIDIA_NVSWITCH",
            Feature.NVSWITCH,
            {"/dev/nvidia-nvswitchctl", "/dev/nvidia-nvswitch0"},
        ),
        ("NVIDIA_MOFED", Feature.MOFED, {"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}),
    ],
)
def test_enabled_features(variable: str, feature: Feature, nodes: set[str]) -> None:
    """Each variable brings the nodes of its driver, and nothing of another one."""
    made = asked(read(Policy(), GPU, f"{variable}=enabled"))
    assert made.features == (feature,)
    assert extra_nodes(made) == nodes


@pytest.mark.parametrize("value", ["", " ", "disabled"])
def test_features_that_are_not_asked_for(value: str) -> None:
    """Nothing and `disabled` ask for nothing."""
    assert asked(read(Policy(), GPU, f"NVIDIA_GDS={value}")) == PLAIN


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        *(("NVIDIA_GDS", v, "enabled, or nothing") for v in ("1", "true", "Enabled", "all")),
        ("NVIDIA_MOFED", "enabled,disabled", "enabled, or nothing"),
        ("NVIDIA_MIG_CONFIG_DEVICES", "0", "all, or nothing"),
        ("NVIDIA_MIG_MONITOR_DEVICES", "enabled", "all, or nothing"),
    ],
)
def test_features_with_another_value(variable: str, value: str, expected: str) -> None:
    """A value without meaning is named with the one that there is."""
    with pytest.raises(RequestError) as caught:
        read(Policy(), GPU, f"{variable}={value}", privileged=True)
    assert str(caught.value) == f"request: {variable}={value!r}: expected {expected}"


def test_features_without_a_gpu_request_are_not_looked_at() -> None:
    """A plain container starts, whatever its image says of features."""
    assert read(Policy(), "NVIDIA_GDS=nonsense", "NVIDIA_IMEX_CHANNELS=x").request is None


def test_feature_that_the_host_has_not() -> None:
    """A feature whose node is missing refuses the container, and says which node that is."""
    bare = build(fv.HOST)
    for name, message in (
        ("NVIDIA_GDS=enabled", "NVIDIA_GDS=enabled: this host has no /dev/nvidia-fs*"),
        ("NVIDIA_MIG_CONFIG_DEVICES=all", "this host has no /dev/nvidia-caps/nvidia-cap1"),
        ("NVIDIA_IMEX_CHANNELS=3", "IMEX channel 3 (NVIDIA_IMEX_CHANNELS): this host has no /dev"),
    ):
        with pytest.raises(MissingNode) as caught:
            planner.plan(bare, asked(read(Policy(), GPU, name, privileged=True)), ProcPaths())
        assert str(caught.value).startswith("no such device: ")
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "channels"),
    [
        *(("", ()), ("all", ()), ("0", (0,)), ("1048575", (1048575,)), ("7, 0,7,", (0, 7))),
        ("007", (7,)),
    ],
)
def test_imex_channels(value: str, channels: tuple[int, ...]) -> None:
    """A list of numbers, sorted and each once; `all` alone means none."""
    assert parse_imex({"NVIDIA_IMEX_CHANNELS": value}) == channels


@pytest.mark.parametrize("value", ["1048576", "-1", "x", "0,all", "1.0", "0-3", "\u0661", "0x1"])
def test_bad_imex_channels(value: str) -> None:
    """What is no channel is named; `all` beside a number contradicts it."""
    with pytest.raises(RequestError, match="expected IMEX channels from 0 to 1048575"):
        parse_imex({"NVIDIA_IMEX_CHANNELS": value})


def test_too_many_imex_channels() -> None:
    """A list that no container needs is refused before anybody plans for it."""
    many = ",".join(map(str, range(1025)))
    with pytest.raises(RequestError, match="'1025 channels': expected at most 1024"):
        parse_imex({"NVIDIA_IMEX_CHANNELS": many})


def test_imex_channel_nodes() -> None:
    """Each channel brings its own node and rule, and no other channel's."""
    made = asked(read(Policy(), GPU, "NVIDIA_IMEX_CHANNELS=10"))
    assert extra_nodes(made) == {"/dev/nvidia-caps-imex-channels/channel10"}
    assert DeviceRule(503, 10) in planned(made).steps
    assert DeviceRule(503, 0) not in planned(made).steps


def test_ignored_imex_channels() -> None:
    """A node may ignore requests for channels, whoever asks and whatever the value."""
    policy = Policy(ignore_imex_channels=True, accept_volume_mounts=True)
    assert asked(read(policy, GPU, "NVIDIA_IMEX_CHANNELS=x")) == PLAIN
    assert asked(read(policy, mounts=[f"{BELOW}/0", f"{BELOW}/imex/1"])) == PLAIN


@pytest.mark.parametrize(
    ("variable", "node"),
    [("NVIDIA_MIG_CONFIG_DEVICES", "1"), ("NVIDIA_MIG_MONITOR_DEVICES", "2")],
)
def test_mig_management(variable: str, node: str) -> None:
    """A privileged container gets the one capability node, and the driver's list of them."""
    made = asked(read(Policy(), GPU, f"{variable}=all", privileged=True))
    assert extra_nodes(made) == {f"/dev/nvidia-caps/nvidia-cap{node}"}
    shown = [s.name for s in planned(made).steps if isinstance(s, BindProcGpu)]
    assert shown == [f"gpus/{fv.BUS_IDS[0]}", "capabilities"]


def test_mig_management_by_its_number_on_this_host() -> None:
    """The driver's table says which node it is, not a fixed number."""
    caps = tuple(fv.node(f"/dev/nvidia-caps/nvidia-cap{n}", fv.CAPS_MAJOR, n) for n in (1, 9))
    rights = (MigManagement("config", 9, 0o400),)
    facts = replace(fv.HOST, nodes=(*fv.NODES, *caps), mig_management=rights)
    made = asked(read(Policy(), GPU, "NVIDIA_MIG_CONFIG_DEVICES=all", privileged=True))
    steps = planner.plan(build(facts), made, ProcPaths()).steps
    nodes = {s.node.target for s in steps if isinstance(s, BindNode)}
    assert {n for n in nodes if "caps" in n} == {"/dev/nvidia-caps/nvidia-cap9"}


@pytest.mark.parametrize("variable", ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"])
def test_mig_management_needs_privilege(variable: str) -> None:
    """Everybody else is refused: MIG belongs to the whole node."""
    with pytest.raises(RequestDenied) as caught:
        read(Policy(), GPU, f"{variable}=all")
    assert str(caught.value) == (f"request denied: {variable}=all: the container is not privileged")


@pytest.mark.parametrize("token", [f"MIG-{UUID}", f"MIG-GPU-{UUID}/1/0", "0:1", "1,0:1"])
def test_mig_management_with_mig_devices(token: str) -> None:
    """Whoever has one instance cannot rearrange the GPU that it is part of."""
    with pytest.raises(RequestDenied, match="it asks for whole GPUs, not for "):
        read(
            Policy(),
            f"NVIDIA_VISIBLE_DEVICES={token}",
            "NVIDIA_MIG_CONFIG_DEVICES=all",
            privileged=True,
        )


def test_features_obey_the_rule_for_the_environment() -> None:
    """Where the environment does not count it brings no feature, and cannot fail either."""
    strict = Policy(EnvRequests.PRIVILEGED, accept_volume_mounts=True)
    env = ("NVIDIA_GDS=nonsense", "NVIDIA_IMEX_CHANNELS=x", "NVIDIA_MIG_CONFIG_DEVICES=all")
    assert asked(read(strict, *env, mounts=[f"{BELOW}/0"])) == PLAIN
    made = asked(
        read(
            strict,
            *("NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=0"),
            mounts=[f"{BELOW}/0"],
            privileged=True,
        )
    )
    assert (made.features, made.channels) == ((Feature.GDS,), (0,))


def test_channels_of_mounts_come_before_those_of_the_environment() -> None:
    """Mounts that name channels count alone."""
    policy = Policy(accept_volume_mounts=True)
    mounts = [f"{BELOW}/imex/10"]
    assert asked(read(policy, GPU, "NVIDIA_IMEX_CHANNELS=0", mounts=mounts)).channels == (10,)


@pytest.mark.parametrize(
    ("value", "opt_out"),
    [
        ("", ()),
        ("sockets", (OptOut.SOCKETS,)),
        ("sockets, firmware,sockets", (OptOut.FIRMWARE, OptOut.SOCKETS)),
        ("proc_mask,application_profile", (OptOut.APPLICATION_PROFILE, OptOut.PROC_MASK)),
    ],
)
def test_opt_out_annotation(value: str, opt_out: tuple[OptOut, ...]) -> None:
    """Where a prefix allows it, one container does without by its annotation."""
    assert asked(read(TOLERANT, GPU, annotations={OPT_OUT: value})).opt_out == opt_out


def test_opt_out_annotation_needs_the_config() -> None:
    """Without the prefix the annotation says nothing, so no tenant can take the cover off."""
    assert asked(read(Policy(), GPU, annotations={OPT_OUT: "proc_mask"})) == PLAIN


@pytest.mark.parametrize("value", ["mask", "Sockets", "sockets firmware", "x" * 300, "/dev"])
def test_bad_opt_out(value: str) -> None:
    """A word that is none is named with those there are, and a long value is not read."""
    with pytest.raises(RequestError, match="request: gpu-agent/opt-out="):
        parse_opt_out(value)


def test_opt_out_of_the_node_is_every_containers() -> None:
    """What the node does without is in every request, also in one without a container."""
    policy = replace(TOLERANT, opt_out=(OptOut.FIRMWARE,))
    made = asked(read(policy, GPU, annotations={OPT_OUT: "sockets"}))
    assert made.opt_out == (OptOut.FIRMWARE, OptOut.SOCKETS)
    plain = ask("0", None, policy, "agentctl")
    assert plain is not None
    assert plain.opt_out == (OptOut.FIRMWARE,)


@pytest.mark.parametrize(
    ("opt_out", "gone"),
    [
        (OptOut.FIRMWARE, {"/lib/firmware/nvidia/550/gsp_ga10x.bin"}),
        (OptOut.SOCKETS, {"/run/nvidia-persistenced/socket"}),
        (OptOut.PROC_MASK, {"/proc/driver/nvidia", f"gpus/{fv.BUS_IDS[0]}"}),
        (OptOut.APPLICATION_PROFILE, set()),
    ],
)
def test_what_opt_outs_take_away(opt_out: OptOut, gone: set[str]) -> None:
    """Each takes its own steps out of the plan and leaves the others as they are."""
    whole = planned(PLAIN).steps
    rest = planned(replace(PLAIN, opt_out=(opt_out,))).steps
    assert set(rest) <= set(whole)
    targets = set()
    for step in set(whole) - set(rest):
        match step:
            case BindFile() | MaskProc():
                targets.add(step.target)
            case BindIpc():
                targets.add(step.ipc.target)
            case BindProcGpu():
                targets.add(step.name)
            case _:
                raise AssertionError(step)
    assert targets == gone


def test_why_tells_of_features_and_opt_outs() -> None:
    """The sentence for `agentctl explain` has everything that changes the plan."""
    env = (GPU, "NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled", "NVIDIA_IMEX_CHANNELS=0")
    assert read(TOLERANT, *env, annotations={OPT_OUT: "sockets"}).why == (
        "NVIDIA_VISIBLE_DEVICES asks for 0; capabilities: compute, utility; "
        "features: gdrcopy, gds; IMEX channels: 0; without: sockets"
    )
