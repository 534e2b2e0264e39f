"""agentctl: what the agent knows, in words or as JSON.

Data goes to stdout, talk to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage or input,
3 refused by the state of the host, 4 the agent does not answer. `status` has 0.4 s in all, so
each verb imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from agent.errors import AgentError, UsageError

RUN_DIR = "/run/gpu-agent"
CONFIG = "/etc/gpu-agent/config.toml"

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gpu-agent", message="agentctl %(version)s")
@click.option("--run-dir", default=RUN_DIR, show_default=True, help="The agent's run directory.")
@click.pass_context
def agentctl(context: click.Context, run_dir: str) -> None:
    """Ask the GPU agent of this host."""
    context.obj = run_dir


@agentctl.command()
@as_json
@click.pass_obj
def status(run_dir: str, as_json: bool) -> None:
    """The agent, the driver, the GPUs, every containerd, and how hooks did."""
    from agent.cli import show
    from agent.cli.client import Client

    report = Client(run_dir).status()
    show.print_json(show.as_dict(report)) if as_json else show.show_status(report)


@agentctl.command()
@as_json
@click.pass_obj
def inventory(run_dir: str, as_json: bool) -> None:
    """Everything of the driver that this host can give to containers."""
    from agent.cli import show
    from agent.cli.client import Client

    report = Client(run_dir).inventory()
    show.print_json(show.as_dict(report)) if as_json else show.show_inventory(report)


@agentctl.command()
@as_json
@click.pass_obj
def containers(run_dir: str, as_json: bool) -> None:
    """All containers, with what is staged for them."""
    from agent.cli import show
    from agent.cli.client import Client

    report = Client(run_dir).containers()
    show.print_json(show.as_dict(report)) if as_json else show.show_containers(report)


@agentctl.command()
@click.argument("container", required=False)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="LIST",
    help="As in NVIDIA_VISIBLE_DEVICES; may be repeated.",
)
@click.option(
    "--capabilities",
    default=None,
    metavar="LIST",
    help="As in NVIDIA_DRIVER_CAPABILITIES.  [default: compute,utility]",
)
@as_json
@click.pass_obj
def plan(
    run_dir: str,
    container: str | None,
    devices: tuple[str, ...],
    capabilities: str | None,
    as_json: bool,
) -> None:
    """The steps, in words, for CONTAINER or for given devices and capabilities."""
    if (container is None) == (not devices):
        raise UsageError("plan: give either a container or --device")
    if container is not None and capabilities is not None:
        raise UsageError("plan: --capabilities goes with --device, not with a container")
    from agent._pb.agent.v1 import agent_pb2 as pb
    from agent.cli import show
    from agent.cli.client import Client

    request = pb.PlanRequest(
        container=container,
        devices=[item for given in devices for item in given.split(",")],
        capabilities=(capabilities or "").split(",") if capabilities else [],
    )
    report = Client(run_dir).plan(request)
    show.print_json(show.as_dict(report)) if as_json else show.show_plan(report)


@agentctl.command()
@click.argument("container")
@as_json
@click.pass_obj
def explain(run_dir: str, container: str, as_json: bool) -> None:
    """Why CONTAINER (an id, the beginning of one, or namespace/id) got what it got."""
    from agent.cli import show
    from agent.cli.client import Client

    report = Client(run_dir).explain(container)
    show.print_json(show.as_dict(report)) if as_json else show.show_container(report)


@agentctl.command("list")
@click.option("--config", default=CONFIG, show_default=True, help="The agent's config file.")
@click.option("--device", "-d", default=None, metavar="LIST", help="As NVIDIA_VISIBLE_DEVICES.")
@click.option("--libraries", "-l", is_flag=True, help="The driver's libraries.")
@click.option("--binaries", "-b", is_flag=True, help="Its programs.")
@click.option("--ipcs", "-i", is_flag=True, help="Its daemons' sockets.")
@click.option("--firmwares", "-f", is_flag=True, help="Its firmware.")
@click.option("--compat32", is_flag=True, help="The 32-bit libraries too.")
def list_files(config: str, device: str | None, compat32: bool, **classes: bool) -> None:
    """What `nvidia-container-cli list` prints: the driver's paths on this host."""
    from agent.cli import dropin

    dropin.print_listing(config, dropin.Selection(device, compat32=compat32, **classes))


@agentctl.command()
@click.option("--config", default=CONFIG, show_default=True, help="The agent's config file.")
@click.option("--csv", is_flag=True, help="Comma-separated.")
def info(config: str, csv: bool) -> None:
    """What `nvidia-container-cli info` prints: the driver and its GPUs."""
    from agent.cli import dropin

    dropin.print_info(config, csv=csv)


@agentctl.command("import-config")
@click.argument("file", default="/etc/nvidia-container-runtime/config.toml")
@as_json
def import_config(file: str, as_json: bool) -> None:
    """Settings from nvidia-container-toolkit's config FILE, and what became of each of its keys."""
    from agent.cli import toolkit

    toolkit.print_import(file, as_json=as_json)


@agentctl.command("runtime-config")
@click.option(
    "--config-version",
    type=click.Choice(["2", "3"]),
    default="2",
    show_default=True,
    help="containerd's: 2 for 1.x (and read by 2.x), 3 for 2.x.",
)
@click.option("--config", "config_path", metavar="FILE", help=f"[default: {CONFIG}]")
@click.option(
    "--base-spec",
    "base_spec_path",
    metavar="FILE",
    help="The output of `ctr oci spec` (- is stdin): print it with the hook in it.",
)
@click.option("--systemd-cgroup", is_flag=True, help="For nodes with the systemd cgroup driver.")
@as_json
@click.pass_context
def runtime_config(
    context: click.Context,
    config_version: str,
    config_path: str | None,
    base_spec_path: str | None,
    systemd_cgroup: bool,
    as_json: bool,
) -> None:
    """What containerd on this node needs to run the hook; installs nothing, asks no agent."""
    from agent.cli import runtime

    asked = context.find_root().get_parameter_source("run_dir")
    given = None if asked is click.core.ParameterSource.DEFAULT else str(context.obj)
    node = runtime.read_node(config_path, CONFIG, run_dir=given)
    if base_spec_path is not None:
        runtime.print_base_spec(node, base_spec_path)
    else:
        runtime.print_config(
            node, config_version=int(config_version), systemd_cgroup=systemd_cgroup, as_json=as_json
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run agentctl; returns the exit code and lets no foreseeable error become a traceback."""
    try:
        code = agentctl.main(args=argv, prog_name="agentctl", standalone_mode=False)
        sys.stdout.flush()
    except AgentError as e:
        return _complain(str(e), e.hint, e.exit_code)
    except click.ClickException as e:
        return _complain(e.format_message(), "see agentctl --help", e.exit_code)
    except click.Abort:
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def _complain(message: str, hint: str, code: int) -> int:
    click.echo(f"agentctl: {message} ({hint})" if hint else f"agentctl: {message}", err=True)
    return code
