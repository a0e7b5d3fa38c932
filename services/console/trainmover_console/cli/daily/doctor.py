"""``trainmover doctor``: the usual mistakes, each with its cure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trainmover.bus.credentials import BusAddress, Credentials
from trainmover.bus.facts import history
from trainmover.bus.nats.bus import NatsBus
from trainmover.errors import BusError
from trainmover.subjects import validate_id
from trainmover_console.cli import output
from trainmover_console.cli.connect import JobOption, NatsOption, OutputOption, Target, execute
from trainmover_console.cli.contexts import Contexts
from trainmover_console.cli.exits import ExitCode
from trainmover_console.doctor import Symptom, host, machines, worst
from trainmover_console.doctor import bus as bus_checks
from trainmover_console.view import JobView
from trainmover_launcher import registry

__all__ = ["doctor"]

_STYLES: Final = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    *,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
) -> None:
    """Look for the usual mistakes on this host, on the bus and on the machines of a job.

    Without a job and a bus it looks at this host alone.

    Exit codes: 0 no problem (there may be warnings), 1 problems were found, 2 usage,
    130 interrupted.
    """

    async def main() -> ExitCode:
        target = _target(job, nats)
        findings = await examine(*target)
        data = {
            "worst": worst(findings),
            "job": target[0],
            "bus": target[1],
            "findings": [one.as_data() for one in findings],
        }
        output.emit(data, format=format, render=lambda: _page(findings))
        return ExitCode.FAILED if worst(findings) == "problem" else ExitCode.OK

    raise typer.Exit(execute(main))


def _target(job: str | None, nats: str | None) -> tuple[str | None, str | None, Credentials]:
    """The job and the bus to look at, as far as they are known, and who we are."""
    own = Credentials.from_environment()
    if nats is not None:
        return (None if job is None else validate_id(job, what="job")), nats, own
    contexts = Contexts.load()
    if job is None and not registry.jobs() and not (contexts.named() or contexts.in_use()):
        return None, None, own
    found = Target.find(job, None)
    return found.job, found.url, found.credentials or own


async def examine(job: str | None, url: str | None, credentials: Credentials) -> list[Symptom]:
    """Everything that can be looked at."""
    findings = list(host.judge(host.gather(None if url is None else BusAddress.parse(url))))
    if url is None:
        return findings
    greeting = await bus_checks.greet(url)
    findings += bus_checks.judge_greeting(greeting, credentials)
    if worst(one for one in findings if one.check in ("bus", "jetstream")) == "problem":
        return findings
    try:
        async with NatsBus(url, name="trainmover-doctor", credentials=credentials) as bus:
            seen = await bus_checks.examine(bus, job)
            findings += bus_checks.judge(seen, job=job)
            if job is not None and seen.facts:
                told, view = await history(bus, job), JobView(job)
                for fact in told:
                    view.apply(fact)
                there = machines.announced(told)
                findings += machines.judge(there, await machines.dial(there))
                findings += machines.judge_standbys(view, now=datetime.now(UTC))
    except BusError as error:
        findings.append(
            Symptom("permissions", "problem", str(error), "See docs/howto/security.md for keys.")
        )
    return findings


def _page(findings: list[Symptom]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for one in findings:
        words = Text(one.text)
        if one.cure:
            words.append(f"\n{one.cure}", style="bold")
        grid.add_row(Text(one.level, style=_STYLES[one.level]), one.check, words)
    bad = sum(one.level == "problem" for one in findings)
    doubtful = sum(one.level == "warning" for one in findings)
    return Group(grid, Text(f"\nproblems: {bad}, warnings: {doubtful}"))
