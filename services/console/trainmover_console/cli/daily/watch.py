"""``trainmover watch``: a job in the terminal, live, or line by line where there is none."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from trainmover_console.cli.connect import JobOption, NatsOption, Target, connect, execute
from trainmover_console.cli.exits import ExitCode
from trainmover_console.view.live import Watched, follow
from trainmover_console.view.terminal import clock, plain_line, render

__all__ = ["watch"]

_REDRAW_S: Final = 0.25
_POLL_S: Final = 0.1


def watch(
    *,
    once: Annotated[bool, typer.Option("--once", help="The state of now, then end.")] = False,
    every: Annotated[
        float, typer.Option(help="Seconds between two status lines where there is no terminal.")
    ] = 10.0,
    job: JobOption = None,
    nats: NatsOption = None,
) -> None:
    """Watch a job: pace, who is late, what moves and in which phase, the latest facts.

    Redraws on a terminal; elsewhere it writes a line for each fact and a status line now and then.

    Exit codes: 0 the job finished (or --once), 1 it failed, 2 usage, 4 unreachable,
    130 interrupted.
    """

    async def main() -> ExitCode:
        target = Target.find(job, nats)
        console = Console(highlight=False)
        watched = Watched(target.job)
        async with connect(target) as bus, asyncio.TaskGroup() as tasks:
            ready = asyncio.Event()

            def changed() -> None:
                if watched.current:
                    ready.set()

            following = tasks.create_task(follow(bus, watched, changed=changed))
            try:
                await ready.wait()
                if once:
                    console.print(render(watched, now=_now()))
                elif console.is_terminal:
                    await _redraw(console, watched)
                else:
                    await _lines(console, watched, every_s=every)
            finally:
                following.cancel()
        return ExitCode.FAILED if watched.view.state == "failed" else ExitCode.OK

    raise typer.Exit(execute(main))


async def _redraw(console: Console, watched: Watched) -> None:
    with Live(render(watched, now=_now()), console=console, auto_refresh=False) as screen:
        while True:
            screen.update(render(watched, now=_now()), refresh=True)
            if watched.view.over:
                return
            await asyncio.sleep(_REDRAW_S)


async def _lines(console: Console, watched: Watched, *, every_s: float) -> None:
    """What happened so far is one status line; from then on every fact."""
    loop = asyncio.get_running_loop()
    shown, due = watched.lines[-1] if watched.lines else None, loop.time()
    while True:
        fresh = []
        for line in reversed(watched.lines):
            if line is shown:
                break
            fresh.append(line)
        for line in reversed(fresh):
            console.print(Text(f"{clock(line.time)}  {line.text}"), soft_wrap=True)
            shown = line
        over = watched.view.over
        if over or loop.time() >= due:
            console.print(Text(plain_line(watched, now=_now())), soft_wrap=True)
            due = loop.time() + every_s
        if over:
            return
        await asyncio.sleep(_POLL_S)


def _now() -> datetime:
    return datetime.now(UTC)
