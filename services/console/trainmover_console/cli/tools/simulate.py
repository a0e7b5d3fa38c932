"""``trainmover simulate``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmover_console.cli import output
from trainmover_console.cli.connect import NatsOption, OutputOption, execute
from trainmover_console.cli.exits import ExitCode

__all__ = ["simulate"]


def simulate(
    *,
    recording: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Take size, times and rates from what `job record` wrote.",
            metavar="FILE",
        ),
    ] = None,
    from_job: Annotated[
        str | None, typer.Option(help="The same from a job's bus.", metavar="JOB")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            help="GPUs that train, 8 in a machine; 65,536, or the ranks of the job.", min=1
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(help="Length of the history; 7, or a year where a job is asked.", min=0.01),
    ] = None,
    standbys: Annotated[
        int | None,
        typer.Option(help="Standby machines; 32, or those of the job.", min=0, max=100_000),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Systems, with commas between, or all; all, or TrainMover where a job is asked.",
            metavar="NAMES",
        ),
    ] = None,
    failures: Annotated[
        str | None,
        typer.Option(
            help="Rates of trainmover, rsc, llama3, c4 or the job; or a CSV file: at_s,slots,kind. "
            "trainmover, or those of the job.",
            metavar="MODEL|job|FILE",
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="Assumptions: measured, paper, paper-two-minutes or job; measured, or job."
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Another value for an assumption: detect_s=5, trainmover.standby_s=8.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same one gives the same history.", min=0)] = 0,
    sweep: Annotated[
        tuple[str, str] | None,
        typer.Option(help="How many standbys? As: standbys 0..64.", metavar="standbys FROM..TO"),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The papers' figures and ours; takes no other option.")
    ] = False,
    planner: Annotated[
        bool,
        typer.Option("--planner", help="Also ask the planner's real core (65,536 GPUs: minutes)."),
    ] = False,
    price: Annotated[float, typer.Option(help="Dollars for a GPU hour.", min=0)] = 3.67,
    plot: Annotated[
        list[Path] | None,
        typer.Option(
            help="Draw what comes of it; may be given again. A .png needs the extra plots.",
            metavar="FILE.svg|.png|.html",
        ),
    ] = None,
    nats: NatsOption = None,
    format: OutputOption = output.Format.TABLE,  # noqa: A002
    as_json: Annotated[bool, typer.Option("--json", help="As -o json.")] = False,
) -> None:
    """Estimate what failures cost a large job with TrainMover and with others.

    All systems go through the same failures. What is assumed, and from where, is printed with it.
    With --from or --from-job it is about a job that was observed: its size, its rate of failures
    and its times are taken, and what one standby more or less would change is said.

    Exit codes: 0 done, 2 no such model, or a file cannot be read or written, 4 no bus.
    """

    async def main() -> ExitCode:
        # Only this command needs the planner's core and numbers of others.
        from trainmover_console.cli.tools import simulate_from, simulate_show  # noqa: PLC0415

        chosen = output.Format.JSON if as_json else format
        if paper:
            return simulate_show.paper(format=chosen)
        asked = simulate_show.Asked(
            gpus=gpus,
            days=days,
            standbys=standbys,
            systems=compare,
            failures=failures,
            scenario=scenario,
            changes=tuple(change or ()),
            seed=seed,
            sweep=sweep,
            planner=planner,
            price=price,
            run=await simulate_from.observed(recording=recording, job=from_job, nats=nats),
        )
        return simulate_show.compare(asked, plots=plot or (), format=chosen)

    raise typer.Exit(execute(main))
