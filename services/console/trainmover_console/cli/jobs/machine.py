"""``trainmover machine``: the machines of a job, and what an operator says of one."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmover.protocol.requests import QuarantineRequest, UnquarantineRequest
from trainmover_console.cli import output, requests
from trainmover_console.cli.connect import (
    JobOption,
    NatsOption,
    OutputOption,
    Target,
    connect,
    execute,
    fold,
)
from trainmover_console.cli.exits import ExitCode
from trainmover_console.cli.jobs.departure import depart
from trainmover_console.cli.tables import machines_table

__all__ = ["machine_app"]

machine_app = typer.Typer(help="Machines of a job.", no_args_is_help=True)

MachineArgument = Annotated[str, typer.Argument(help="Name, as 'trainmover machine ls' has it.")]


@machine_app.command("ls")
def machine_ls(
    *,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """List the machines of a job."""

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        async with connect(target) as bus:
            view = await fold(bus, target.job)
        data = view.as_data()["machines"]
        output.emit(data, format=format, render=lambda: machines_table(view))
        return ExitCode.OK

    raise typer.Exit(execute(main))


@machine_app.command("quarantine")
def quarantine(
    machine: MachineArgument,
    *,
    reason: requests.ReasonOption = "operator request",
    by: requests.ByOption = None,
    dry_run: requests.DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Give a standby no slot any more, until 'trainmover machine unquarantine'.

    Exit codes: 0 accepted, 2 usage, 3 refused (it fills a slot, or is unknown), 4 unreachable.
    """
    request = QuarantineRequest(
        machine=machine, reason=reason, requested_by=requests.who(by), dry_run=dry_run
    )
    raise typer.Exit(requests.operate("quarantine", request, job, nats, format, machine=machine))


@machine_app.command("unquarantine")
def unquarantine(
    machine: MachineArgument,
    *,
    reason: requests.ReasonOption = "operator request",
    by: requests.ByOption = None,
    dry_run: requests.DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Let a machine out of quarantine.

    Exit codes: 0 accepted, 2 usage, 3 refused (it is not in quarantine), 4 unreachable.
    """
    request = UnquarantineRequest(
        machine=machine, reason=reason, requested_by=requests.who(by), dry_run=dry_run
    )
    raise typer.Exit(requests.operate("unquarantine", request, job, nats, format, machine=machine))


machine_app.command("depart")(depart)
