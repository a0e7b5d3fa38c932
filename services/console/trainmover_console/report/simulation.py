"""What ``trainmover simulate`` found as one HTML file that needs nothing from anywhere. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template
from typing import Any, Final

from trainmover_console.report.charts import Mark
from trainmover_console.report.plots import CURVES, Curve, Plot, keys, part
from trainmover_console.report.style import STYLE
from trainmover_simulator.replay import Outcome
from trainmover_simulator.systems import SYSTEMS

__all__ = ["plots", "render"]

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
    + CURVES
    + """</style>
</head>
<body>
<h1>What failures cost</h1>
<p class="soft">$job. Failures: $failures.</p>
<div class="wide">$table</div>
$plots
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


def plots(
    outcomes: Sequence[Outcome], swept: Sequence[tuple[int, Outcome]], *, least: int | None
) -> tuple[Plot, ...]:
    """What there is to draw: waste over the days, and over the number of standbys.

    Args:
        outcomes: One for each system.
        swept: Numbers of standbys, and what came of each; may be empty.
        least: The number of them with the least waste.
    """
    over_days = Plot(
        "Thousands of GPU-hours wasted, over the days",
        "day",
        [
            Curve(
                SYSTEMS[one.system].title,
                [(0.0, 0.0), *((day, hours / 1_000) for day, hours in one.curve)],
            )
            for one in outcomes
        ],
    )
    if not swept:
        return (over_days,)
    over_standbys = Plot(
        "Thousands of GPU-hours wasted, standbys included",
        "standbys",
        [Curve("wasted", [(float(n), one.wasted_gpu_hours / 1_000) for n, one in swept])],
        [] if least is None else [Mark(least, f"least: {least}")],
    )
    return over_days, over_standbys


def render(data: Mapping[str, Any], drawn: Sequence[Plot]) -> str:
    """The page.

    Args:
        data: What the command writes as JSON.
        drawn: Its plots.
    """
    return _PAGE.substitute(
        job=f"{data['gpus']:,} GPUs, {data['days']:g} days, {data['standbys']} standbys, "
        f"seed {data['seed']}",
        failures=escape(str(data["failures"])),
        table=_table(data["rows"]),
        plots="".join(map(_plot, drawn)),
        assumed="".join(
            f"<h3>{escape(who)}</h3>{_list(sentences)}"
            for who, sentences in data["assumptions"].items()
            if sentences
        ),
    )


def _plot(plot: Plot) -> str:
    names = f"<p>{keys(plot)}</p>" if len(plot.curves) > 1 else ""
    return f'<h2>{escape(plot.title)}</h2>{names}<div class="wide">{part(plot)}</div>'


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
