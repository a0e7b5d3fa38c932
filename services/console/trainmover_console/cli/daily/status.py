"""``trainmover status``: a job as it stands."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trainmover.errors import BusError
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
from trainmover_console.cli.tables import machines_table, migrations_table
from trainmover_console.view import JobView
from trainmover_console.view.costs import cost_lines
from trainmover_console.view.terminal import not_ready

__all__ = ["status"]


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
    parts += [Text(line) for line in _operated(view, planner)]
    parts += [Text(""), machines_table(view)]
    parts += [Text(line, style="yellow") for line in not_ready(view, now=datetime.now(UTC))]
    incidents = [one for one in view.incidents.values() if one.closed is None]
    if incidents:
        rows = [(one.id, one.kind, one.machine, one.summary) for one in incidents]
        parts += [Text(""), output.table(("open incident", "kind", "machine", "finding"), rows)]
    if view.migrations:
        parts += [Text(""), migrations_table(view)]
    return Group(*parts)


def _operated(view: JobView, planner: dict[str, Any] | None) -> list[str]:
    """What operators asked for, and what waits for them."""
    lines = []
    told = (planner or {}).get("automation") or {}
    mode = told.get("mode", view.automation)
    if mode != "automatic":
        who, why = told.get("requested_by"), told.get("reason")
        words = f"by {who}: {why}" if who else view.automation_words or why or ""
        lines.append(
            f"automation: {mode} ({words}); 'trainmover automation resume' for automatic moves"
        )
    drain = (planner or {}).get("drain")
    if drain is not None:
        left, every = len(drain["left"]), len(drain["machines"])
        waits = f"; {drain['waits']}" if drain["waits"] else ""
        lines.append(
            f"{drain['drain']} by {drain['requested_by']}: {every - left} of {every} machines hold "
            f"no slot{waits}"
        )
    for one in view.migrations.values():
        if one.waiting:
            leavers = ", ".join(move.leaver for move in one.moves)
            lines.append(
                f"{one.id} waits to move {leavers} away ({one.cause}): "
                f"'trainmover migration approve {one.id}' or 'trainmover migration reject {one.id}'"
            )
            if one.forecast is not None:
                lines.append(f"  cost: {one.forecast.cost_words}")
                lines.append(f"  gain: {one.forecast.gain_words}")
    return lines
