"""``trainmover notice``: tell a job what others know about its machines."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Annotated, Literal

import typer

from trainmover.errors import ConfigError
from trainmover.events.machine import MachineNoticed
from trainmover.subjects import validate_id
from trainmover_console.cli import output, requests
from trainmover_console.cli.connect import (
    JobOption,
    NatsOption,
    OutputOption,
    Target,
    connect,
    execute,
)
from trainmover_console.cli.exits import ExitCode
from trainmover_gateway.notices.http import serving
from trainmover_gateway.notices.kubernetes import KubernetesSource
from trainmover_gateway.notices.slurm import SlurmSource
from trainmover_gateway.notices.watch import Source, publish, watch

__all__ = ["notice_app"]

notice_app = typer.Typer(
    help="Tell a job that a machine will go or is failing, so that it is moved in time.",
    no_args_is_help=True,
)

EveryOption = Annotated[float, typer.Option(min=0.1, help="Seconds between two questions.")]


@notice_app.command("send")
def send(
    machine: Annotated[str, typer.Argument(help="The machine.")],
    *,
    kind: Annotated[
        Literal["maintenance", "preemption", "health"], typer.Option(help="What is announced.")
    ] = "maintenance",
    reason: Annotated[str, typer.Option(help="In your words.")] = "announced by an operator",
    leaves_in: Annotated[
        float | None, typer.Option(min=0, help="Seconds until the machine goes.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take it back.")] = False,
    dry_run: requests.DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Announce something about one machine."""

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        notice = MachineNoticed(
            machine=validate_id(machine, what="machine"),
            kind=kind,
            reason=reason,
            source="operator",
            leaves_in_s=leaves_in,
            cleared=clear,
        )
        async with connect(target) as bus:
            if not dry_run:
                await publish(bus, job=target.job, notice=notice)
        data = {"job": target.job, "dry_run": dry_run, **notice.model_dump(mode="json")}
        verb = "would be told" if dry_run else "is told"
        words = f"job {target.job} {verb}: {kind} of {machine}{' is over' if clear else ''}"
        output.emit(data, format=format, render=lambda: words)
        return ExitCode.OK

    raise typer.Exit(execute(main))


@notice_app.command("serve")
def serve(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any.")] = 8476,
    token: Annotated[
        str, typer.Option(envvar="TRAINMOVER_NOTICES_TOKEN", help="What callers must present.")
    ] = "",
    job: JobOption = None,
    nats: NatsOption = None,
) -> None:
    """Take announcements over HTTP until interrupted; from other hosts only with a token."""

    async def main() -> ExitCode:
        if not token and not _is_loopback(host):
            raise ConfigError(
                f"{host} can be reached from other hosts, and whoever posts there moves machines: "
                "set TRAINMOVER_NOTICES_TOKEN, or listen on 127.0.0.1."
            )
        target = Target.find(job, nats)
        async with connect(target) as bus:

            async def accept(notice: MachineNoticed) -> None:
                await publish(bus, job=target.job, notice=notice)

            loop = asyncio.get_running_loop()
            with serving(accept, loop=loop, host=host, port=port, token=token) as actual:
                output.note(f"POST http://{host}:{actual}/v1/machines/NAME/notices")
                await asyncio.get_running_loop().create_future()
        return ExitCode.OK

    raise typer.Exit(execute(main, logs="info"))


@notice_app.command("kubernetes")
def kubernetes(
    *,
    api: Annotated[str | None, typer.Option(help="API server; the cluster's when omitted.")] = None,
    selector: Annotated[str, typer.Option(help="Only nodes with these labels.")] = "",
    every: EveryOption = 5.0,
    job: JobOption = None,
    nats: NatsOption = None,
) -> None:
    """Watch taints and conditions of Kubernetes nodes until interrupted."""

    async def main() -> ExitCode:
        source = KubernetesSource(api=api, selector=selector)
        return await _watch(source, every, job, nats, name="kubernetes")

    raise typer.Exit(execute(main, logs="info"))


@notice_app.command("slurm")
def slurm(*, every: EveryOption = 5.0, job: JobOption = None, nats: NatsOption = None) -> None:
    """Watch for drained and failing Slurm nodes until interrupted."""

    async def main() -> ExitCode:
        return await _watch(SlurmSource(), every, job, nats, name="slurm")

    raise typer.Exit(execute(main, logs="info"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _watch(
    source: Source, every_s: float, job: str | None, nats: str | None, *, name: str
) -> ExitCode:
    target = Target.find(job, nats)
    async with connect(target) as bus:
        await watch(bus, job=target.job, source=source, every_s=every_s, name=name)
    return ExitCode.OK
