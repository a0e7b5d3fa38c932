"""``trainmover pool advise``: how many standbys a job needs."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmover.bus.facts import history
from trainmover.errors import ConfigError
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
from trainmover_simulator.jobs.losses import Losses

__all__ = ["pool_app"]

_HELP = "Machines that several jobs share, and how many standbys a job needs."

pool_app = typer.Typer(help=_HELP, no_args_is_help=True)


@pool_app.callback()
def pool() -> None:
    """Machines that several jobs share, and how many standbys a job needs."""


@pool_app.command("advise")
def advise(
    *,
    machines: Annotated[int | None, typer.Option(help="Slots of the job.", min=1)] = None,
    mtbf: Annotated[
        str | None,
        typer.Option(help="Mean time between failures of one machine, as 150d.", metavar="TIME"),
    ] = None,
    failures: Annotated[
        str | None,
        typer.Option(help="Instead: failures of the whole job, as 6/week.", metavar="RATE"),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="Instead: published rates, of trainmover, rsc, llama3 or c4.", metavar="MODEL"
        ),
    ] = None,
    repair: Annotated[
        str | None,
        typer.Option(
            help="From a loss until another standby is warm in its place, as 4h.", metavar="TIME"
        ),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(help="Machines that a rack or a switch takes with it.", min=2),
    ] = None,
    group_share: Annotated[
        str | None,
        typer.Option(help="Share of the failures that take a group, as 2%.", metavar="SHARE"),
    ] = None,
    moves: Annotated[
        str | None,
        typer.Option(help="Planned moves that policy wants, as 3/week.", metavar="RATE"),
    ] = None,
    elsewhere: Annotated[
        str | None,
        typer.Option(
            help="Until a scheduler has another machine where no standby is, as 2m.",
            metavar="TIME",
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help="The share to hold, as 99.9%.", metavar="SHARE")
    ] = "99.9%",
    by: Annotated[
        str,
        typer.Option(
            help="A share of the failures (that find standbys), or of the time (all slots filled).",
            metavar="failures|time",
        ),
    ] = "failures",
    simulated: Annotated[
        bool, typer.Option("--simulate", help="Also draw a history, and compare it.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The same one gives the same history.", min=0)] = 0,
    job: JobOption = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
    as_json: Annotated[bool, typer.Option("--json", help="As -o json.")] = False,
) -> None:
    """Advise how many standbys to keep, for how machines fail and how soon they are replaced.

    What is left out of --machines, failures and --repair is read from the facts of a job. What is
    assumed is printed with the advice; docs/howto/standbys.md has the formula.

    Exit codes: 0 done, 2 a value says nothing or is missing, 4 the job's bus is unreachable.
    """

    async def main() -> ExitCode:
        # Only this command needs these.
        from trainmover_console.cli.pool import question, show  # noqa: PLC0415

        if by not in ("failures", "time"):
            raise ConfigError(f"--by {by} is not known: write --by failures or --by time.")
        asked = question.Asked(
            machines=machines,
            mtbf=mtbf,
            failures=failures,
            rates=rates,
            repair=repair,
            group=group,
            group_share=group_share,
            moves=moves,
            elsewhere=elsewhere,
            target=target,
            of="time" if by == "time" else "failures",
        )
        seen = await _seen(job, nats) if asked.needs_facts else None
        found = show.answer(asked.question(seen), simulated=simulated, seed=seed)
        chosen = output.Format.JSON if as_json else format
        output.emit(found, format=chosen, render=lambda: show.render(found))
        return ExitCode.OK

    raise typer.Exit(execute(main))


async def _seen(job: str | None, nats: str | None) -> Losses:
    try:
        target = Target.find(job, nats)
    except ConfigError as error:
        raise ConfigError(
            f"without a job to look at, give --machines, --mtbf and --repair. {error}"
        ) from error
    async with connect(target) as bus:
        return Losses.of(await history(bus, target.job))
