"""The report of one migration as one HTML file that needs nothing from anywhere. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from string import Template
from typing import Final

from trainmover.tracing.timeline import Bar
from trainmover_console.report import charts
from trainmover_console.report.report import Report, duration
from trainmover_console.report.style import STYLE

__all__ = ["render"]

_PAGE: Final = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
"""
    + STYLE
    + """</style>
</head>
<body>
<h1>Migration $id: <span class="$css">$state</span></h1>
<p class="soft">Job $job, $moves. $cause.</p>
<div class="cards">$cards</div>
<h2>Why it was believed</h2>
$evidence
<h2>What was done</h2>
<p>$decision.</p>
$reason
<div class="wide">$phases</div>
<h2>The switch, rank by rank</h2>
<p>From the first rank that switched to the last that went on; moments are thin lines.
<span class="key" style="background: var(--phase)"></span>phase 2
<span class="key" style="background: var(--bad)"></span>pause
<span class="key" style="background: var(--one)"></span>first step after it</p>
<div class="wide">$switch</div>
<h2>What it cost</h2>
<div class="wide">$cost</div>
<h2>Everything, in order</h2>
<details><summary>$count entries</summary><div class="wide">$entries</div></details>
<p class="soft">Bars of different machines are as comparable as the machines' clocks.
Trace id <code>$trace</code>.</p>
</body>
</html>
"""
)

_CSS: Final = {"pause": "pause", "first step": "first-step"}


def render(report: Report) -> str:
    """The page."""
    move = report.migration
    return _PAGE.substitute(
        title=escape(f"{move.id} of job {report.job}"),
        id=escape(move.id),
        css="pass" if move.state == "committed" else "fail",
        state=escape(move.state),
        job=escape(report.job),
        moves=escape(move.words),
        cause=escape(move.cause.rstrip(".")),
        cards="".join(_cards(report)),
        evidence=_table(report.evidence()) or "<p>No detector found anything.</p>",
        decision=escape(report.decision[:1].upper() + report.decision[1:]),
        reason=f'<p class="fail">{escape(move.reason)}</p>' if move.reason else "",
        phases=_phases(report),
        switch=_switch(report),
        cost=_table(_costs(report)),
        count=len(report.bars),
        entries=_table(_entries(report)),
        trace=escape(move.trace_id or "-"),
    )


def _cards(report: Report) -> Iterator[str]:
    cost = report.cost
    yield _card("?" if cost.pause_s is None else duration(cost.pause_s), "pause beyond one step")
    yield _card(str(cost.steps_redone), "steps done again")
    if cost.beside_s is not None:
        yield _card(duration(cost.beside_s), "of preparation beside training")
    if report.incident is not None:
        yield _card(f"{report.incident.confidence:.0%}", f"sure: {report.incident.kind}")


def _card(value: str, label: str) -> str:
    return f'<div class="card"><b>{escape(value)}</b>{escape(label)}</div>'


def _costs(report: Report) -> Iterator[tuple[str, str]]:
    cost = report.cost
    for name, seconds in cost.phases_s.items():
        yield f"phase {name}", duration(seconds)
    for name, seconds in cost.switch_s.items():
        yield f"phase 2: {name}, slowest rank", duration(seconds)
    for rank, seconds in cost.pauses_s.items():
        yield f"pause of rank {rank}", duration(seconds)
    yield "steps done again", str(cost.steps_redone)
    yield from report.foreseen()


def _phases(report: Report) -> str:
    """The planner's phases on one line, from the proposal."""
    bars = [bar for bar in report.bars if (bar.who, bar.lane) == ("planner", "phases")]
    return _drawn(bars, rows=False, unit="seconds")


def _switch(report: Report) -> str:
    """Ranks around the switch."""
    ranks = [bar for bar in report.bars if bar.lane.startswith("rank ")]
    core = [bar for bar in ranks if bar.name.startswith("phase 2") or bar.name == "pause"]
    if not core:
        return "<p>It did not come to a switch.</p>"
    begin, end = min(bar.start for bar in core), max(bar.end for bar in ranks)
    return _drawn([bar for bar in ranks if bar.end >= begin and bar.start <= end], rows=True)


def _drawn(bars: Sequence[Bar], *, rows: bool, unit: str = "milliseconds") -> str:
    if not bars:
        return "<p>Nothing was recorded.</p>"
    shown = [bar for bar in bars if bar.name != "phase 1"]
    zero = min(bar.start for bar in shown)
    factor = 1000 if unit == "milliseconds" else 1
    return charts.timeline(
        [
            charts.Bar(
                row=f"{bar.who} {bar.lane.removeprefix('rank ')}" if rows else "phases",
                begin=(bar.start - zero).total_seconds() * factor,
                end=(bar.end - zero).total_seconds() * factor,
                label=bar.name.removeprefix("phase 2: "),
                css=_CSS.get(bar.name, "phase"),
            )
            for bar in sorted(shown, key=lambda bar: (_natural(bar.who), bar.lane, bar.start))
        ],
        x_label=unit,
    )


def _natural(text: str) -> tuple[str, int]:
    head = text.rstrip("0123456789")
    return head, int(text[len(head) :] or 0)


def _entries(report: Report) -> Iterator[tuple[str, ...]]:
    for bar in report.bars:
        took = duration(bar.seconds) if bar.seconds else "-"
        yield f"{bar.start.astimezone():%H:%M:%S.%f}"[:-3], bar.who, bar.lane, bar.name, took


def _table(rows: Iterable[Sequence[str]]) -> str:
    made = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table>{made}</table>" if made else ""
