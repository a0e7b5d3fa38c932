"""The command tree."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from trainmover import __version__
from trainmover.bus.credentials import CA, CREDS, NKEY, Credentials
from trainmover_console.cli import output
from trainmover_console.cli.exits import ExitCode
from trainmover_console.cli.jobs import look, steer
from trainmover_console.cli.jobs import run as cluster
from trainmover_console.cli.jobs.depart import depart
from trainmover_console.cli.jobs.migrate import migrate
from trainmover_console.cli.jobs.watch import watch
from trainmover_console.cli.servers.dashboard import dashboard
from trainmover_console.cli.servers.metrics import metrics
from trainmover_console.cli.servers.notices import notices_app
from trainmover_console.cli.servers.relay import relay
from trainmover_console.cli.tools.demo import demo
from trainmover_console.cli.tools.detectors import detectors_app, record
from trainmover_console.cli.tools.doctor import doctor
from trainmover_console.cli.tools.setup import setup
from trainmover_console.cli.tools.simulate import simulate

__all__ = ["app", "run"]

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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    nats_nkey: Annotated[
        Path | None, typer.Option(envvar=NKEY, help="File with our seed, from trainmover setup.")
    ] = None,
    nats_creds: Annotated[
        Path | None, typer.Option(envvar=CREDS, help="File with our JWT and seed.")
    ] = None,
    nats_ca: Annotated[
        Path | None, typer.Option(envvar=CA, help="Certificate of the bus's authority.")
    ] = None,
) -> None:
    """Replace a machine of a running PyTorch training job without restarting the job."""
    del version  # its callback did the work
    # Services that we start have to find them too.
    given = Credentials(nkey=nats_nkey, creds=nats_creds, ca=nats_ca)
    os.environ.update(given.environment())


app.command()(demo)
app.command(
    # The rest of the line belongs to the program, options and all.
    context_settings={
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": False,
    },
    options_metavar="[OPTIONS] PROGRAM [ARGS]...",
)(cluster.run)
app.command()(cluster.agent)
app.command()(cluster.up)
app.command()(setup)
app.command()(relay)
app.command()(look.status)
app.command()(watch)
app.command()(look.machines)
app.command()(dashboard)
app.command()(doctor)
app.command()(metrics)
app.command()(migrate)
app.command()(depart)
app.command()(steer.approve)
app.command()(steer.reject)
app.command()(steer.abort)
app.command()(steer.pause)
app.command()(steer.resume)
app.command()(steer.quarantine)
app.command()(steer.release)
app.command()(record)
app.command()(simulate)
app.add_typer(detectors_app, name="detectors")
app.add_typer(notices_app, name="notices")
app.add_typer(look.migrations_app, name="migrations")
app.add_typer(look.events_app, name="events")


def run() -> int:
    """Run the command line; returns its exit code."""
    if sys.argv[1:2] == ["agent"]:
        # Before any parsing, which would eat the "--" that the agent wants to see.
        cluster.become_agent(sys.argv[2:])
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
