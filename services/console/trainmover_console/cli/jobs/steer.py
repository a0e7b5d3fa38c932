"""How operators steer besides ``migrate``: approvals, automation, quarantine.

Each verb is one request to the planner. What it accepts becomes a fact with who and why; what it
refuses changes nothing and comes with the next step.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmover.events.operator import AutomationMode
from trainmover.job.topology import Frozen
from trainmover.protocol.requests import (
    AbortRequest,
    ApproveRequest,
    AutomationRequest,
    QuarantineRequest,
    RejectRequest,
    ReleaseRequest,
)
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

__all__ = ["abort", "approve", "pause", "quarantine", "reject", "release", "resume"]

MigrationArgument = Annotated[str, typer.Argument(help="Id, as 'trainmover migrations ls' has it.")]
MachineArgument = Annotated[str, typer.Argument(help="Name, as 'trainmover machines' has it.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would happen, change nothing.")
]


def approve(
    migration: MigrationArgument,
    *,
    to: Annotated[
        list[str] | None,
        typer.Option(help="The standby that takes over; the planner chooses when omitted."),
    ] = None,
    reason: ask.ReasonOption = "operator request",
    by: ask.ByOption = None,
    dry_run: DryRunOption = False,
    wait: ask.WaitOption = True,
    timeout: ask.WaitSecondsOption = 120.0,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Carry out a move that policy proposed and that waits for an operator.

    Exit codes: 0 committed (or accepted with --no-wait, or planned with --dry-run), 1 aborted or
    failed or not over in time, 2 usage, 3 refused, 4 planner or bus unreachable, 130 interrupted.
    """
    request = ApproveRequest(
        migration=migration,
        to=tuple(to or ()),
        reason=reason,
        requested_by=ask.who(by),
        dry_run=dry_run,
    )

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        async with connect(target) as bus:
            accepted = await ask.submit(bus, target.job, "approve", request)
            return await ask.see_through(
                bus, target.job, accepted, wait=wait, timeout_s=timeout, format=format
            )

    raise typer.Exit(execute(main))


def reject(
    migration: MigrationArgument,
    *,
    reason: ask.ReasonOption = "operator request",
    by: ask.ByOption = None,
    dry_run: DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Turn down a move that policy proposed; it is not proposed again for the same incident.

    Exit codes: 0 accepted, 2 usage, 3 refused (it waits for nobody), 4 unreachable.
    """
    request = RejectRequest(
        migration=migration, reason=reason, requested_by=ask.who(by), dry_run=dry_run
    )
    raise typer.Exit(_steer("reject", request, job, nats, format))


def abort(
    migration: MigrationArgument,
    *,
    reason: ask.ReasonOption = "operator request",
    by: ask.ByOption = None,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Give a planned migration up before it switches; training never notices.

    Exit codes: 0 accepted, 2 usage, 3 refused (it switches already, or is over), 4 unreachable.
    """
    request = AbortRequest(migration=migration, reason=reason, requested_by=ask.who(by))
    code = _steer("abort", request, job, nats, format)
    if code is ExitCode.OK:
        output.note(f"look at it with: trainmover migrations show {migration}")
    raise typer.Exit(code)


def pause(
    *,
    reason: ask.ReasonOption = "operator request",
    by: ask.ByOption = None,
    dry_run: DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Leave stragglers where they are until 'trainmover resume'; the dead are still replaced.

    Exit codes: 0 accepted, 2 usage, 3 refused (it is paused already), 4 unreachable.
    """
    request = AutomationRequest(
        mode="paused", reason=reason, requested_by=ask.who(by), dry_run=dry_run
    )
    raise typer.Exit(_steer("automation", request, job, nats, format))


def resume(
    *,
    approval: Annotated[
        bool, typer.Option("--approval", help="Propose each move, and wait for an operator.")
    ] = False,
    reason: ask.ReasonOption = "operator request",
    by: ask.ByOption = None,
    dry_run: DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Let policy move stragglers again, or with --approval propose to.

    Exit codes: 0 accepted, 2 usage, 3 refused (it is so already), 4 unreachable.
    """
    mode: AutomationMode = "approval" if approval else "automatic"
    request = AutomationRequest(mode=mode, reason=reason, requested_by=ask.who(by), dry_run=dry_run)
    raise typer.Exit(_steer("automation", request, job, nats, format))


def quarantine(
    machine: MachineArgument,
    *,
    reason: ask.ReasonOption = "operator request",
    by: ask.ByOption = None,
    dry_run: DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Give a standby no slot any more, until 'trainmover release'.

    Exit codes: 0 accepted, 2 usage, 3 refused (it fills a slot, or is unknown), 4 unreachable.
    """
    request = QuarantineRequest(
        machine=machine, reason=reason, requested_by=ask.who(by), dry_run=dry_run
    )
    raise typer.Exit(_steer("quarantine", request, job, nats, format, machine=machine))


def release(
    machine: MachineArgument,
    *,
    reason: ask.ReasonOption = "operator request",
    by: ask.ByOption = None,
    dry_run: DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Let a machine out of quarantine.

    Exit codes: 0 accepted, 2 usage, 3 refused (it is not in quarantine), 4 unreachable.
    """
    request = ReleaseRequest(
        machine=machine, reason=reason, requested_by=ask.who(by), dry_run=dry_run
    )
    raise typer.Exit(_steer("release", request, job, nats, format, machine=machine))


def _steer(
    verb: str,
    request: Frozen,
    job: str | None,
    nats: str | None,
    format: output.Format,  # noqa: A002
    *,
    machine: str | None = None,
) -> ExitCode:
    dry = bool(getattr(request, "dry_run", False))

    async def main() -> ExitCode:
        if machine is not None:
            validate_id(machine, what="machine")
        target = Target.find(job, nats)
        async with connect(target) as bus:
            accepted = await ask.submit(bus, target.job, verb, request)
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
