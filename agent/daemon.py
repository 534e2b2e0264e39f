"""agentd: build the parts, run them in one task group, end cleanly. It decides nothing else.

    agentd [--config FILE]

Runs in the foreground and logs to stderr, one line of key=value an event. Ready (sd_notify) when
the host is read, the hook and control sockets answer, and the first plans are staged.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence

import anyio
import anyio.abc

from agent import control, hooksocket, logs, readiness
from agent.answers import Answers
from agent.config import Config
from agent.containerd.stream import watch
from agent.errors import AgentError, StageError
from agent.host import Host, host_roots, proc_paths
from agent.policy import policy_of
from agent.reconcile import Reconciler
from agent.replaylog import ReplayLog
from agent.stage import Stage
from agent.standalone import CONFIG, load
from agent.watch.host import watch_files, watch_proc, watched_directories

# Not __name__: that is no name of the agent's when this module is the program.
log = logging.getLogger("agent.daemon")

REPAIR_S = 2.0
"""How often unfinished work is tried again, and the replay log read."""


async def run(config: Config) -> None:
    """Run the agent until SIGTERM or SIGINT. Raises StageError if it cannot start."""
    stage = Stage(config.agent.run_dir)
    try:
        await _run_with(config, stage)
    finally:
        stage.close()


async def _run_with(config: Config, stage: Stage) -> None:
    addresses = [entry.address for entry in config.containerd]
    host = Host(config.host, makes_nodes=True)
    policy, paths = policy_of(config.policy), proc_paths(config.host)
    reconciler = Reconciler(stage, host, policy, paths, addresses)
    replays = ReplayLog(stage.path)
    async with anyio.create_task_group() as group:
        group.start_soon(_end_on_signal, group.cancel_scope)
        listening = anyio.Event()
        group.start_soon(hooksocket.serve, config.agent.run_dir, reconciler.answer, listening.set)
        for address in addresses:
            group.start_soon(watch, address, reconciler.handle)
        await _watch_host(group, config, reconciler)
        await reconciler.start()
        group.start_soon(reconciler.follow_nvml)
        group.start_soon(_repair, reconciler, replays)
        async with control.serving(config.agent.run_dir, Answers(reconciler, replays)):
            await listening.wait()
            log.info("ready", extra={"pid": os.getpid(), "run_dir": config.agent.run_dir})
            readiness.notify("READY=1")
            await anyio.sleep_forever()


async def _watch_host(group: anyio.abc.TaskGroup, config: Config, reconciler: Reconciler) -> None:
    """Watch before the first reading, so that no change falls between the two."""
    roots = host_roots(config.host)

    def libraries() -> list[str]:
        inventory = reconciler.inventory
        found = inventory.libraries if inventory else ()
        return sorted({library.file.path.rpartition("/")[0] for library in found})

    group.start_soon(watch_files, watched_directories(roots, libraries), reconciler.refresh)
    await group.start(watch_proc, roots.proc_root, reconciler.refresh)


async def _repair(reconciler: Reconciler, replays: ReplayLog) -> None:
    """Publish again what a full directory has not taken; keep up with the replay log."""
    while True:
        await anyio.sleep(REPAIR_S)
        if not reconciler.published:
            reconciler.publish()
        replays.read()
        try:
            reconciler.stage.trim()
        except StageError as e:
            log.error("not cleared up", extra={"error": str(e)})


async def _end_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("ending", extra={"signal": signal.Signals(number).name})
            readiness.notify("STOPPING=1")
            scope.cancel()
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status is that of the error tree."""
    parser = argparse.ArgumentParser(prog="agentd", description="the gpu-agent daemon")
    parser.add_argument("--config", default=CONFIG, help="its config file (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        config = load(options.config)
        logs.set_up(config.agent.log_level)
        anyio.run(run, config)
    except AgentError as error:
        return _say(error)
    except BaseExceptionGroup as group:
        # The task group wraps what ends it; anything but our own errors is a defect.
        own, other = group.split(AgentError)
        if own is None or other is not None:
            raise
        return _say(_first(own))
    return 0


def _say(error: AgentError) -> int:
    hint = f" ({error.hint})" if error.hint else ""
    sys.stderr.write(f"agentd: {error}{hint}\n")
    return error.exit_code


def _first(group: BaseExceptionGroup[AgentError]) -> AgentError:
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


if __name__ == "__main__":
    sys.exit(main())
