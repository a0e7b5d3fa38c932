"""``trainmover automation``: what policy may do about a straggler by itself."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmover.events.operator import AutomationMode
from trainmover.protocol.requests import AutomationRequest
from trainmover_console.cli import output, requests
from trainmover_console.cli.connect import JobOption, NatsOption, OutputOption

__all__ = ["automation_app"]

automation_app = typer.Typer(
    help="What policy may do about stragglers by itself.", no_args_is_help=True
)


@automation_app.command("pause")
def pause(
    *,
    reason: requests.ReasonOption = "operator request",
    by: requests.ByOption = None,
    dry_run: requests.DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Leave stragglers where they are until it is resumed; the dead are still replaced.

    Exit codes: 0 accepted, 2 usage, 3 refused (it is paused already), 4 unreachable.
    """
    request = AutomationRequest(
        mode="paused", reason=reason, requested_by=requests.who(by), dry_run=dry_run
    )
    raise typer.Exit(requests.operate("automation", request, job, nats, format))


@automation_app.command("resume")
def resume(
    *,
    approval: Annotated[
        bool, typer.Option("--approval", help="Propose each move, and wait for an operator.")
    ] = False,
    reason: requests.ReasonOption = "operator request",
    by: requests.ByOption = None,
    dry_run: requests.DryRunOption = False,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Let policy move stragglers again, or with --approval propose to.

    Exit codes: 0 accepted, 2 usage, 3 refused (it is so already), 4 unreachable.
    """
    mode: AutomationMode = "approval" if approval else "automatic"
    request = AutomationRequest(
        mode=mode, reason=reason, requested_by=requests.who(by), dry_run=dry_run
    )
    raise typer.Exit(requests.operate("automation", request, job, nats, format))
