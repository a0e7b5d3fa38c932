"""``trainmover migration``: what moved and moves, and what an operator says to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trainmover.bus.facts import history
from trainmover.errors import ConfigError
from trainmover.protocol.requests import AbortRequest, ApproveRequest, RejectRequest
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
from trainmover_console.cli.tables import migrations_table
from trainmover_console.report.chrome_trace import chrome_trace
from trainmover_console.report.page import render
from trainmover_console.report.report import Report, duration

__all__ = ["migration_app"]

migration_app = typer.Typer(help="Migrations of a job.", no_args_is_help=True)

MigrationArgument = Annotated[str, typer.Argument(help="Id, as 'trainmover migration ls' has it.")]


@migration_app.command("ls")
def migration_ls(
    *,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """List the migrations of a job, oldest first."""

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        async with connect(target) as bus:
            view = await fold(bus, target.job)
        output.emit(
            view.as_data()["migrations"], format=format, render=lambda: migrations_table(view)
        )
        return ExitCode.OK

    raise typer.Exit(execute(main))


@migration_app.command("show")
def migration_show(
    migration: Annotated[str, typer.Argument(help="Id, or the beginning of one.")],
    *,
    trace: Annotated[
        Path | None,
        typer.Option(help="Also write a trace file that ui.perfetto.dev opens.", metavar="FILE"),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write a page with its timeline; it needs no network."),
    ] = None,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Tell one migration: which machine, why it was believed, what was done, what it cost."""

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        async with connect(target) as bus:
            facts = await history(bus, target.job)
        report = Report.of(facts, migration, job=target.job)
        if trace is not None:
            _write_trace(trace, report)
        if html is not None:
            _write(html, render(report), what="report")
            output.note(f"the report is in {html}")
        output.emit(report.as_data(), format=format, render=lambda: _report(report))
        return ExitCode.OK

    raise typer.Exit(execute(main))


@migration_app.command("approve")
def approve(
    migration: MigrationArgument,
    *,
    to: Annotated[
        list[str] | None,
        typer.Option(help="The standby that takes over; the planner chooses when omitted."),
    ] = None,
    reason: requests.ReasonOption = "operator request",
    by: requests.ByOption = None,
    dry_run: requests.DryRunOption = False,
    wait: requests.WaitOption = True,
    timeout: requests.WaitSecondsOption = 120.0,
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
        requested_by=requests.who(by),
        dry_run=dry_run,
    )

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        async with connect(target) as bus:
            accepted = await requests.submit(bus, target.job, "approve", request)
            return await requests.see_through(
                bus, target.job, accepted, wait=wait, timeout_s=timeout, format=format
            )

    raise typer.Exit(execute(main))


@migration_app.command("reject")
def reject(
    migration: MigrationArgument,
    *,
    reason: requests.ReasonOption = "operator request",
    by: requests.ByOption = None,
    dry_run: requests.DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Turn down a move that policy proposed; it is not proposed again for the same incident.

    Exit codes: 0 accepted, 2 usage, 3 refused (it waits for nobody), 4 unreachable.
    """
    request = RejectRequest(
        migration=migration, reason=reason, requested_by=requests.who(by), dry_run=dry_run
    )
    raise typer.Exit(requests.operate("reject", request, job, nats, format))


@migration_app.command("abort")
def abort(
    migration: MigrationArgument,
    *,
    reason: requests.ReasonOption = "operator request",
    by: requests.ByOption = None,
    dry_run: requests.DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Give a planned migration up before it switches; training never notices.

    Exit codes: 0 accepted, 2 usage, 3 refused (it switches already, or is over), 4 unreachable.
    """
    request = AbortRequest(
        migration=migration, reason=reason, requested_by=requests.who(by), dry_run=dry_run
    )
    code = requests.operate("abort", request, job, nats, format)
    if code is ExitCode.OK and not dry_run:
        output.note(f"look at it with: trainmover migration show {migration}")
    raise typer.Exit(code)


def _write_trace(path: Path, report: Report) -> None:
    bars, found = report.bars, report.migration
    roles = {bar.who: "stayer" for bar in bars} | {"planner": "", "detector": ""}
    for move in found.moves:
        roles |= {move.leaver: "leaver", move.joiner: "joiner"}
    about = {"job": report.job, "migration": found.id, "trace_id": found.trace_id}
    _write(path, json.dumps(chrome_trace(bars, roles=roles, **about)) + "\n", what="trace")
    output.note(f"{len(bars)} bars in {path}: open it at https://ui.perfetto.dev")


def _write(path: Path, text: str, *, what: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the {what} to {path}: {error.strerror}.") from error


def _report(report: Report) -> RenderableType:
    move, cost = report.migration, report.cost
    pause = "not reported" if cost.pause_s is None else duration(cost.pause_s)
    parts: list[RenderableType] = [
        Text(report.headline, style="bold"),
        Text(f"cause: {move.cause}"),
        Text(report.decision),
    ]
    if move.reason:
        parts.append(Text(f"why it ended: {move.reason}", style="yellow"))
    if evidence := report.evidence():
        parts += [Text(""), output.table(("why it was believed", ""), evidence)]
    rows: list[tuple[str, object]] = [("pause beyond one step", pause), *report.foreseen()]
    rows.append(("steps done again", cost.steps_redone))
    rows += [("switched after step", move.step), ("epoch", move.epoch)]
    if cost.beside_s is not None:
        rows.append(("beside training", duration(cost.beside_s)))
    rows += [(f"phase {name}", duration(each)) for name, each in cost.phases_s.items()]
    rows += [(f"phase 2: {name}", duration(each)) for name, each in cost.switch_s.items()]
    rows.append(("trace", move.trace_id))
    parts += [Text(""), output.table(("what it cost", ""), rows)]
    return Group(*parts)
