"""The demo's report: one HTML file that needs nothing from anywhere, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Final

from trainmover.demo.charts import Bar, Mark, Series, heat_map, line_chart, timeline
from trainmover.demo.metrics import RunMetrics
from trainmover.demo.play import Outcome, RunState
from trainmover.view import MigrationView

__all__ = ["render", "write_report"]

_PAGE: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TrainMover demo: $word</title>
<style>
:root { color-scheme: light dark; --ink: #1c2128; --soft: #5b6470; --line: #d7dce2;
  --page: #ffffff; --card: #f5f7f9; --one: #0b6bcb; --two: #d9480f; --good: #1a7f37;
  --bad: #c62828; --heat: #d9480f; --phase: #8250df; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #98a2b0; --line: #343b45;
  --page: #12161b; --card: #1a2027; --one: #58a6ff; --two: #ff9d5c; --good: #4ac26b;
  --bad: #ff7b72; --heat: #ff9d5c; --phase: #c297ff; } }
body { margin: 0 auto; max-width: 1020px; padding: 24px 20px 60px; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 34px 0 6px; }
p { margin: 4px 0 10px; max-width: 75ch; } .soft { color: var(--soft); }
.pass { color: var(--good); } .fail { color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px;
  margin: 18px 0; }
.card { background: var(--card); border-radius: 8px; padding: 12px 14px; }
.card b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } svg { width: 100%; min-width: 640px; height: auto; display: block; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; } th { font-weight: 600; }
code { font-size: 13px; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg .label { text-anchor: end; } svg .tick { text-anchor: middle; }
svg .inside { fill: #fff; } svg .note { fill: var(--ink); }
svg .axis { stroke: var(--soft); } svg .grid { stroke: var(--line); }
svg .mark { stroke: var(--phase); stroke-dasharray: 3 3; }
svg polyline { fill: none; } svg .run { stroke: var(--two); stroke-width: 5; stroke-opacity: .45; }
svg .reference { stroke: var(--one); stroke-width: 1.6; }
svg .heat { fill: var(--heat); stroke: var(--line); stroke-width: .3; }
svg .seat { fill: var(--one); fill-opacity: .75; } svg .phase { fill: var(--phase); }
svg .hurt { fill: var(--two); fill-opacity: .85; } svg .pause { fill: var(--bad); }
.key { display: inline-block; width: 22px; height: 5px; margin: 0 5px 3px 12px; }
</style>
</head>
<body>
<h1>TrainMover demo: <span class="$css">$word</span></h1>
<p class="soft">$subtitle</p>
$problems
<div class="cards">$cards</div>
<h2>Loss of rank 0</h2>
<p><span class="key" style="background: var(--two); opacity: .5"></span>disturbed run
<span class="key" style="background: var(--one)"></span>undisturbed run, same seed. $equality</p>
<div class="wide">$loss</div>
<h2>Lateness</h2>
<p>How long a rank kept the others waiting in each step, from each rank's own duration of every
collective. Clocks of two machines are never compared.</p>
<div class="wide">$heat</div>
<h2>Timeline</h2>
<p>Which machine filled which slot, and each migration's phases.
<span class="key" style="background: var(--one)"></span>computes
<span class="key" style="background: var(--two)"></span>computes, and leaves later
<span class="key" style="background: var(--phase)"></span>phase
<span class="key" style="background: var(--bad)"></span>pause</p>
<div class="wide">$timeline</div>
<h2>Migrations</h2>
<div class="wide">$moves</div>
<h2>What a restart would have taken</h2>
<p>$restart</p>
<h2>Events</h2>
<details><summary>The disturbed run, line by line</summary><div class="wide">$events</div></details>
</body>
</html>
""")


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
        Mark(float(move.step), f"{move.leaver} -> {move.joiner}")
        for move in outcome.moves
        if move.step is not None
    ]
    problems = "".join(f'<p class="fail">{escape(text)}</p>' for text in outcome.problems)
    return _PAGE.substitute(
        word="pass" if outcome.passed else "fail",
        css="pass" if outcome.passed else "fail",
        subtitle=escape(subtitle),
        problems=problems,
        cards="".join(_cards(outcome)),
        equality=escape(_equality(outcome)),
        loss=line_chart(_losses(outcome), x_label="step", marks=marks),
        heat=heat_map(_heat_rows(outcome.run), x_label="step", unit="s late", marks=marks),
        timeline=timeline(list(_bars(outcome)), x_label="seconds since launch"),
        moves=_moves(outcome.moves),
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
    leavers = {move.leaver for move in outcome.moves}
    for rank, lines in outcome.run_metrics.steps.items():
        seats: dict[str, tuple[float, float]] = {}
        for line in lines:
            first, _ = seats.get(line.machine, (line.time_s, 0.0))
            seats[line.machine] = (first, line.time_s)
        for machine, (first, last) in seats.items():
            css = "hurt" if machine in leavers else "seat"
            yield Bar(f"rank {rank}", first - began, last - began, machine, css)
    for move in outcome.moves:
        times = {name: at.timestamp() - began for name, at in move.times.items()}
        for name, later in pairwise(times):
            yield Bar(move.kind, times[name], times[later], name, "phase")
        end = times.get("committed")
        if end is not None and move.pause_s is not None:
            yield Bar(move.kind, end - move.pause_s, end, "pause", "pause")


def _moves(moves: Sequence[MigrationView]) -> str:
    rows = []
    for move in moves:
        phases = {**move.spans_s(), **move.phases_s}
        spans = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in phases.items())
        pause = "?" if move.pause_s is None else f"{move.pause_s:.3f} s"
        redone = max(move.steps_redone.values(), default=0)
        cells = (
            move.id,
            move.kind,
            f"{move.leaver} -> {move.joiner} in slot {move.slot}",
            move.cause,
            pause,
            redone,
            spans,
            move.trace_id or "-",
        )
        rows.append("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>")
    heads = ("id", "kind", "move", "cause", "pause", "steps redone", "phases", "trace")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


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
