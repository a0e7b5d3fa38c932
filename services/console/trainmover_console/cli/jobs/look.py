"""Commands that look and change nothing: status, machines, migrations, events."""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainmover.bus.facts import history
from trainmover.errors import BusError, ConfigError
from trainmover.events.envelope import Envelope
from trainmover.protocol.requests import StatusRequest
from trainmover_console.cli import output
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
from trainmover_console.report.chrome_trace import chrome_trace
from trainmover_console.report.page import render
from trainmover_console.report.report import Report, duration
from trainmover_console.view import JobView, trace_id
from trainmover_console.view.costs import cost_lines
from trainmover_console.view.picture import not_ready
from trainmover_console.view.summary import summarise

__all__ = ["events_app", "machines", "migrations_app", "status"]

migrations_app = typer.Typer(help="Migrations of a job.", no_args_is_help=True)
events_app = typer.Typer(help="Facts of a job.", no_args_is_help=True)


def status(
    *,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Show a job: who computes what, what is wrong, what moves."""

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        async with connect(target) as bus:
            view = await fold(bus, target.job)
            planner: Any = None
            with contextlib.suppress(BusError, json.JSONDecodeError):
                reply = await bus.request(target.job, "status", StatusRequest(), timeout_s=2)
                planner = json.loads(reply)
        data = {**view.as_data(), "planner": planner}
        output.emit(data, format=format, render=lambda: _status_table(view, planner))
        if planner is None:
            output.warn("the planner does not answer: training continues, nothing can be moved")
        return ExitCode.OK

    raise typer.Exit(execute(main))


def machines(
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
        output.emit(data, format=format, render=lambda: _machines_table(view))
        return ExitCode.OK

    raise typer.Exit(execute(main))


@migrations_app.command("ls")
def migrations_ls(
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
            view.as_data()["migrations"], format=format, render=lambda: _migrations_table(view)
        )
        return ExitCode.OK

    raise typer.Exit(execute(main))


@migrations_app.command("show")
def migrations_show(
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


@events_app.command("tail")
def events_tail(
    *,
    job: JobOption = None,
    nats: NatsOption = None,
    entity: Annotated[str, typer.Option(help="Only facts about this, e.g. migration.")] = "*",
    from_start: Annotated[bool, typer.Option(help="Begin with the first stored fact.")] = False,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Follow the facts of a job until Ctrl-C; with -o json one object per line."""

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        async with connect(target) as bus:
            facts = bus.events(target.job, entity=entity, from_start=from_start)
            async for delivery in facts:
                _write_event(delivery.payload, format)
        return ExitCode.OK

    raise typer.Exit(execute(main))


def event_as_data(event: Envelope) -> dict[str, Any]:
    """A fact, JSON-ready, with its CloudEvents attributes."""
    return {
        "id": event.id,
        "type": event.type,
        "source": event.source,
        "time": event.time.isoformat(),
        "job": event.job,
        "trace_id": trace_id(event),
        "data": event.payload.model_dump(mode="json"),
    }


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


def _write_event(event: Envelope, format: output.Format) -> None:  # noqa: A002
    if format is output.Format.JSON:
        line = json.dumps(event_as_data(event))
    elif format is output.Format.YAML:
        line = "---\n" + output.to_yaml(event_as_data(event)).rstrip()
    else:
        line = f"{event.time.astimezone():%H:%M:%S.%f}"[:-3] + "  " + summarise(event)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _status_table(view: JobView, planner: dict[str, Any] | None) -> RenderableType:
    epoch = "-" if view.membership is None else view.membership.epoch
    head = f"job {view.job}: {view.state}, epoch {epoch}, step {view.step}"
    head += "" if planner is not None else " (planner unreachable)"
    parts: list[RenderableType] = [Text(head, style="bold")]
    if planner is not None and planner.get("redundancy"):
        parts.append(Text(f"state survives a machine by: {planner['redundancy']}"))
    parts += [Text(line) for line in cost_lines(view.costs)]
    if view.reason:
        parts.append(Text(view.reason))
    parts += [Text(line) for line in _steered(view, planner)]
    parts += [Text(""), _machines_table(view)]
    parts += [Text(line, style="yellow") for line in not_ready(view, now=datetime.now(UTC))]
    incidents = [one for one in view.incidents.values() if one.closed is None]
    if incidents:
        rows = [(one.id, one.kind, one.machine, one.summary) for one in incidents]
        parts += [Text(""), output.table(("open incident", "kind", "machine", "claim"), rows)]
    if view.migrations:
        parts += [Text(""), _migrations_table(view)]
    return Group(*parts)


def _steered(view: JobView, planner: dict[str, Any] | None) -> list[str]:
    """What operators steered, and what waits for them."""
    lines = []
    told = (planner or {}).get("automation") or {}
    mode = told.get("mode", view.automation)
    if mode != "automatic":
        who, why = told.get("requested_by"), told.get("reason")
        words = f"by {who}: {why}" if who else view.automation_words or why or ""
        lines.append(f"automation: {mode} ({words}); 'trainmover resume' for automatic moves")
    for one in view.migrations.values():
        if one.waiting:
            leavers = ", ".join(move.leaver for move in one.moves)
            lines.append(
                f"{one.id} waits to move {leavers} away ({one.cause}): "
                f"'trainmover approve {one.id}' or 'trainmover reject {one.id}'"
            )
    return lines


def _machines_table(view: JobView) -> Table:
    rows = []
    for _, one in sorted(view.machines.items(), key=lambda item: _order(item[1].slot, item[0])):
        ready = ",".join(map(str, sorted(one.ready_slots))) if one.role == "standby" else None
        step_s = None if one.step_s is None else f"{one.step_s:.3f}"
        rows.append((one.name, one.role, one.slot, one.step, step_s, ready, one.host, one.note))
    columns = ("machine", "role", "slot", "step", "step s", "ready for", "host", "note")
    return output.table(columns, rows)


def _order(slot: int | None, name: str) -> tuple[int, int, int, str]:
    digits = "".join(filter(str.isdigit, name))
    return (0 if slot is not None else 1, slot or 0, int(digits) if digits else 0, name)


def _migrations_table(view: JobView) -> Table:
    rows = []
    for one in view.migrations.values():
        pause = None if one.pause_s is None else f"{one.pause_s:.3f}"
        redone = max(one.steps_redone.values(), default=0)
        slots = ", ".join(str(move.slot) for move in one.moves)
        who = ", ".join(f"{move.leaver} -> {move.joiner or '?'}" for move in one.moves)
        rows.append((one.id, one.state, one.kind, slots, who, pause, redone, one.cause))
    columns = ("migration", "state", "kind", "slot", "move", "pause s", "redone", "cause")
    return output.table(columns, rows)


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
    rows = [("pause beyond one step", pause), ("steps done again", cost.steps_redone)]
    rows += [("switched after step", move.step), ("epoch", move.epoch)]
    if cost.beside_s is not None:
        rows.append(("beside training", duration(cost.beside_s)))
    rows += [(f"phase {name}", duration(each)) for name, each in cost.phases_s.items()]
    rows += [(f"phase 2: {name}", duration(each)) for name, each in cost.switch_s.items()]
    rows.append(("trace", move.trace_id))
    parts += [Text(""), output.table(("what it cost", ""), rows)]
    return Group(*parts)
