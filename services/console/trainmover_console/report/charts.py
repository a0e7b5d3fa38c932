"""Inline SVG for the report: plain strings, no script, colours from the page's variables. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

__all__ = ["WIDTH", "Bar", "Mark", "Series", "heat_map", "line_chart", "timeline"]

WIDTH: Final = 960
"""Of every drawing, in its own units."""
_LEFT: Final = 90
_RIGHT: Final = 24
_MAX_COLUMNS: Final = 240


@dataclass(frozen=True, slots=True)
class Series:
    """A curve; ``css`` is the class that colours it."""

    name: str
    points: Sequence[tuple[float, float]]
    css: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment worth a vertical line."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time in one row of a timeline; ``css`` is the class that colours it."""

    row: str
    begin: float
    end: float
    label: str
    css: str


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.begin + (value - self.low) / span * (self.end - self.begin)

    def ticks(self, count: int) -> list[float]:
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        raw = span / count
        unit = 10 ** math.floor(math.log10(raw))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
        first = math.ceil(self.low / step)
        return [round(step * i, 10) for i in range(first, math.floor(self.high / step) + 1)]


def line_chart(
    series: Sequence[Series], *, x_label: str, marks: Iterable[Mark] = (), height: int = 260
) -> str:
    """Curves over a common axis."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    if not xs:
        return "<p>No data.</p>"
    x = _Scale(min(xs), max(xs), _LEFT, WIDTH - _RIGHT)
    y = _Scale(min(ys), max(ys), height - 34, 22)
    parts = [_axis_y(y), _axis_x(x, height - 34, x_label)]
    for mark in marks:
        at = x(mark.at)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="14" y2="{height - 34}"/>')
        parts.append(f'<text class="note" x="{at + 3:.1f}" y="12">{escape(mark.label)}</text>')
    for one in series:
        points = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in one.points)
        name = escape(one.name)
        parts.append(
            f'<polyline class="{one.css}" points="{points}"><title>{name}</title></polyline>'
        )
    return _svg(height, parts)


def heat_map(
    rows: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    unit: str,
    marks: Iterable[Mark] = (),
) -> str:
    """One row of cells per name; cell colour is the value against the largest one.

    Args:
        rows: (x, value) pairs per row, x whole numbers.
        x_label: What x is.
        unit: Unit of the values, for the tooltips.
        marks: Moments to mark.
    """
    xs = [x for cells in rows.values() for x, _ in cells]
    if not xs:
        return "<p>No telemetry arrived.</p>"
    low, high = min(xs), max(xs) + 1
    columns = min(_MAX_COLUMNS, int(high - low))
    width = (high - low) / columns
    # One outlier must not make everything else look alike.
    values = sorted(value for cells in rows.values() for _, value in cells)
    top = values[int(0.99 * (len(values) - 1))] or 1e-9
    x = _Scale(low, high, _LEFT, WIDTH - _RIGHT)
    parts, cell_height, top_margin = [], 26, 18
    height = top_margin + cell_height * len(rows) + 34
    for index, (name, cells) in enumerate(rows.items()):
        at_y = top_margin + index * cell_height
        text_y = at_y + cell_height * 0.65
        parts.append(f'<text class="label" x="{_LEFT - 8}" y="{text_y:.1f}">{escape(name)}</text>')
        binned: dict[int, list[float]] = {}
        for at, value in cells:
            binned.setdefault(min(columns - 1, int((at - low) / width)), []).append(value)
        for column, found in binned.items():
            mean = sum(found) / len(found)
            begin, end = x(low + column * width), x(low + (column + 1) * width)
            share = min(1.0, mean / top)
            parts.append(
                f'<rect class="heat" x="{begin:.2f}" y="{at_y}" width="{end - begin + 0.2:.2f}" '
                f'height="{cell_height - 2}" fill-opacity="{share:.3f}"><title>{escape(name)}, '
                f"{escape(x_label)} {low + column * width:.0f}: {mean:.4g} {escape(unit)}"
                "</title></rect>"
            )
    for mark in marks:
        at = x(mark.at)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="14" y2="{height - 34}"/>')
        parts.append(f'<text class="note" x="{at + 3:.1f}" y="12">{escape(mark.label)}</text>')
    parts.append(_axis_x(x, height - 34, x_label))
    return _svg(height, parts)


def timeline(bars: Sequence[Bar], *, x_label: str) -> str:
    """Rows of bars over time."""
    if not bars:
        return "<p>No data.</p>"
    rows = list(dict.fromkeys(bar.row for bar in bars))
    x = _Scale(min(bar.begin for bar in bars), max(bar.end for bar in bars), _LEFT, WIDTH - _RIGHT)
    row_height, parts = 30, []
    height = row_height * len(rows) + 40
    for row in rows:
        y = rows.index(row) * row_height + 22
        parts.append(f'<text class="label" x="{_LEFT - 8}" y="{y}">{escape(row)}</text>')
    for bar in bars:
        y = rows.index(bar.row) * row_height + 6
        begin, width = x(bar.begin), max(1.5, x(bar.end) - x(bar.begin))
        label = escape(bar.label)
        parts.append(
            f'<rect class="{bar.css}" x="{begin:.2f}" y="{y}" width="{width:.2f}" height="22" '
            f'rx="2"><title>{label}: {bar.end - bar.begin:.3f} s</title></rect>'
        )
        if width > 7.5 * len(bar.label):
            parts.append(f'<text class="inside" x="{begin + 5:.1f}" y="{y + 15}">{label}</text>')
    parts.append(_axis_x(x, height - 34, x_label))
    return _svg(height, parts)


def _axis_x(x: _Scale, y: float, label: str) -> str:
    ticks = "".join(
        f'<text class="tick" x="{x(tick):.1f}" y="{y + 15:.1f}">{tick:g}</text>'
        for tick in x.ticks(10)
    )
    line = f'<line class="axis" x1="{x.begin}" x2="{x.end}" y1="{y}" y2="{y}"/>'
    name = f'<text class="tick" x="{(x.begin + x.end) / 2}" y="{y + 29:.1f}">{escape(label)}</text>'
    return line + ticks + name


def _axis_y(y: _Scale) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(tick):.1f}" '
        f'y2="{y(tick):.1f}"/><text class="label" x="{_LEFT - 8}" y="{y(tick) + 4:.1f}">'
        f"{tick:g}</text>"
        for tick in y.ticks(5)
    )


def _svg(height: int, parts: Iterable[str]) -> str:
    # A page's style makes it as wide as the page; inside of another drawing it keeps this size.
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return f'<svg {size} role="img">{"".join(parts)}</svg>'
