"""``trainmover simulate``: runs the simulator and shows what came of it."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.progress import Progress
from rich.text import Text

from trainmover.errors import ConfigError
from trainmover_console.cli import output
from trainmover_console.cli.exits import ExitCode
from trainmover_console.cli.tools.simulate_question import Asked, Question
from trainmover_console.report import plots as drawing
from trainmover_console.report import simulation as page
from trainmover_simulator.figures import NOT_GIVEN, Figure, figures
from trainmover_simulator.jobs.observed import Run
from trainmover_simulator.planner_run import decide
from trainmover_simulator.replay import Outcome, replay

__all__ = ["Asked", "compare", "paper"]

_DRAWN = (".svg", ".png", ".html")
_SHOWN = 12
_COLUMNS = (
    "system",
    "ETTR",
    "wasted\nGPU-h a\nweek",
    "times\nstopped",
    "roll-\nbacks",
    "standbys\nused",
    "waste\nM$",
    "standbys\nM$",
)


def compare(
    asked: Asked,
    *,
    plots: Sequence[Path],
    format: output.Format,  # noqa: A002
) -> ExitCode:
    """Let all systems go through the same failures.

    Args:
        asked: The question.
        plots: Files to draw, each in the format of its name.
        format: How data is written.

    Raises:
        ConfigError: Something that was asked is not known, or a file cannot be read or written.
    """
    began = time.monotonic()
    question = asked.question()
    _expect_drawable(plots)
    with _progress() as progress:
        outcomes = _outcomes(question, progress)
        swept = _swept(question, asked, progress)
        decided = _decided(question, progress) if asked.planner else None
    data: dict[str, Any] = {
        "rows": [_row(one, asked.price) for one in outcomes],
        "seed": asked.seed,
        "gpus": question.job.gpus,
        "days": question.job.days,
        "standbys": question.job.standbys,
        "scenario": question.scenario.name,
        "failures": question.source,
        "assumptions": {
            "surroundings": question.scenario.about,
            "changed": asked.changes,
            **{one.name: (one.title, one.source, *one.assumes) for one in question.systems},
        },
    }
    if swept:
        data["sweep"] = [{"standbys": n, **_row(one, asked.price)} for n, one in swept]
        data["least_waste"] = min(swept, key=lambda item: item[1].wasted_gpu_hours)[0]
    if asked.run is not None:
        data["observed"] = _observed(asked.run)
    if decided is not None:
        data["planner"] = decided
    data["wall_s"] = round(time.monotonic() - began, 3)
    data["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    drawn = page.plots(outcomes, swept, least=data.get("least_waste"))
    for path in plots:
        _draw(path, data, drawn)
    output.emit(data, format=format, render=lambda: _tables(data))
    return ExitCode.OK


def paper(*, format: output.Format) -> ExitCode:  # noqa: A002
    """Show the papers' figures beside ours."""
    with _progress() as progress:
        bar = progress.add_task("a year for each figure", total=None)
        found = figures(passed=lambda name: progress.update(bar, advance=1, description=name))
    data = {
        "figures": [
            {
                **asdict(one),
                "deviation": round(one.deviation, 5),
                "within": abs(one.deviation) <= 0.05,
            }
            for one in found
        ],
        "not_given": [{"name": name, "because": because} for name, because in NOT_GIVEN],
    }
    output.emit(data, format=format, render=lambda: _paper_table(found))
    return ExitCode.OK


def _progress() -> Progress:
    """Bars on a terminal's stderr, gone when it is done; nothing where nobody looks."""
    console = output.messages()
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _outcomes(question: Question, progress: Progress) -> list[Outcome]:
    members, standbys = question.histories(question.job)
    found = []
    for system in question.systems:
        bar = progress.add_task(system.title, total=1.0)
        found.append(
            replay(
                system,
                question.scenario,
                question.job,
                members,
                of_standbys=standbys,
                passed=lambda share, bar=bar: progress.update(bar, completed=share),  # type: ignore[misc]
            )
        )
        progress.update(bar, completed=1.0)
    return found


def _swept(question: Question, asked: Asked, progress: Progress) -> list[tuple[int, Outcome]]:
    counts = asked.standby_counts(question.job.standbys)
    system = question.mover
    bar = progress.add_task("standbys", total=len(counts))
    found = []
    for count in counts:
        job = replace(question.job, standbys=count)
        members, standbys = question.histories(job)
        outcome = replay(system, question.scenario, job, members, of_standbys=standbys)
        found.append((count, outcome))
        progress.advance(bar)
    return found


def _decided(question: Question, progress: Progress) -> dict[str, Any]:
    """What the planner's real core does with the same failures, beside the model's counts."""
    bar = progress.add_task("the planner's core", total=None)
    members, _ = question.histories(question.job)
    system = question.mover
    decisions = decide(system, question.scenario, question.job, members)
    # The core knows nothing of steps that are done again.
    scenario = replace(question.scenario, step_s=0.0, checkpoint_s=0.0)
    model = replay(system, scenario, question.job, members)
    progress.remove_task(bar)
    return {
        **asdict(decisions),
        "model": {
            "interruptions": model.interruptions,
            "standbys_used": model.standbys_used,
            "restarts": model.restarts,
            "still_s": (1 - model.ettr) * model.days * 86_400,
        },
    }


def _observed(run: Run) -> dict[str, Any]:
    """What the job itself had to bear until now."""
    pauses = [one.pause_s for one in run.interruptions]
    return {
        "hours": round(run.seconds / 3_600, 3),
        "interruptions": len(pauses),
        "pause_s": round(statistics.median(pauses), 3) if pauses else None,
        "ettr": None if run.ettr is None else round(run.ettr, 5),
    }


