"""``trainmover event``: the facts of a job."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from trainmover.events.envelope import Envelope
from trainmover_console.cli import output
from trainmover_console.cli.connect import (
    JobOption,
    NatsOption,
    OutputOption,
    Target,
    connect,
    execute,
)
from trainmover_console.cli.exits import ExitCode
from trainmover_console.view import trace_id
from trainmover_console.view.summary import summarise

__all__ = ["event_app", "event_as_data"]

event_app = typer.Typer(help="The facts of a job.", no_args_is_help=True)


@event_app.command("tail")
def event_tail(
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


def _write_event(event: Envelope, format: output.Format) -> None:  # noqa: A002
    if format is output.Format.JSON:
        line = json.dumps(event_as_data(event))
    elif format is output.Format.YAML:
        line = "---\n" + output.to_yaml(event_as_data(event)).rstrip()
    else:
        line = f"{event.time.astimezone():%H:%M:%S.%f}"[:-3] + "  " + summarise(event)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
