"""A bounded table of the latest steps of all ranks, from the records that ranks send of each step.

Rows come from many machines in any order; a row is whole once every rank is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import Flag
from trainmover_detector.measures.timing import StepRow

__all__ = ["StepMatrix", "WholeStep"]

_ROWS: Final = 16
_REDONE: Final = int(Flag.REDONE)

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WholeStep(StepRow):
    """A step with everything that each rank says about it; seconds, by rank.

    Attributes:
        loader_s: Drawing the batch.
        outside_s: In the program between two steps.
        cpu_s: Processor time of the process.
        signature: Equal at ranks that issue the same operations.
        messages: Whether ranks send each other messages (pipelines): unequal work is normal then.
        accelerated: Whether processor time says little about the work.
    """

    loader_s: Floats
    outside_s: Floats
    cpu_s: Floats
    signature: npt.NDArray[np.uint64]
    messages: bool
    accelerated: bool


class StepMatrix:
    """Collects step records until steps are whole.

    Args:
        world_size: Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self._world = world_size
        self._steps = np.full(_ROWS, -1, np.int64)
        self._seen = np.zeros((_ROWS, world_size), bool)
        self._missing = np.full(_ROWS, world_size)
        self._values = np.zeros((5, _ROWS, world_size), np.float32)
        self._signature = np.zeros((_ROWS, world_size), np.uint64)
        self._flags = np.zeros(_ROWS, np.uint32)
        self._done = -1

    def add(self, records: npt.NDArray[np.void]) -> list[WholeStep]:
        """Take in step records; the steps that are whole now, oldest first."""
        whole = []
        steps = records["step"]
        for step in [int(steps[0])] if len(steps) == 1 else np.unique(steps).tolist():
            if step <= self._done:
                continue
            mine = records if len(steps) == 1 else records[steps == step]
            row = step % _ROWS
            if self._steps[row] > step:
                continue
            if self._steps[row] != step:
                self._begin(row, step)
            self._fill(row, mine)
            if self._missing[row] == 0:
                self._done = step
                if not self._flags[row] & _REDONE:
                    whole.append(self._take(row, step))
        return whole

    def _begin(self, row: int, step: int) -> None:
        self._steps[row] = step
        self._seen[row] = False
        self._missing[row] = self._world
        self._flags[row] = 0

    def _fill(self, row: int, records: npt.NDArray[np.void]) -> None:
        ranks = records["rank"]
        known = (ranks >= 0) & (ranks < self._world)
        if not known.all():
            records, ranks = records[known], ranks[known]
        fresh = ~self._seen[row, ranks]
        if not fresh.all():  # a batch that came twice
            records, ranks = records[fresh], ranks[fresh]
        if not len(ranks):
            return
        self._seen[row, ranks] = True
        self._missing[row] = self._world - int(np.count_nonzero(self._seen[row]))
        for index, name in enumerate(("duration_ns", "wait_ns", "loader_ns", "outside_ns")):
            self._values[index, row, ranks] = records[name] * 1e-9
        self._values[4, row, ranks] = records["cpu_ns"] * 1e-9
        self._signature[row, ranks] = records["signature"]
        self._flags[row] |= np.bitwise_or.reduce(records["flags"])

    def _take(self, row: int, step: int) -> WholeStep:
        duration, wait, loader, outside, cpu = self._values[:, row].copy()
        flags = int(self._flags[row])
        return WholeStep(
            step=step,
            wait_s=wait.astype(np.float64),
            step_s=max(float(np.median(duration)), 1e-6),
            loader_s=loader,
            outside_s=outside,
            cpu_s=cpu,
            signature=self._signature[row].copy(),
            messages=bool(flags & Flag.MESSAGES),
            accelerated=bool(flags & Flag.ACCELERATOR),
        )