def _row(outcome: Outcome, price: float) -> dict[str, Any]:
    return {
        "system": outcome.system,
        "ettr": round(outcome.ettr, 5),
        "wasted_gpu_hours_per_week": round(outcome.wasted_gpu_hours_per_week, 1),
        "interruptions": outcome.interruptions,
        "standbys_used": outcome.standbys_used,
        "standbys_short": outcome.standbys_short,
        "restarts": outcome.restarts,
        "wasted_cost": round(outcome.wasted_gpu_hours * price),
        "standby_cost": round(outcome.standby_gpu_hours * price),
    }


def _cells(row: dict[str, Any], name: str) -> tuple[object, ...]:
    return (
        name,
        f"{row['ettr']:.2%}",
        _hours(row["wasted_gpu_hours_per_week"]),
        row["interruptions"],
        row["restarts"],
        row["standbys_used"],
        f"{row['wasted_cost'] / 1e6:,.2f}",
        f"{row['standby_cost'] / 1e6:,.2f}",
    )


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _tables(data: dict[str, Any]) -> RenderableType:
    rows = [_cells(row, row["system"]) for row in data["rows"]]
    title = (
        f"{data['gpus']:,} GPUs for {data['days']:g} days, {data['standbys']} standbys, "
        f"seed {data['seed']}"
    )
    parts: list[RenderableType] = [output.table(_COLUMNS, rows, title=title)]
    if "sweep" in data:
        apart = -(-len(data["sweep"]) // _SHOWN)
        lines = [
            _cells(row, str(row["standbys"]))
            for row in data["sweep"]
            if row["standbys"] % apart == 0 or row["standbys"] == data["least_waste"]
        ]
        parts += [Text(), output.table(("standbys", *_COLUMNS[1:]), lines)]
        parts.append(Text(f"least waste with {data['least_waste']} standbys"))
    if "observed" in data:
        parts += [Text(), *map(Text, _observed_words(data))]
    if "planner" in data:
        parts += [Text(), Text(_planner_words(data["planner"]))]
    parts += [Text(), Text(f"failures: {data['failures']}")]
    for who, sentences in data["assumptions"].items():
        if sentences:
            parts += [Text(f"{who}:"), *(Text(f"  {sentence}") for sentence in sentences)]
    return Group(*parts)


def _observed_words(data: dict[str, Any]) -> Iterator[str]:
    """What there was, and what one standby more or less would change."""
    seen = data["observed"]
    ettr = "unknown" if seen["ettr"] is None else f"{seen['ettr']:.1%}"
    pause = "" if seen["pause_s"] is None else f" of {seen['pause_s']:g} s in the median"
    yield (
        f"observed for {seen['hours']:g} h: {seen['interruptions']} interruptions{pause}, "
        f"ETTR {ettr}"
    )
    rows = {row["standbys"]: row for row in data["sweep"]}
    now = rows.get(data["standbys"])
    for count, words in ((data["standbys"] + 1, "more"), (data["standbys"] - 1, "fewer")):
        if now is not None and (row := rows.get(count)) is not None:
            hours = row["wasted_gpu_hours_per_week"] - now["wasted_gpu_hours_per_week"]
            yield (
                f"one standby {words}: {hours:+,.3g} GPU-hours wasted a week, ETTR "
                f"{now['ettr']:.2%} -> {row['ettr']:.2%}, waits for a machine "
                f"{now['standbys_short']} -> {row['standbys_short']}"
            )


def _planner_words(found: dict[str, Any]) -> str:
    model = found["model"]
    return (
        f"The planner's real core: {found['recoveries']} recoveries, {found['moves']} planned "
        f"moves, {found['restarts']} restarts, {found['standbys_used']} standbys used, "
        f"{found['still_s']:,.0f} s of standstill. "
        f"The model: {model['interruptions']} interruptions, {model['restarts']} of them "
        f"restarts, {model['standbys_used']} standbys used, {model['still_s']:,.0f} s."
    )


def _paper_table(found: tuple[Figure, ...]) -> RenderableType:
    rows = [
        (
            one.name,
            f"{one.paper:,.4g}",
            f"{one.ours:,.4g}",
            f"{one.deviation:+.1%}" + ("" if abs(one.deviation) <= 0.05 else " !"),
            None if one.measured is None else f"{one.measured:,.4g}",
        )
        for one in found
    ]
    columns = ("figure", "paper", "ours", "deviation", "ours, as measured")
    return Group(
        output.table(columns, rows),
        Text("\n! further off than 5 %. Sources and readings: -o json.\nNo model gives:"),
        *(Text(f"  {name}: {because}") for name, because in NOT_GIVEN),
    )


def _expect_drawable(paths: Sequence[Path]) -> None:
    """Say so before the simulation where a file cannot be drawn after it."""
    for path in paths:
        if path.suffix.lower() not in _DRAWN:
            raise ConfigError(
                f"--plot {path} is no format that is known: end the name in "
                f"{', '.join(_DRAWN[:-1])} or {_DRAWN[-1]}."
            )
        if path.suffix.lower() == ".png":
            drawing.require_png()


def _draw(path: Path, data: dict[str, Any], drawn: Sequence[drawing.Plot]) -> None:
    match path.suffix.lower():
        case ".png":
            content = drawing.png(drawn)
        case ".svg":
            content = drawing.svg(drawn).encode()
        case _:
            content = page.render(data, drawn).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"the plot {path} cannot be written: {error}.") from error
    output.note(f"plot: {path}")
