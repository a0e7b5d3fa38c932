"""``trainmover demo`` behind its options: display, verdict, what is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from trainmover.errors import ConfigError
from trainmover_console.cli import output
from trainmover_console.cli.exits import ExitCode
from trainmover_console.cli.services.supervise import thread_environment
from trainmover_console.demo.live import live, plain
from trainmover_console.demo.play import Demo, DemoSpec, Outcome, RunState
from trainmover_console.demo.report import write_report

__all__ = ["show"]


async def show(
    *,
    steps: int,
    seed: int,
    slots: int,
    standbys: int,
    report: Path,
    format: output.Format,  # noqa: A002
    one_line: bool,
    limit_s: float,
    keep: Path | None,
) -> ExitCode:
    """Play the demo, print its verdict, write its report.

    Raises:
        ConfigError: The options make no demo.
    """
    folder = _folder(keep)
    spec = DemoSpec(
        job=f"demo-{secrets.token_hex(2)}",
        steps=steps,
        seed=seed,
        nnodes_min=slots,
        nnodes_max=slots + standbys,
        folder=folder,
        limit_s=limit_s,
        environment=thread_environment(slots),
    )
    done = False
    try:
        outcome = await _play(spec)
        if outcome is None:
            done = True
            output.note("interrupted; every process was ended")
            return ExitCode.INTERRUPTED
        done = outcome.passed
        write_report(outcome, report)
        data = {**outcome.as_data(), "report": str(report)}
        if one_line:
            sys.stdout.write(json.dumps(data) + "\n")
        else:
            output.emit(data, format=format, render=lambda: _verdict(outcome, report))
        return ExitCode.OK if outcome.passed else ExitCode.FAILED
    finally:
        if keep is None and done:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            output.note(f"metrics and logs are in {folder}")


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="trainmover-demo-"))
    try:
        keep.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{keep} exists already: name a new folder with --keep.") from None
    return keep.absolute()


async def _play(spec: DemoSpec) -> Outcome | None:
    console = output.messages()
    view = live if console.is_terminal else plain

    @contextlib.asynccontextmanager
    async def display(state: RunState) -> AsyncIterator[None]:
        async with view(console, state):
            yield

    play = Demo(spec, display=display)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, play.stop, f"interrupted by {number.name}")
    try:
        return await play.play()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _verdict(outcome: Outcome, report: Path) -> RenderableType:
    rows = []
    for move in outcome.moves:
        gap = outcome.gap(move)
        rows.append(
            (
                move.id,
                move.kind,
                move.slot,
                f"{move.leaver} -> {move.joiner}",
                None if move.pause_s is None else f"{move.pause_s:.3f}",
                None if gap is None else f"{gap[1] - gap[0]:.3f}",
                max(move.steps_redone.values(), default=0),
            )
        )
    columns = ("migration", "kind", "slot", "move", "pause s", "step to step s", "redone")
    lines: list[RenderableType] = [Text(""), output.table(columns, rows), Text("")]
    lines += [Text(f"{move.id}: {move.cause}") for move in outcome.moves]
    step, undisturbed = outcome.run_metrics.median_step_s, outcome.reference_metrics.median_step_s
    if step is not None and undisturbed is not None:
        lines.append(Text(f"median step: {step:.3f} s, undisturbed {undisturbed:.3f} s"))
    if outcome.restart_s is not None:
        lines.append(
            Text(
                f"a restart would have paused for at least {outcome.restart_s:.1f} s: that is how "
                "long the undisturbed run took from the launch of its processes to its first step "
                "(noticing, loading a checkpoint and redoing steps come on top)"
            )
        )
    compared = outcome.comparison.compared
    if outcome.comparison.equal:
        lines.append(Text(f"{compared} losses and all final states are equal, bit for bit"))
    lines += [Text(f"problem: {problem}", style="red") for problem in outcome.problems]
    lines.append(Text(f"report: {report}"))
    word, style = ("PASS", "bold green") if outcome.passed else ("FAIL", "bold red")
    lines.append(Text(word, style=style))
    return Group(*lines)
