"""``trainmover metrics``: a job as numbers for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from trainmover.bus.facts import history
from trainmover.errors import ConfigError
from trainmover_console.cli import output
from trainmover_console.cli.connect import JobOption, NatsOption, Target, connect, execute
from trainmover_console.cli.exits import ExitCode
from trainmover_console.view.live import Watched, follow

__all__ = ["metrics"]


def metrics(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 9478,
    once: Annotated[
        bool, typer.Option("--once", help="Write them to stdout and end; telemetry is left out.")
    ] = False,
    job: JobOption = None,
    nats: NatsOption = None,
) -> None:
    """Serve a job's figures at /metrics in the format of Prometheus, until Ctrl-C.

    Needs a user of the bus that may look, no more. Dashboards and alerts for them: deploy/obs.

    Exit codes: 0 stopped by SIGTERM (or --once), 2 usage, 3 the bus refuses us, 4 unreachable,
    130 interrupted.
    """

    async def main() -> ExitCode:
        # A machine that trains needs none of this.
        try:
            from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415

            from trainmover_console.dashboard.serve import listen, serve  # noqa: PLC0415
            from trainmover_console.metrics.app import create  # noqa: PLC0415
            from trainmover_console.metrics.exporter import JobCollector  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"metrics need {error.name}: pip install 'trainmover[console]'."
            ) from error

        target = Target.find(job, nats)
        watched = Watched(target.job)
        registry = CollectorRegistry()
        registry.register(JobCollector(watched, clock=lambda: datetime.now(UTC)))
        async with connect(target) as bus:
            if once:
                for fact in await history(bus, target.job):
                    watched.apply(fact)
                sys.stdout.write(generate_latest(registry).decode())
                return ExitCode.OK
            with contextlib.closing(listen(host, port)) as listener:
                address = listener.getsockname()
                output.note(f"metrics of {target.job}: http://{address[0]}:{address[1]}/metrics")
                async with asyncio.TaskGroup() as tasks:
                    following = tasks.create_task(follow(bus, watched))
                    app = create(registry, watched)
                    received = await serve(app, listener, closing=lambda: None)
                    following.cancel()
        return ExitCode.INTERRUPTED if received is signal.SIGINT else ExitCode.OK

    raise typer.Exit(execute(main))
