"""How a command asks the planner for something, and follows what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from rich.console import Group

from trainmover.bus.protocol import Bus
from trainmover.commands import Refusal, RequestAccepted
from trainmover.errors import BusUnavailableError, ProtocolError, RequestRefusedError
from trainmover.job.plan import Candidate, Plan
from trainmover.job.topology import Frozen
from trainmover.protocol.replies import parse
from trainmover.subjects import validate_id
from trainmover_console.cli import output
from trainmover_console.cli.connect import Target, connect, execute, fold
from trainmover_console.cli.exits import ExitCode
from trainmover_console.view import JobView, MigrationView

__all__ = [
    "ByOption",
    "DryRunOption",
    "ReasonOption",
    "WaitOption",
    "WaitSecondsOption",
    "follow",
    "operate",
    "plan_data",
    "plan_table",
    "see_through",
    "submit",
    "who",
]

_PAUSE_REPORTS_S: Final = 5.0
"""How long after the commit the ranks may take to report their pauses."""

_WHO: Final = "TRAINMOVER_OPERATOR"

ReasonOption = Annotated[str, typer.Option(help="Why; kept with the fact that follows.")]
ByOption = Annotated[
    str | None,
    typer.Option("--by", envvar=_WHO, help="Who asks; the name of the login when omitted."),
]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the move to its end.")]
WaitSecondsOption = Annotated[
    float, typer.Option("--timeout", help="Seconds to follow it; it goes on without us.", min=1)
]


DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would happen, change nothing.")
]


def who(by: str | None) -> str:
    """Who asks, as facts will say."""
    if by:
        return by
    if name := os.environ.get(_WHO):
        return name
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return "operator"


async def submit(bus: Bus, job: str, verb: str, request: Frozen) -> RequestAccepted:
    """Ask the planner.

    Raises:
        RequestRefusedError: It said no, and why; or the job is over, and its planner with it.
        ProtocolError: Its answer does not parse.
        BusUnavailableError: Nobody answered.
    """
    try:
        reply = parse(await bus.request(job, verb, request, timeout_s=5.0))
    except BusUnavailableError:
        view = await fold(bus, job)
        if not view.over:
            raise
        reply = Refusal(
            code="job_over",
            reason=f"The job has {view.state}.",
            next_step="Nothing can be moved any more.",
        )
    if isinstance(reply, Refusal):
        raise RequestRefusedError(
            f"refused ({reply.code}): {reply.reason}", code=reply.code, next_step=reply.next_step
        )
    return reply


def operate(
    verb: str,
    request: Frozen,
    job: str | None,
    nats: str | None,
    format: output.Format,  # noqa: A002
    *,
    machine: str | None = None,
) -> ExitCode:
    """Ask the planner for something that is done at once, and write what it answers."""
    dry = bool(getattr(request, "dry_run", False))

    async def main() -> ExitCode:
        if machine is not None:
            validate_id(machine, what="machine")
        target = Target.find(job, nats)
        async with connect(target) as bus:
            accepted = await submit(bus, target.job, verb, request)
        data: dict[str, Any] = {
            "verb": verb,
            "job": target.job,
            "migration": accepted.migration,
            "words": accepted.words,
            "dry_run": dry,
        }
        words = accepted.words or f"{verb} {accepted.migration}: accepted"
        output.emit(data, format=format, render=lambda: f"would be: {words}" if dry else words)
        return ExitCode.OK

    return execute(main)


async def see_through(
    bus: Bus,
    job: str,
    accepted: RequestAccepted,
    *,
    wait: bool,
    timeout_s: float,
    format: output.Format,  # noqa: A002
) -> ExitCode:
    """Follow an accepted move to its end and write what became of it; of a dry run, the plan."""
    if accepted.migration is None:
        data = plan_data(accepted.plan)
        output.emit(data, format=format, render=lambda: plan_table(accepted.plan))
        return ExitCode.OK
    output.note(f"migration {accepted.migration} accepted")
    if not wait:
        found: dict[str, Any] = {"id": accepted.migration, **plan_data(accepted.plan)}
        output.emit(found, format=format, render=lambda: accepted.migration or "")
        return ExitCode.OK
    view = await follow(bus, job, accepted.migration, timeout_s=timeout_s)
    output.emit(view.as_data(), format=format, render=lambda: _outcome(view))
    return ExitCode.OK if view.state == "committed" else ExitCode.FAILED


async def follow(bus: Bus, job: str, migration: str, *, timeout_s: float) -> MigrationView:
    """Read facts until the migration is over and the ranks reported their pauses.

    Raises:
        ProtocolError: It was not over in time, or before the job was.
    """
    view = JobView(job)
    shown = ""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            async for delivery in bus.events(job):
                view.apply(delivery.payload)
                found = view.migrations.get(migration)
                if view.over and (found is None or found.open):
                    state = "not announced" if found is None else found.state
                    raise ProtocolError(
                        f"migration {migration} was {state} when the job {view.state}: nothing is "
                        "moved any more."
                    )
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
            f"'trainmover migration show {migration}' tells how it ended."
        ) from None
    raise ProtocolError(f"the bus stopped before migration {migration} was over.")


def plan_data(plan: Plan | None) -> dict[str, Any]:
    """JSON-ready."""
    return {"plan": None if plan is None else plan.model_dump(mode="json")}


def plan_table(plan: Plan | None) -> Any:
    """What would happen, for people."""
    if plan is None:
        return "the planner gave no plan"
    rows = [
        (move.slot, move.leaver, move.joiner, f"{plan.from_epoch} -> {plan.epoch}")
        for move in plan.moves
    ]
    parts: list[Any] = [output.table(("slot", "leaver", "joiner", "epoch"), rows)]
    if plan.candidates:
        parts += ["", _candidates_table(plan.candidates)]
    if plan.forecast is not None:
        parts += ["", f"cost: {plan.forecast.cost_words}", f"gain: {plan.forecast.gain_words}"]
    if plan.crossings is not None:
        parts += ["", *(f"ring: {words}" for words in plan.crossings.words)]
    return Group(*parts)


def _candidates_table(candidates: Sequence[Candidate]) -> Any:
    """Who could take each slot, and what speaks against each, for people."""
    terms = list(dict.fromkeys(term for one in candidates for term in one.costs))
    rows = [
        (
            one.slot,
            one.machine,
            "yes" if one.chosen else "",
            one.cost,
            *(one.costs.get(term, "") for term in terms),
        )
        for one in candidates
    ]
    return output.table(("slot", "candidate", "chosen", "cost", *terms), rows)


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


def _outcome(found: MigrationView) -> str:
    if found.state != "committed":
        return f"{found.id}: {found.state}: {found.reason or 'no reason given'}"
    pause = "unknown" if found.pause_s is None else f"{found.pause_s:.3f} s"
    redone = max(found.steps_redone.values(), default=0)
    return f"{found.id}: {found.words}, pause {pause}, steps redone {redone}"
