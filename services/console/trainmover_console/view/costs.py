"""What a job pays for being movable: where it votes, and what standbys draw. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from trainmover.events.executor import WorkerCosts

__all__ = ["cost_lines"]


def cost_lines(costs: Iterable[WorkerCosts]) -> list[str]:
    """A line on the vote and one on the data; none where nobody said anything of it."""
    said = list(costs)
    return [line for line in (_vote(said), _data(said)) if line]


def _vote(costs: list[WorkerCosts]) -> str:
    if ends := [one for one in costs if one.vote == "end"]:
        most = max(ends, key=lambda one: one.kept_bytes)
        reasons = sorted({one.because for one in ends if one.because})
        return (
            "votes at the end of the body: parameters and optimizers are kept, "
            f"{most.kept_bytes / 1e6:.1f} MB and {most.keep_s * 1e3:.1f} ms a step, because "
            + "; ".join(reasons)
        )
    in_front = any(one.vote == "front" for one in costs)
    return "votes in front of the optimizer: nothing large is kept" if in_front else ""


def _data(costs: list[WorkerCosts]) -> str:
    drawn = sorted({one.drawn for one in costs if one.drawn})
    if not drawn:
        return ""
    line = f"data: {'; '.join(drawn)} can be followed only by drawing what was used"
    spent = {_spent(one) for one in costs if one.drawing_s}
    return f"{line}: {', '.join(sorted(spent))}" if spent else line


def _spent(one: WorkerCosts) -> str:
    spent = f"{one.drawing_s:.1f} s at {one.machine}"
    return f"{spent} (rank {one.rank}: {one.behind:,} batches behind)" if one.behind else spent
