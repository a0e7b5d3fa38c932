"""The demo's report: one HTML file that needs nothing from anywhere, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path

from trainmover_console.demo.metrics import RunMetrics
from trainmover_console.demo.page import PAGE
from trainmover_console.demo.play import Outcome, RunState
from trainmover_console.report.charts import Bar, Mark, Series, heat_map, line_chart, timeline
from trainmover_console.view import MigrationView

__all__ = ["render", "write_report"]


def write_report(outcome: Outcome, path: Path) -> None:
    """Write the report; folders are made.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(outcome), encoding="utf-8")


def render(outcome: Outcome) -> str:
    """The page."""
    spec = outcome.spec
    subtitle = (
        f"{spec.steps} steps, seed {spec.seed}, {spec.nnodes_min} slots, "
        f"{spec.nnodes_max - spec.nnodes_min} standbys. "
        "One machine was made slow, another was killed."
    )
    marks = [
        Mark(move.step - 1.0, ", ".join(f"{one.leaver} -> {one.joiner}" for one in move.moves))
        for move in outcome.moves
        if move.step is not None
    ]
    problems = "".join(f'<p class="fail">{escape(text)}</p>' for text in outcome.problems)
    return PAGE.substitute(
        word="pass" if outcome.passed else "fail",
        css="pass" if outcome.passed else "fail",
        subtitle=escape(subtitle),
        problems=problems,
        cards="".join(_cards(outcome)),
        equality=escape(_equality(outcome)),
        loss=line_chart(_losses(outcome), x_label="step", marks=marks),
        heat=heat_map(_heat_rows(outcome.run), x_label="step", unit="s late", marks=marks),
        timeline=timeline(list(_bars(outcome)), x_label="seconds since launch"),
        moves=_moves(outcome),
        close_ups="".join(_close_up(outcome, move) for move in outcome.moves),
        restart=escape(_restart(outcome)),
        events=_events(outcome.run),
    )


def _cards(outcome: Outcome) -> Iterator[str]:
    for move in outcome.moves:
        pause = "?" if move.pause_s is None else f"{move.pause_s:.3f} s"
        what = "planned move" if move.kind == "planned" else "recovery from a kill"
        yield _card(pause, f"pause of the {what}")
    step, undisturbed = outcome.run_metrics.median_step_s, outcome.reference_metrics.median_step_s
    if step is not None and undisturbed is not None:
        yield _card(f"{step:.3f} s", f"median step; undisturbed {undisturbed:.3f} s")
    if outcome.restart_s is not None:
        yield _card(f"{outcome.restart_s:.1f} s", "a restart, at the least")
    yield _card(str(outcome.comparison.compared), "losses compared bit for bit")


def _card(value: str, label: str) -> str:
    return f'<div class="card"><b>{escape(value)}</b>{escape(label)}</div>'


def _equality(outcome: Outcome) -> str:
    first = outcome.comparison.first
    if outcome.comparison.equal:
        return "They are the same to the last bit, and so are parameters and optimizer state."
    if first is None:
        return "Nothing was compared."
    where = "in the final state" if first.step is None else f"at step {first.step}"
    return f"They part {where}, rank {first.rank}: {first.kind}, {first.detail}."


def _losses(outcome: Outcome) -> list[Series]:
    def points(metrics: RunMetrics) -> list[tuple[float, float]]:
        return [(float(line.step), line.loss) for line in metrics.steps.get(0, ())]

    return [
        Series("disturbed run", points(outcome.run_metrics), "run"),
        Series("undisturbed run", points(outcome.reference_metrics), "reference"),
    ]


def _heat_rows(run: RunState) -> dict[str, list[tuple[float, float]]]:
    rows: dict[str, list[tuple[float, float]]] = {}
    for step, cells in run.lateness.steps():
        for rank, late in enumerate(cells):
            rows.setdefault(f"rank {rank}", []).append((float(step), late))
    return rows


def _bars(outcome: Outcome) -> Iterator[Bar]:
    began = outcome.run.launched_s
    leavers = {one.leaver for move in outcome.moves for one in move.moves}
    for rank, lines in outcome.run_metrics.steps.items():
        seats: dict[str, tuple[float, float]] = {}
        for line in lines:
            first, _ = seats.get(line.machine, (line.time_s, 0.0))
            seats[line.machine] = (first, line.time_s)
        for machine, (first, last) in seats.items():
            css = "hurt" if machine in leavers else "computes"
            yield Bar(f"rank {rank}", first - began, last - began, machine, css)
    for move in outcome.moves:
        if (gap := outcome.gap(move)) is not None:
            name = f"{move.kind} switch: no step completed"
            yield Bar("switches", gap[0] - began, gap[1] - began, name, "pause")


def _close_up(outcome: Outcome, move: MigrationView) -> str:
    """One migration on its own scale, in milliseconds from its proposal."""
    began = next(iter(move.times.values())).timestamp()
    times = {name: (at.timestamp() - began) * 1000 for name, at in move.times.items()}
    bars = [Bar(name, times[name], times[later], name, "phase") for name, later in pairwise(times)]
    if (gap := outcome.gap(move)) is not None:
        begin, end = ((at - began) * 1000 for at in gap)
        bars.append(Bar("no step", begin, end, "from step to step", "pause"))
    head = f"{move.kind}: {move.words}"
    return f"<h3>{escape(head)}</h3>" + timeline(bars, x_label="ms since it was proposed")


def _moves(outcome: Outcome) -> str:
    """A column for each migration: there are few of them, and much is told of each."""
    told = [_told(outcome, move) for move in outcome.moves]
    rows = "".join(
        f"<tr><th>{name}</th>{''.join(f'<td>{one[name]}</td>' for one in told)}</tr>"
        for name in (told[0] if told else ())
    )
    return f'<table class="beside">{rows}</table>'


def _told(outcome: Outcome, move: MigrationView) -> dict[str, str]:
    """What is told of a migration, as HTML."""
    gap = outcome.gap(move)
    phases = {**move.spans_s(), **move.phases_s}
    return {
        "id": escape(move.id),
        "kind": escape(move.kind),
        "move": escape(move.words),
        "cause": escape(move.cause),
        "pause": "?" if move.pause_s is None else f"{move.pause_s:.3f} s",
        "step to step": "?" if gap is None else f"{gap[1] - gap[0]:.3f} s",
        "steps redone": str(max(move.steps_redone.values(), default=0)),
        "phases": "".join(
            f"<div>{escape(name)} {seconds:.3f} s</div>" for name, seconds in phases.items()
        ),
        "trace": f"<code>{escape(move.trace_id or '-')}</code>",
    }


def _restart(outcome: Outcome) -> str:
    if outcome.restart_s is None:
        return "The undisturbed run completed no step, so there is no figure."
    return (
        f"{outcome.restart_s:.1f} s at the least. That is measured: from the launch of the "
        "undisturbed run's processes to the first step that all of its ranks completed, on this "
        "host, right after the disturbed run. Noticing the failure, loading a checkpoint and "
        "redoing the steps since it was written come on top and are not counted."
    )


def _events(run: RunState) -> str:
    rows = "".join(
        f"<tr><td>{line.time_s - run.launched_s:.2f} s</td><td><code>{escape(line.text)}</code>"
        "</td></tr>"
        for line in run.lines
    )
    return f"<table>{rows}</table>"
