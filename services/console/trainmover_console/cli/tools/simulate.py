"""``trainmover simulate``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmover_console.cli import output
from trainmover_console.cli.connect import OutputOption, execute
from trainmover_console.cli.exits import ExitCode

__all__ = ["simulate"]


def simulate(
    *,
    gpus: Annotated[int, typer.Option(help="GPUs that train, 8 in a machine.", min=8)] = 65_536,
    days: Annotated[float, typer.Option(help="Length of the history.", min=0.01)] = 7.0,
    standbys: Annotated[int, typer.Option(help="Standby machines.", min=0, max=100_000)] = 32,
    compare: Annotated[
        str, typer.Option(help="Systems, with commas between; or all.", metavar="NAMES")
    ] = "all",
    failures: Annotated[
        str,
        typer.Option(
            help="Rates of trainmover, rsc, llama3 or c4; or a CSV file: at_s,slots,kind.",
            metavar="MODEL|FILE",
        ),
    ] = "trainmover",
    scenario: Annotated[
        str, typer.Option(help="Assumptions: measured, paper or paper-two-minutes.")
    ] = "measured",
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
    format: OutputOption = output.Format.TABLE,  # noqa: A002
    as_json: Annotated[bool, typer.Option("--json", help="As -o json.")] = False,
) -> None:
    """Estimate what failures cost a large job with TrainMover and with others.

    All systems go through the same failures. What is assumed, and from where, is printed with it.

    Exit codes: 0 done, 2 no such model, or a file cannot be read or written.
    """

    async def main() -> ExitCode:
        # Only this command needs the planner's core and numbers of others.
        from trainmover_console.cli.tools import simulate_show as show  # noqa: PLC0415

        chosen = output.Format.JSON if as_json else format
        if paper:
            return show.paper(format=chosen)
        asked = show.Asked(
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
        )
        return show.compare(asked, plots=plot or (), format=chosen)

    raise typer.Exit(execute(main))
