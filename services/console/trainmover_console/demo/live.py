"""The demo in the terminal: a live view where there is one, plain lines where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainmover_console.demo.play import Line, RunState
from trainmover_console.view.terminal import phases, strip

__all__ = ["live", "plain"]

_REFRESH_S: Final = 0.125
_STRIP: Final = 48
_EVENTS: Final = 8
_STYLES: Final = {"warning": "yellow", "act": "bold magenta"}


@contextlib.asynccontextmanager
async def live(console: Console, state: RunState) -> AsyncIterator[None]:
    """Redraw ``state`` until the block ends; what it drew last stays on the screen."""
    # No refresh thread: processes are started beside this, and a fork wants no second thread.
    with Live(_drawn(state), console=console, auto_refresh=False) as screen:

        async def redraw() -> None:
            while True:
                screen.update(_drawn(state), refresh=True)
                await asyncio.sleep(_REFRESH_S)

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(redraw())
            try:
                yield
            finally:
                task.cancel()
                screen.update(_drawn(state), refresh=True)


@contextlib.asynccontextmanager
async def plain(console: Console, state: RunState) -> AsyncIterator[None]:
    """Print lines and progress as they come until the block ends."""
    told, stepped = 0, 0

    def print_new() -> None:
        nonlocal told, stepped
        for line in state.lines[told:]:
            console.print(Text(_clock(line.time_s) + "  " + line.text), soft_wrap=True)
        told = len(state.lines)
        if state.view.step - stepped >= 20:
            stepped = state.view.step
            now = _clock(time.time())
            console.print(f"{now}  step {stepped} of {state.steps}", soft_wrap=True)

    async def poll() -> None:
        while True:
            print_new()
            await asyncio.sleep(_REFRESH_S)

    console.print(f"-- {state.title}: {state.steps} steps")
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(poll())
        try:
            yield
        finally:
            task.cancel()
            print_new()


def _drawn(state: RunState) -> RenderableType:
    parts: list[RenderableType] = [_head(state), _progress(state), Text(""), _slots(state)]
    parts += [phases(move, now=datetime.now(UTC)) for move in state.view.migrations.values()]
    parts.append(Text(""))
    parts += [_event(line) for line in state.lines[-_EVENTS:]]
    return Group(*parts)


def _head(state: RunState) -> Text:
    epoch = "-" if state.view.membership is None else state.view.membership.epoch
    text = Text(state.title, style="bold")
    text.append(f"   {state.view.state}, epoch {epoch}", style="not bold")
    if state.scenario is not None:
        text.append(f"   {state.scenario.stage}", style="not bold cyan")
    return text


def _progress(state: RunState) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    row.add_row(
        ProgressBar(total=state.steps, completed=state.view.step, width=60),
        f"step {state.view.step} of {state.steps}",
    )
    return row


def _slots(state: RunState) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    membership = state.view.membership
    if membership is None:
        return Text("machines register ...", style="dim")
    grid.add_row(*(Text(name, style="dim") for name in ("slot", "machine", "lateness, last steps")))
    median = [one.step_s for one in state.view.machines.values() if one.step_s]
    full_s = max([*median, 0.02])
    for slot, member in enumerate(membership.members):
        blocks = strip(state.lateness.latest(slot, _STRIP), full_s=full_s)
        hurt = state.scenario is not None and member.machine in {
            state.scenario.slowed,
            state.scenario.killed,
        }
        grid.add_row(str(slot), Text(member.machine, style="red" if hurt else ""), blocks)
    standbys = [
        f"{one.name} (ready for {len(one.ready_slots)} of {membership.layout.slots} slots)"
        for one in state.view.standbys
    ]
    if standbys:
        grid.add_row("", Text("standby", style="dim"), Text(", ".join(standbys), style="dim"))
    return grid


def _event(line: Line) -> Text:
    text = Text(_clock(line.time_s) + "  ", style="dim", overflow="ellipsis", no_wrap=True)
    text.append(line.text, style=_STYLES.get(line.level, "not dim"))
    return text


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).astimezone().strftime("%H:%M:%S")
