"""The command tree: what people do every day at the top, all else as ``trainmover NOUN VERB``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from trainmover import __version__
from trainmover.bus.credentials import CA, CERT, CREDS, NKEY, Credentials
from trainmover_console.cli import contexts, output
from trainmover_console.cli.daily.demo import demo
from trainmover_console.cli.daily.doctor import doctor
from trainmover_console.cli.daily.drain import drain
from trainmover_console.cli.daily.migrate import migrate
from trainmover_console.cli.daily.run import run as run_job
from trainmover_console.cli.daily.status import status
from trainmover_console.cli.daily.watch import watch
from trainmover_console.cli.exits import ExitCode
from trainmover_console.cli.jobs.automation import automation_app
from trainmover_console.cli.jobs.event import event_app
from trainmover_console.cli.jobs.job import job_app
from trainmover_console.cli.jobs.machine import machine_app
from trainmover_console.cli.jobs.migration import migration_app
from trainmover_console.cli.jobs.notice import notice_app
from trainmover_console.cli.jobs.policy import policy_app
from trainmover_console.cli.pool.advise import pool_app
from trainmover_console.cli.pool.status import status as pool_status
from trainmover_console.cli.services.dashboard import dashboard
from trainmover_console.cli.services.metrics import metrics
from trainmover_console.cli.services.processes import (
    agent,
    become,
    detector_run,
    planner_app,
    pool_serve,
)
from trainmover_console.cli.services.relay import relay
from trainmover_console.cli.services.up import up
from trainmover_console.cli.tools.bus import bus_app
from trainmover_console.cli.tools.context import context_app
from trainmover_console.cli.tools.detector import detector_app
from trainmover_console.cli.tools.simulate import simulate

__all__ = ["app", "run"]

_DAILY: Final = "Every day"
_JOBS: Final = "A job"
_TOOLS: Final = "Beside jobs"
_SERVICES: Final = "Services"

app = typer.Typer(
    name="trainmover",
    help="Replace a machine of a running PyTorch training job without restarting the job.",
    epilog=(
        "Data goes to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 usage, "
        "3 refused (nothing changed), 4 bus or planner unreachable, 130 interrupted."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"trainmover {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    context: Annotated[
        str | None,
        typer.Option(envvar=contexts.VARIABLE, help="Bus and job, by 'trainmover context' name."),
    ] = None,
    nats_nkey: Annotated[
        Path | None,
        typer.Option(envvar=NKEY, help="File with our seed, from trainmover bus setup."),
    ] = None,
    nats_creds: Annotated[
        Path | None, typer.Option(envvar=CREDS, help="File with our JWT and seed.")
    ] = None,
    nats_ca: Annotated[
        Path | None, typer.Option(envvar=CA, help="Certificate of the bus's authority.")
    ] = None,
    nats_cert: Annotated[
        Path | None,
        typer.Option(envvar=CERT, help="Our certificate and its key, where the bus asks for it."),
    ] = None,
) -> None:
    """Replace a machine of a running PyTorch training job without restarting the job."""
    del version  # its callback did the work
    # Services that we start have to find them too.
    given = Credentials(nkey=nats_nkey, creds=nats_creds, ca=nats_ca, cert=nats_cert)
    os.environ.update(given.environment())
    if context is not None:
        os.environ[contexts.VARIABLE] = context


app.command(
    "run",
    rich_help_panel=_DAILY,
    # The rest of the line belongs to the program, options and all.
    context_settings={
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": False,
    },
    options_metavar="[OPTIONS] PROGRAM [ARGS]...",
)(run_job)
for command in (status, watch, migrate, drain, doctor, demo):
    app.command(rich_help_panel=_DAILY)(command)

app.add_typer(job_app, name="job", rich_help_panel=_JOBS)
app.add_typer(machine_app, name="machine", rich_help_panel=_JOBS)
app.add_typer(migration_app, name="migration", rich_help_panel=_JOBS)
app.add_typer(automation_app, name="automation", rich_help_panel=_JOBS)
app.add_typer(policy_app, name="policy", rich_help_panel=_JOBS)
app.add_typer(event_app, name="event", rich_help_panel=_JOBS)
app.add_typer(notice_app, name="notice", rich_help_panel=_JOBS)

app.add_typer(bus_app, name="bus", rich_help_panel=_TOOLS)
app.add_typer(context_app, name="context", rich_help_panel=_TOOLS)
app.add_typer(detector_app, name="detector", rich_help_panel=_TOOLS)
detector_app.command("run")(detector_run)
app.command(rich_help_panel=_TOOLS)(simulate)
app.add_typer(pool_app, name="pool", rich_help_panel=_TOOLS)
pool_app.command("status")(pool_status)
pool_app.command("serve")(pool_serve)

app.command(rich_help_panel=_SERVICES)(agent)
app.add_typer(planner_app, name="planner", rich_help_panel=_SERVICES)
for service in (up, dashboard, metrics, relay):
    app.command(rich_help_panel=_SERVICES)(service)


def run() -> int:
    """Run the command line; returns its exit code."""
    become(sys.argv[1:])
    try:
        app(standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except BrokenPipeError:
        return ExitCode.FAILED
    except KeyboardInterrupt:
        output.note("interrupted")
        return ExitCode.INTERRUPTED
    return ExitCode.OK
