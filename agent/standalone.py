"""Plan one container without the agent: `python -I -m agent.standalone [OPTION ...]`.

    --config=FILE       the agent's config file
    --namespace=NAME    the container's containerd namespace, where the hook can prove it

The hook runs it when no agent answers. The container's spec comes on stdin; the answer on
stdout is `<bytes of entry> <bytes of plan>\\n`, the entry, and the plan. Everything is read off
the host at this moment, so a stale inventory cannot matter; NVML is asked only for a device that
procfs does not name (MIG). So a GPU whose loss only NVML knows is given out here. It stages
nothing: the agent is the stage's only writer.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import anyio

from agent.config import Config, parse
from agent.errors import AgentError, ConfigError, UnknownGpu, Unsatisfied
from agent.host import proc_paths, read_inventory
from agent.inventory import Inventory
from agent.plan import Entry, Plan, digest, encode, encode_entry
from agent.planner import check, plan
from agent.policy import policy_of
from agent.request import Reading, Request, read_spec
from agent.requirement import Requirement

CONFIG = "/etc/gpu-agent/config.toml"
LABEL = "standalone"


def answer(spec: bytes, config: Config, namespace: str | None = None) -> tuple[Entry, Plan | None]:
    """The entry, and the plan if there is one, for a spec on this host now.

    `namespace` None means that the container's containerd namespace is not known.
    """
    try:
        reading = read_spec(spec, policy_of(config.policy), namespace)
    except AgentError as e:
        return Entry("refuse", str(e), "", "", (0, 0), LABEL), None
    if reading.request is None:
        return Entry("none", "", "", reading.root, reading.owner, LABEL), None
    try:
        made = _plan(reading.request, reading.requirements, config)
    except AgentError as e:
        return Entry("refuse", str(e), "", reading.root, reading.owner, LABEL), None
    return _planned(reading, made), made


def load(path: str) -> Config:
    """The config file, or the defaults where there is none. Raises ConfigError."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as e:
        raise ConfigError(path, [(e.strerror or "cannot be read").lower()]) from e
    return parse(content, path)


def main(arguments: list[str]) -> int:
    """Answer on stdout; the exit status is not 0 only if there is no answer."""
    given = {"--config": CONFIG, "--namespace": ""}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name not in given or not equals:
            return 2
        given[name] = value
    spec = sys.stdin.buffer.read()
    try:
        entry, made = answer(spec, load(given["--config"]), given["--namespace"] or None)
    except AgentError as e:
        entry, made = Entry("refuse", str(e), "", "", (0, 0), LABEL), None
    content, body = encode_entry(entry), encode(made) if made else b""
    sys.stdout.buffer.write(b"%d %d\n" % (len(content), len(body)) + content + body)
    return 0


def _plan(request: Request, required: tuple[Requirement, ...], config: Config) -> Plan:
    # `0:1` counts as NVML does, which procfs can only guess.
    if not any(":" in token and "." not in token for token in request.devices):
        try:
            return _checked(request, required, config, nvml=False)
        except (UnknownGpu, Unsatisfied):  # brand and arch are known to NVML alone
            if not config.host.nvml:
                raise
    return _checked(request, required, config, nvml=True)


def _checked(
    request: Request, required: tuple[Requirement, ...], config: Config, *, nvml: bool
) -> Plan:
    inventory = _inventory(config, nvml=nvml)
    check(inventory, request, required)
    return plan(inventory, request, proc_paths(config.host))


def _inventory(config: Config, *, nvml: bool) -> Inventory:
    return anyio.run(partial(read_inventory, config.host, nvml=nvml))


def _planned(reading: Reading, made: Plan) -> Entry:
    name = digest(encode(made))
    where = reading.root, reading.owner
    return Entry("plan", name, made.generation, *where, LABEL, reading.volumes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
