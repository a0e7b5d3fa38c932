"""What ``trainmover simulate`` found as one HTML file that needs nothing from anywhere. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template
from typing import Any, Final

from trainmover_console.report import charts
from trainmover_console.report.style import STYLE
from trainmover_simulator.replay import Outcome
from trainmover_simulator.systems import SYSTEMS

__all__ = ["render"]

_COLOURS: Final = ("#c62828", "#d9480f", "#b08800", "#8250df", "#0b6bcb", "#1a7f37")
_LINES: Final = "".join(
    f"svg .s{n} {{ stroke: {colour}; stroke-width: 1.8; }}" for n, colour in enumerate(_COLOURS)
)
_PAGE: Final = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TrainMover: what failures cost</title>
<style>
"""
    + STYLE
    + _LINES
    + """</style>
</head>
<body>
<h1>What failures cost</h1>
<p class="soft">$job. Failures: $failures.</p>
<div class="wide">$table</div>
<h2>Thousands of GPU-hours wasted, over the days</h2>
<p>$keys</p>
<div class="wide">$plot</div>
$sweep
<h2>What is assumed</h2>
$assumed
</body>
</html>
"""
)
_COLUMNS: Final = {
    "ettr": "ETTR",
    "wasted_gpu_hours_per_week": "wasted GPU-hours a week",
    "interruptions": "interruptions",
    "restarts": "roll-backs to a checkpoint",
    "standbys_used": "standbys used",
    "standbys_short": "times too few",
    "wasted_cost": "cost of waste, $",
    "standby_cost": "of standbys, $",
}


def render(
    data: Mapping[str, Any], outcomes: Sequence[Outcome], swept: Sequence[tuple[int, Outcome]]
) -> str:
    """The page.

    Args:
        data: What the command writes as JSON.
        outcomes: One for each system.
        swept: Numbers of standbys, and what came of each.
    """
    return _PAGE.substitute(
        job=f"{data['gpus']:,} GPUs, {data['days']:g} days, {data['standbys']} standbys, "
        f"seed {data['seed']}",
        failures=escape(str(data["failures"])),
        table=_table(data["rows"]),
        keys=_keys(outcomes),
        plot=_plot(outcomes),
        sweep=_sweep(swept, data.get("least_waste")),
        assumed="".join(
            f"<h3>{escape(who)}</h3>{_list(sentences)}"
            for who, sentences in data["assumptions"].items()
            if sentences
        ),
    )


def _plot(outcomes: Sequence[Outcome]) -> str:
    series = [
        charts.Series(
            SYSTEMS[one.system].title,
            [(0.0, 0.0), *((day, hours / 1_000) for day, hours in one.curve)],
            f"s{number % len(_COLOURS)}",
        )
        for number, one in enumerate(outcomes)
    ]
    return charts.line_chart(series, x_label="day", height=320)


def _keys(outcomes: Sequence[Outcome]) -> str:
    return "\n".join(
        f'<span class="key" style="background: {_COLOURS[number % len(_COLOURS)]}"></span>'
        f"{escape(SYSTEMS[one.system].title)}"
        for number, one in enumerate(outcomes)
    )


def _sweep(swept: Sequence[tuple[int, Outcome]], least: int | None) -> str:
    if not swept:
        return ""
    points = [(float(count), one.wasted_gpu_hours / 1_000) for count, one in swept]
    chart = charts.line_chart([charts.Series("wasted", points, "s5")], x_label="standbys")
    return (
        "<h2>How many standbys?</h2>"
        f"<p>Thousands of GPU-hours wasted, standbys included; least with {least}.</p>"
        f'<div class="wide">{chart}</div>'
    )


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("system", *_COLUMNS.values()))
    body = "".join(
        f"<tr><td>{escape(SYSTEMS[row['system']].title)}</td>"
        + "".join(f"<td>{row[key]:,}</td>" for key in _COLUMNS)
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _list(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in sentences) + "</ul>"
