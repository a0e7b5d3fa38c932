"""``trainmover job``: jobs as a whole."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from trainmover.bus.protocol import Bus
from trainmover.bus.streams import JOBS_BUCKET
from trainmover.detection.evaluation.recording import Recorder
from trainmover.errors import BusError, ConfigError
from trainmover.protocol.requests import JobStatus
from trainmover_console.cli import contexts, output
from trainmover_console.cli.connect import (
    JobOption,
    NatsOption,
    OutputOption,
    Target,
    connect,
    execute,
)
from trainmover_console.cli.exits import ExitCode
from trainmover_launcher import registry

__all__ = ["job_app"]

job_app = typer.Typer(help="Jobs as a whole.", no_args_is_help=True)


@job_app.command("ls")
def job_ls(
    *,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """List the jobs of this host, or with --nats or a context those of a bus."""

    async def main() -> ExitCode:
        data = await (_of_host() if (target := _bus(nats)) is None else _of_bus(target))
        rows = [(one["job"], one["state"], one["epoch"], one["step"], one["bus"]) for one in data]
        output.emit(
            data,
            format=format,
            render=lambda: output.table(("job", "state", "epoch", "step", "bus"), rows),
        )
        return ExitCode.OK

    raise typer.Exit(execute(main))


@job_app.command("record")
def record(
    file: Annotated[Path, typer.Argument(help="Where to write the recording (.tmrec.gz).")],
    *,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Stop after so long; else with Ctrl-C.")
    ] = None,
    job: JobOption = None,
    nats: NatsOption = None,
) -> None:
    """Record a job's facts and telemetry, for `detector replay` and `simulate --from`."""

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        try:
            recorder = Recorder(file)
        except OSError as error:
            raise ConfigError(f"recording {file} cannot be written: {error}.") from error
        try:
            with recorder:
                async with connect(target) as bus:
                    await _record(bus, target.job, recorder, seconds)
        finally:
            output.note(f"recording {file}: {recorder.entries} entries")
        return ExitCode.OK

    raise typer.Exit(execute(main))


async def _record(bus: Bus, job: str, recorder: Recorder, seconds: float | None) -> None:
    began = time.monotonic()
    began_at = time.time()

    async def facts() -> None:
        # From the start of the job: who sits where is told by facts alone.
        async for delivery in bus.events(job):
            event = delivery.payload
            said_s = event.time.timestamp() - began_at
            recorder.fact(time.monotonic() - began, event.payload, said_s=said_s)

    async def telemetry() -> None:
        async for _, data in bus.telemetry(job):
            recorder.batch(time.monotonic() - began, data)

    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            group.create_task(facts())
            group.create_task(telemetry())
    except TimeoutError:
        return


def _bus(nats: str | None) -> Target | None:
    """The bus whose jobs are wanted; None: this host's."""
    if nats is not None:
        return Target(job="", url=nats)
    known = contexts.Contexts.load()
    context = known.named() or known.in_use()
    if context is None:
        return None
    return Target(job="", url=context.nats, credentials=context.credentials())


async def _of_host() -> list[dict[str, Any]]:
    found = []
    for record in registry.jobs():
        target = Target.find(record.job, None)
        try:
            async with connect(target) as bus:
                found.append(await _row(bus, record.job, target.bus))
        except BusError:
            found.append(_unknown(record.job, target.bus))
    return found


async def _of_bus(target: Target) -> list[dict[str, Any]]:
    async with connect(target) as bus:
        names = [key for key in await bus.keys(JOBS_BUCKET) if "." not in key]
        return [await _row(bus, name, target.bus) for name in names]


async def _row(bus: Bus, job: str, url: str) -> dict[str, Any]:
    """What the planner noted last; also where no planner runs any more."""
    entry = await bus.get(JOBS_BUCKET, job)
    if entry is None:
        return _unknown(job, url)
    try:
        status = JobStatus.model_validate_json(entry.value)
    except ValidationError:  # of another version, or damaged: the others are listed all the same
        return _unknown(job, url)
    return {
        "job": job,
        "state": status.phase,
        "epoch": status.epoch,
        "step": status.step,
        "reason": status.reason,
        "bus": url,
    }


def _unknown(job: str, url: str) -> dict[str, Any]:
    return {"job": job, "state": "unknown", "epoch": None, "step": None, "reason": "", "bus": url}
