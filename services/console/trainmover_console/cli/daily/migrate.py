"""``trainmover migrate``: ask the planner for a move, and follow it to its end."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trainmover.bus.protocol import Bus
from trainmover.commands import MigrateRequest
from trainmover.errors import ConfigError
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
    reason: requests.ReasonOption = "operator request",
    by: requests.ByOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, move nobody.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: requests.WaitOption = True,
    timeout: requests.WaitSecondsOption = 120.0,
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
        requested_by=requests.who(by),
    )

    async def main() -> ExitCode:
        for machine in machines:
            validate_id(machine, what="machine")
        target = Target.find(job, nats)
        async with connect(target) as bus:
            wanted = request if yes or dry_run else await _confirmed(bus, target.job, request)
            accepted = await requests.submit(bus, target.job, "migrate", wanted)
            return await requests.see_through(
                bus, target.job, accepted, wait=wait, timeout_s=timeout, format=format
            )

    raise typer.Exit(execute(main))


async def _confirmed(bus: Bus, job: str, request: MigrateRequest) -> MigrateRequest:
    """Show what would happen and ask; needs a terminal.

    Returns:
        The request, with the standbys that were shown: nothing else is done.

    Raises:
        ConfigError: There is nobody to ask.
        RequestRefusedError: The planner would refuse.
    """
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to confirm: add --yes, or --dry-run to see the plan.")
    asked = request.model_copy(update={"dry_run": True})
    plan = (await requests.submit(bus, job, "migrate", asked)).plan
    output.messages().print(requests.plan_table(plan))
    typer.confirm("Move it?", default=False, abort=True, err=True)
    if plan is None:
        return request
    joiners = {move.leaver: move.joiner for move in plan.moves}
    return request.model_copy(update={"to": tuple(joiners[one] for one in request.machines)})
