"""``trainmover drain``: get many machines out of their slots, and follow it to its end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trainmover.bus.protocol import Bus
from trainmover.errors import ConfigError
from trainmover.policy.model import seconds
from trainmover.protocol.requests import DrainRequest
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
from trainmover_console.view import JobView

__all__ = ["drain"]

_Action = Literal["start", "pause", "resume", "abort"]


def drain(
    machines: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MACHINE]...", help="Machines that are to leave their slots."),
    ] = None,
    *,
    label: Annotated[
        list[str] | None,
        typer.Option(help="All machines with this label, as KEY=VALUE; each one given must fit."),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="Within how long, as 90s or 2h; said at once if it cannot be held."),
    ] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Begin no further wave.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on.")] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="Give it up; who left may be used again.")
    ] = False,
    reason: requests.ReasonOption = "operator request",
    by: requests.ByOption = None,
    dry_run: requests.DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow it to its end.")] = True,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Move all of these machines away, wave after wave, and keep them out.

    A wave is as large as a third of the slots, the standbys and the reserve allow. Machines of the
    drain are no standbys: they are in quarantine once they hold no slot, until an operator lets
    them out with machine unquarantine. Ctrl-C stops following; the drain goes on.

    Exit codes: 0 finished (or accepted), 1 aborted by somebody, 2 usage, 3 refused, 4 unreachable,
    130 interrupted.
    """

    async def main() -> ExitCode:
        for machine in machines or ():
            validate_id(machine, what="machine")
        action = _action(pause=pause, resume=resume, abort=abort)
        request = DrainRequest(
            action=action,
            machines=tuple(machines or ()),
            labels=_labels(label or ()),
            deadline_s=_deadline_s(deadline),
            reason=reason,
            requested_by=requests.who(by),
            dry_run=dry_run,
        )
        target = Target.find(job, nats)
        async with connect(target) as bus:
            if action == "start" and not yes and not dry_run:
                await _confirm(bus, target.job, request)
            accepted = await requests.submit(bus, target.job, "drain", request)
            output.note(f"would be: {accepted.words}" if dry_run else accepted.words)
            data: dict[str, Any] = {"words": accepted.words, "dry_run": dry_run, "outcome": None}
            if wait and accepted.drain is not None:
                data["outcome"] = await _follow(bus, target.job, accepted.drain)
        output.emit(data, format=format, render=lambda: data["outcome"] or "accepted")
        return ExitCode.FAILED if data["outcome"] == "aborted" else ExitCode.OK

    raise typer.Exit(execute(main))


def _action(*, pause: bool, resume: bool, abort: bool) -> _Action:
    wanted: dict[_Action, bool] = {"pause": pause, "resume": resume, "abort": abort}
    chosen = [action for action, given in wanted.items() if given]
    if len(chosen) > 1:
        raise ConfigError(f"--{chosen[0]} and --{chosen[1]} cannot both be: name one of them.")
    return chosen[0] if chosen else "start"


def _labels(given: Sequence[str]) -> Mapping[str, str]:
    labels = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{one!r} is no label: write for instance --label rack=r12.")
        labels[name] = value
    return labels


def _deadline_s(given: str | None) -> float | None:
    if given is None:
        return None
    try:
        found = float(str(seconds(given)))
    except ValueError as error:
        raise ConfigError(f"--deadline: {error}.") from error
    if not 0 < found < float("inf"):
        raise ConfigError(
            f"--deadline: {given!r} is no time to come: write for instance 90s or 2h."
        )
    return found


async def _confirm(bus: Bus, job: str, request: DrainRequest) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to confirm: add --yes, or --dry-run to see what is.")
    asked = request.model_copy(update={"dry_run": True})
    output.note((await requests.submit(bus, job, "drain", asked)).words)
    typer.confirm("Drain them?", default=False, abort=True, err=True)


async def _follow(bus: Bus, job: str, drain: str) -> str:
    """Show how many are out, until the drain is over; how it ended."""
    view = JobView(job)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=output.messages()) as bar:
        task = bar.add_task("draining")
        async with aclosing(bus.events(job)) as facts:
            async for delivery in facts:
                view.apply(delivery.payload)
                one = view.drain
                if one is None or one.id != drain:
                    continue
                out = len(one.machines) - len(_in_slots(view))
                what = "paused" if one.paused else "draining"
                bar.update(task, total=len(one.machines), completed=out, description=what)
                if one.outcome or view.over:
                    return one.outcome or f"the job has {view.state}"
    return ""


def _in_slots(view: JobView) -> list[str]:
    if view.drain is None or view.membership is None:
        return []
    slot_of = view.membership.slot_of_machine
    return [name for name in view.drain.machines if slot_of(name) is not None]
