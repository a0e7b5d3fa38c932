"""Turns records of collectives into one row per step: how long each rank waited, and the step.

Only durations that a rank measured itself are used, so clocks of machines are never compared.
A rank's wait is the time it spent inside collectives. They overlap, so intervals are united: the
last to arrive waits least, however its collectives are cut into buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import OPS

__all__ = ["StepRow", "StepTable"]

_VOTE: Final = OPS.index("vote")
_KEPT_STEPS: Final = 64


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step that every rank completed.

    Attributes:
        step: Index of the step.
        wait_s: Seconds each rank spent inside collectives, by rank.
        step_s: Median over ranks of the step's duration, in seconds.
    """

    step: int
    wait_s: npt.NDArray[np.float64]
    step_s: float


@dataclass(slots=True)
class _Cell:
    """Collectives of one rank in one step."""

    enter: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    voted: bool = False


class StepTable:
    """Collects records until steps are whole; remembers a bounded number of steps.

    Args:
        world_size: Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._world = world_size
        self._cells: dict[int, dict[int, _Cell]] = {}
        self._newest = [-1] * world_size
        self._done = -1

    def add(self, records: npt.NDArray[np.void]) -> list[StepRow]:
        """Take in records; the steps that are whole now, oldest first."""
        for rank, step, op, enter, duration in zip(
            records["rank"].tolist(),
            records["step"].tolist(),
            records["op"].tolist(),
            records["enter_ns"].tolist(),
            records["duration_ns"].tolist(),
            strict=True,
        ):
            if not 0 <= rank < self._world or step <= self._done or duration < 0:
                continue
            cell = self._cells.setdefault(step, {}).setdefault(rank, _Cell())
            cell.enter.append(enter)
            cell.end.append(enter + duration)
            cell.voted = cell.voted or op == _VOTE
            self._newest[rank] = max(self._newest[rank], step)
        rows = [row for step in sorted(self._cells) if (row := self._row(step)) is not None]
        if rows:
            self._done = rows[-1].step
        self._forget()
        return rows

    def _row(self, step: int) -> StepRow | None:
        cells, before = self._cells[step], self._cells.get(step - 1, {})
        if step <= self._done or len(cells) < self._world:
            return None
        if not all(cell.voted or self._newest[rank] > step for rank, cell in cells.items()):
            return None
        took = [
            max(cell.end) - max(before[rank].end) for rank, cell in cells.items() if rank in before
        ]
        step_s = float(np.median(took)) / 1e9 if took else 0.0
        if step_s <= 0.0:
            return None  # the step before it is unknown: nothing to measure against
        waits = np.array([_united(cells[rank]) for rank in range(self._world)])
        return StepRow(step, waits / 1e9, step_s)

    def _forget(self) -> None:
        # The last whole step stays: the next one's duration is counted from its end.
        oldest = max(max(self._newest) - _KEPT_STEPS, self._done)
        for step in [step for step in self._cells if step < oldest]:
            del self._cells[step]


def _united(cell: _Cell) -> float:
    """Nanoseconds covered by the union of the intervals."""
    enter, end = np.array(cell.enter), np.array(cell.end)
    order = np.argsort(enter, kind="stable")
    enter, end = enter[order], np.maximum.accumulate(end[order])
    # Each interval counts from where everything before it ended.
    begins = np.maximum(enter[1:], end[:-1])
    return float(end[0] - enter[0] + np.maximum(end[1:] - begins, 0).sum())
