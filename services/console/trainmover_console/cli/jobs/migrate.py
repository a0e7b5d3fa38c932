"""``trainmover migrate``: ask the planner for a move, and follow it to its end."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trainmover.bus.protocol import Bus
from trainmover.commands import MigrateRequest
from trainmover.errors import ConfigError
from trainmover.subjects import validate_id
from trainmover_console.cli import ask, output
from trainmover_console.cli.connect import (
    JobOption,
    NatsOption,
    OutputOption,
    Target,
    connect,
    execute,
)
from trainmover_console.cli.exits import ExitCode

__all__ = ["migrate"]


def migrate(
    machines: Annotated[
        list[str],
        typer.Argument(metavar="MACHINE...", help="The machines that are to leave their slots."),
    ],
    *,
    to: Annotated[
        list[str] | None,
        typer.Option(help="The standby that takes over; once a machine, in their order."),
    ] = None,
    reason: ask.ReasonOption = "operator request",
    by: ask.ByOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, move nobody.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: ask.WaitOption = True,
    timeout: ask.WaitSecondsOption = 120.0,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Move a machine's slot to a standby while training runs; several machines in one switch.

    At most a third of the slots may change hands at once, each with a standby of its own.

    Exit codes: 0 committed (or accepted with --no-wait, or planned with --dry-run), 1 aborted or
    failed or not over in time, 2 usage, 3 refused by the planner, 4 planner or bus unreachable,
    130 interrupted.
    """
    request = MigrateRequest(
        machine=machines[0],
        others=tuple(machines[1:]),
        to=tuple(to or ()),
        reason=reason,
        dry_run=dry_run,
        requested_by=ask.who(by),
    )

    async def main() -> ExitCode:
        for machine in machines:
            validate_id(machine, what="machine")
        target = Target.find(job, nats)
        async with connect(target) as bus:
            if not (yes or dry_run):
                await _ask_first(bus, target.job, request)
            accepted = await ask.submit(bus, target.job, "migrate", request)
            return await ask.see_through(
                bus, target.job, accepted, wait=wait, timeout_s=timeout, format=format
            )

    raise typer.Exit(execute(main))


async def _ask_first(bus: Bus, job: str, request: MigrateRequest) -> None:
    """Show what would happen and ask; needs a terminal.

    Raises:
        ConfigError: There is nobody to ask.
        RequestRefusedError: The planner would refuse.
    """
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to confirm: add --yes, or --dry-run to see the plan.")
    dry = await ask.submit(bus, job, "migrate", request.model_copy(update={"dry_run": True}))
    output.messages().print(ask.plan_table(dry.plan))
    typer.confirm("Move it?", default=False, abort=True, err=True)
