"""Specs for the tests of requests: one container with an environment, mounts and annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from agent.policy import Policy
from agent.request import Reading, Request, read_spec

UUID = "11111111-2222-3333-4444-5555aaaabbbb"
BELOW = "/var/run/nvidia-container-devices"
POD_NAMESPACE = "io.kubernetes.cri.sandbox-namespace"


def spec(
    *env: str,
    mounts: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
    privileged: bool = False,
) -> bytes:
    """A spec; `mounts` are destinations of mounts of /dev/null."""
    document = {
        "ociVersion": "1.0.2",
        "process": {
            "env": ["PATH=/bin", *env],
            "capabilities": {"bounding": ["CAP_SYS_ADMIN"] if privileged else []},
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            *({"destination": at, "source": "/dev/null", "options": ["bind"]} for at in mounts),
        ],
        "annotations": dict(annotations or {}),
        "linux": {"namespaces": [{"type": "mount"}]},
    }
    return json.dumps(document).encode()


def read(
    policy: Policy,
    *env: str,
    mounts: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
    privileged: bool = False,
    namespace: str | None = None,
) -> Reading:
    """The reading of such a spec."""
    made = spec(*env, mounts=mounts, annotations=annotations, privileged=privileged)
    return read_spec(made, policy, namespace)


def asked(reading: Reading) -> Request:
    """Its request; there must be one."""
    assert reading.request is not None, reading.why
    return reading.request
