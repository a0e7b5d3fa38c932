"""Curves with a title, as part of a page, as an SVG file, and as a PNG file.

PNG needs matplotlib, which is an extra; everything else is text that is written here.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from trainmover.errors import ConfigError
from trainmover_console.report import charts
from trainmover_console.report.style import CHARTS, flat

__all__ = ["CURVES", "Curve", "Plot", "keys", "part", "png", "require_png", "svg"]

_COLOURS: Final = ("#c62828", "#d9480f", "#b08800", "#8250df", "#0b6bcb", "#1a7f37")
CURVES: Final = "".join(
    f"svg .s{n} {{ stroke: {colour}; stroke-width: 1.8; }}\n" for n, colour in enumerate(_COLOURS)
)
"""What a page's style needs besides, for the curves."""

_HEIGHT: Final = 320
_MARGIN: Final = 20
_TITLE: Final = 62
"""Height of a plot's title and of the names of its curves, in an SVG file."""
_LETTER: Final = 6.6
"""Width of an average letter in a legend."""
_SHEET: Final = (
    "text { font-family: 'DejaVu Sans', Helvetica, Arial, sans-serif; }\n"
    "text.title { font-size: 17px; font-weight: 600; fill: var(--ink); }\n"
    "text.name { font-size: 13px; fill: var(--ink); }\n"
    ".sheet { fill: var(--page); }\n"
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line; its colour comes from its place in the plot."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over a common axis.

    Attributes:
        title: What is upwards, and in which unit.
        x_label: What is to the right.
        marks: Places on that axis that have a name.
    """

    title: str
    x_label: str
    curves: Sequence[Curve]
    marks: Sequence[charts.Mark] = ()


def part(plot: Plot) -> str:
    """The curves as inline SVG; title and names are the page's."""
    series = [
        charts.Series(one.name, one.points, f"s{number % len(_COLOURS)}")
        for number, one in enumerate(plot.curves)
    ]
    return charts.line_chart(series, x_label=plot.x_label, marks=plot.marks, height=_HEIGHT)


def keys(plot: Plot) -> str:
    """The names of the curves in their colours, for a page."""
    return "\n".join(
        f'<span class="key" style="background: {_colour(number)}"></span>{escape(one.name)}'
        for number, one in enumerate(plot.curves)
    )


def svg(plots: Sequence[Plot]) -> str:
    """A file with the plots below each other, for browsers and for everything that draws SVG."""
    width = charts.WIDTH + 2 * _MARGIN
    height = (_TITLE + _HEIGHT + _MARGIN) * len(plots)
    parts = [f"<style>\n{flat(_SHEET + CHARTS + CURVES)}</style>"]
    parts.append(f'<rect class="sheet" width="{width}" height="{height}"/>')
    for number, plot in enumerate(plots):
        top = (_TITLE + _HEIGHT + _MARGIN) * number
        parts.append(f'<g transform="translate({_MARGIN},{top})">')
        parts.append(f'<text class="title" x="0" y="28">{escape(plot.title)}</text>')
        parts += _legend(plot)
        parts.append(f'<g transform="translate(0,{_TITLE})">{part(plot)}</g></g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(parts)}</svg>\n'
    )


def _legend(plot: Plot) -> list[str]:
    if len(plot.curves) < 2:
        return []
    found, x = [], 0.0
    for number, one in enumerate(plot.curves):
        found.append(f'<rect x="{x:.0f}" y="44" width="18" height="4" fill="{_colour(number)}"/>')
        found.append(f'<text class="name" x="{x + 24:.0f}" y="50">{escape(one.name)}</text>')
        x += 24 + _LETTER * len(one.name) + 16
    return found


def require_png() -> None:
    """Make sure that ``png`` works.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "PNG needs matplotlib, which is not installed: pip install 'trainmover[plots]', "
            "or write .svg or .html, which need nothing."
        )


def png(plots: Sequence[Plot]) -> bytes:
    """The same file as a picture of points.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    require_png()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(10, 4.2 * len(plots)), dpi=120, layout="constrained")
    for axes, plot in zip(figure.subplots(len(plots), squeeze=False).flat, plots, strict=True):
        for number, one in enumerate(plot.curves):
            axes.plot(*zip(*one.points, strict=True), color=_colour(number), label=one.name)
        for mark in plot.marks:
            axes.axvline(mark.at, color="#8250df", linestyle=":")
            axes.annotate(
                mark.label,
                (mark.at, 1),
                xycoords=("data", "axes fraction"),
                xytext=(4, -12),
                textcoords="offset points",
            )
        axes.set_title(plot.title, loc="left")
        axes.set_xlabel(plot.x_label)
        axes.grid(alpha=0.3)
        if len(plot.curves) > 1:
            axes.legend()
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]
