"""``trainmover demo``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmover_console.cli import output
from trainmover_console.cli.connect import OutputOption, execute
from trainmover_console.cli.exits import ExitCode

__all__ = ["demo"]


def demo(
    *,
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=60)] = 140,
    seed: Annotated[int, typer.Option(help="Seed of both runs.")] = 1234,
    slots: Annotated[int, typer.Option(help="Machines that train.", min=3, metavar="N")] = 4,
    standbys: Annotated[int, typer.Option(help="Machines beside them.", min=2, metavar="N")] = 2,
    report: Annotated[Path, typer.Option(help="The HTML report.")] = Path("out/demo.html"),
    format: OutputOption = output.Format.TABLE,  # noqa: A002
    as_json: Annotated[bool, typer.Option("--json", help="As -o json, on one line.")] = False,
    limit: Annotated[float, typer.Option(help="Seconds one run may take.", min=10)] = 240.0,
    keep: Annotated[
        Path | None, typer.Option(help="Keep metrics and logs in this new folder.")
    ] = None,
) -> None:
    """Make a machine slow, kill another, and compare with an undisturbed run, bit for bit.

    Exit codes: 0 the verdict is pass, 1 it is fail, 2 usage, 130 interrupted.
    """

    async def main() -> ExitCode:
        # Its plots and numbers are half of the command's start-up time: only the demo pays.
        from trainmover_console.cli.daily.demo_show import show  # noqa: PLC0415

        return await show(
            steps=steps,
            seed=seed,
            slots=slots,
            standbys=standbys,
            report=report,
            format=format,
            one_line=as_json,
            limit_s=limit,
            keep=keep,
        )

    raise typer.Exit(execute(main))
