"""``trainmover migrate`` and ``abort``: ask the planner, and follow what it does to its end."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import sys
from typing import Annotated, Any, Final

import typer
from pydantic import TypeAdapter, ValidationError

from trainmover.bus.protocol import Bus
from trainmover.cli import output
from trainmover.cli.connect import (
    JobOption,
    NatsOption,
    OutputOption,
    Target,
    connect,
    execute,
)
from trainmover.cli.exits import ExitCode
from trainmover.commands import MigrateRequest, Refusal, RequestAccepted
from trainmover.errors import ConfigError, ProtocolError, RequestRefusedError
from trainmover.plan import Plan
from trainmover.protocol.requests import AbortRequest
from trainmover.subjects import validate_id
from trainmover.topology import Frozen
from trainmover.view import JobView, MigrationView

__all__ = ["abort", "migrate"]

_REPLY: Final[TypeAdapter[RequestAccepted | Refusal]] = TypeAdapter(RequestAccepted | Refusal)

_PAUSE_REPORTS_S: Final = 5.0
"""How long after the commit the ranks may take to report their pauses."""


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
    reason: Annotated[str, typer.Option(help="Kept with the migration.")] = "operator request",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, move nobody.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Follow the move to its end.")
    ] = True,
    timeout: Annotated[
        float, typer.Option(help="Seconds to follow it; it goes on without us.", min=1)
    ] = 120.0,
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
        requested_by=_who(),
    )

    async def main() -> ExitCode:
        for machine in machines:
            validate_id(machine, what="machine")
        target = Target.find(job, nats)
        async with connect(target) as bus:
            if not (yes or dry_run):
                await _ask_first(bus, target.job, request)
            accepted = await _submit(bus, target.job, "migrate", request)
            if dry_run or accepted.migration is None:
                data = _plan_data(accepted.plan)
                output.emit(data, format=format, render=lambda: _plan_table(accepted.plan))
                return ExitCode.OK
            output.note(f"migration {accepted.migration} accepted")
            if not wait:
                found: dict[str, Any] = {"id": accepted.migration, **_plan_data(accepted.plan)}
                output.emit(found, format=format, render=lambda: accepted.migration or "")
                return ExitCode.OK
            view = await _follow(bus, target.job, accepted.migration, timeout_s=timeout)
        output.emit(view.as_data(), format=format, render=lambda: _outcome(view))
        return ExitCode.OK if view.state == "committed" else ExitCode.FAILED

    raise typer.Exit(execute(main))


def abort(
    migration: Annotated[str, typer.Argument(help="Id of a planned migration under way.")],
    *,
    reason: Annotated[str, typer.Option(help="Kept with the migration.")] = "operator request",
    job: JobOption = None,
    nats: NatsOption = None,
) -> None:
    """Give a planned migration up before it switches; training never notices.

    Exit codes: 0 accepted, 2 usage, 3 refused (it switches already, or is over), 4 unreachable.
    """
    request = AbortRequest(migration=migration, reason=reason)

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        async with connect(target) as bus:
            await _submit(bus, target.job, "abort", request)
        output.note(f"migration {migration} is being given up")
        output.note(f"look at it with: trainmover migrations show {migration}")
        return ExitCode.OK

    raise typer.Exit(execute(main))


def _who() -> str:
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return "operator"


async def _submit(bus: Bus, job: str, verb: str, request: Frozen) -> RequestAccepted:
    raw = await bus.request(job, verb, request, timeout_s=5.0)
    try:
        reply = _REPLY.validate_json(raw)
    except ValidationError as error:
        raise ProtocolError(
            f"the planner's answer does not parse ({error.error_count()} errors). Are planner and "
            "command of the same version?"
        ) from error
    if isinstance(reply, Refusal):
        raise RequestRefusedError(
            f"refused ({reply.code}): {reply.reason}", code=reply.code, next_step=reply.next_step
        )
    return reply


async def _ask_first(bus: Bus, job: str, request: MigrateRequest) -> None:
    """Show what would happen and ask; needs a terminal.

    Raises:
        ConfigError: There is nobody to ask.
        RequestRefusedError: The planner would refuse.
    """
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to confirm: add --yes, or --dry-run to see the plan.")
    dry = await _submit(bus, job, "migrate", request.model_copy(update={"dry_run": True}))
    output.messages().print(_plan_table(dry.plan))
    typer.confirm("Move it?", default=False, abort=True, err=True)


async def _follow(bus: Bus, job: str, migration: str, *, timeout_s: float) -> MigrationView:
    """Read facts until the migration is over and the ranks reported their pauses.

    Raises:
        ProtocolError: It was not over in time.
    """
    view = JobView(job)
    shown = ""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            async for delivery in bus.events(job):
                view.apply(delivery.payload)
                found = view.migrations.get(migration)
                if found is None:
                    continue
                if found.state != shown:
                    shown = found.state
                    output.note(_phase_line(found))
                    if not found.open:
                        now = asyncio.get_running_loop().time()
                        limit.reschedule(now + _PAUSE_REPORTS_S)
                if _complete(view, found):
                    return found
    except TimeoutError:
        found = view.migrations.get(migration)
        if found is not None and not found.open:
            return found
        state = "not announced" if found is None else found.state
        raise ProtocolError(
            f"migration {migration} is {state} after {timeout_s:g} s; it goes on without us. "
            f"'trainmover migrations show {migration}' tells how it ended."
        ) from None
    raise ProtocolError(f"the bus stopped before migration {migration} was over.")


def _complete(view: JobView, found: MigrationView) -> bool:
    if found.state != "committed":
        return not found.open
    if view.membership is None:
        return True
    layout = view.membership.layout
    # A joiner has no step before the switch, hence no pause.
    stayers = layout.world_size - len(found.moves) * layout.ranks_per_slot
    return len(found.pauses_s) >= stayers


def _phase_line(found: MigrationView) -> str:
    first = next(iter(found.times.values()))
    elapsed = (found.times[found.state] - first).total_seconds()
    reason = f" ({found.reason})" if found.reason else ""
    return f"  {elapsed:7.3f} s  {found.state:<10} {found.words}{reason}"


def _plan_data(plan: Plan | None) -> dict[str, Any]:
    return {"plan": None if plan is None else plan.model_dump(mode="json")}


def _plan_table(plan: Plan | None) -> Any:
    if plan is None:
        return "the planner gave no plan"
    rows = [
        (move.slot, move.leaver, move.joiner, f"{plan.from_epoch} -> {plan.epoch}")
        for move in plan.moves
    ]
    return output.table(("slot", "leaver", "joiner", "epoch"), rows)


def _outcome(found: MigrationView) -> str:
    if found.state != "committed":
        return f"{found.id}: {found.state}: {found.reason or 'no reason given'}"
    pause = "unknown" if found.pause_s is None else f"{found.pause_s:.3f} s"
    redone = max(found.steps_redone.values(), default=0)
    return f"{found.id}: {found.words}, pause {pause}, steps redone {redone}"
