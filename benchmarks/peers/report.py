"""Tables and a plot of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.common import spread
from benchmarks.peers.measure import lines_changed
from benchmarks.peers.scenes import PROGRAMS, Measured, Scene

__all__ = ["draw", "rows_of", "table"]

Row = dict[str, Any]


def rows_of(measured: Mapping[Scene, Sequence[Measured]], failed: Mapping[Scene, int]) -> list[Row]:
    """A row for each scene that was measured at least once; ``failed`` counts runs without end."""
    plain = PROGRAMS / "plain.py"
    return [
        {
            "system": scene.system,
            "kind": scene.kind,
            "setting": scene.setting,
            "runs": len(runs),
            "failed": failed[scene],
            "pause_s": spread([one.held.pause_s for one in runs], digits=3),
            "stall_s": spread([one.held.stall_s for one in runs], digits=3),
            "steps_redone": round(statistics.median(one.held.redone for one in runs)),
            "step_s": spread([one.step_s for one in runs], digits=3),
            "lines_changed": lines_changed(PROGRAMS / f"{scene.program}.py", plain),
        }
        for scene, runs in measured.items()
        if runs
    ]


def _text(figures: Mapping[str, float]) -> str:
    return f"{figures['median']:.2f} ({figures['min']:.2f} to {figures['max']:.2f})"


def _runs(ended: int, failed: int) -> str:
    return f"{ended} of {ended + failed}" if failed else str(ended)


def table(rows: Sequence[Row]) -> str:
    """Markdown; times are median, least and most.

    ``2 of 3`` runs: in the third the world was not whole again within three minutes.
    """
    head = (
        "system",
        "setting",
        "pause, s",
        "nobody steps, s",
        "redone",
        "step, s",
        "lines",
        "runs",
    )
    lines = []
    for kind in ("crash", "planned"):
        lines += [f"### {kind.capitalize()}", "", f"| {' | '.join(head)} |"]
        lines += [f"|{'---|' * len(head)}"]
        for row in rows:
            if row["kind"] == kind:
                cells = (
                    row["system"],
                    row["setting"],
                    _text(row["pause_s"]),
                    _text(row["stall_s"]),
                    str(row["steps_redone"]),
                    _text(row["step_s"]),
                    str(row["lines_changed"]),
                    _runs(row["runs"], row["failed"]),
                )
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Pauses as bars on a logarithmic scale, one picture for both kinds."""
    shown = sorted(rows, key=lambda row: (row["kind"], -row["pause_s"]["median"]))
    names = [f"{row['system']}: {row['setting']}" for row in shown]
    pauses = [max(row["pause_s"]["median"], 0.04) for row in shown]  # a bar that can be seen
    colours = ["#c0392b" if row["kind"] == "crash" else "#2c6fbb" for row in shown]
    figure = Figure(figsize=(9, 0.5 * len(shown) + 1), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(shown)), pauses, color=colours)
    axes.set_yticks(range(len(shown)), names)
    axes.set_xscale("log")
    axes.set_xlim(0.03, 3 * max(pauses))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("pause of the whole world, s (red: crash, blue: planned)")
    for at, pause in enumerate(pauses):
        axes.text(pause, at, f" {shown[at]['pause_s']['median']:.2f}", va="center")
    figure.savefig(path)
