"""Who keeps the others waiting: lateness per rank and step, from collective timing. Pure.

Clocks of two machines are never compared. Each rank's own duration of a collective is free of
skew, and the last to arrive waits least: lateness is the longest duration of any rank less one's
own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trainmover.telemetry.records import Batch

__all__ = ["LatenessTable"]

_MAX_OPEN: Final = 4096
"""Collectives still waiting for some rank's record; the oldest are given up beyond this."""

_Key = tuple[int, int, int, int]


@dataclass(slots=True)
class LatenessTable:
    """Lateness in seconds by step and rank, summed over the step's collectives.

    Attributes:
        world_size: Number of ranks; only collectives of all ranks are looked at.
        keep_steps: Older steps than the latest so many are forgotten; None keeps all.
    """

    world_size: int
    keep_steps: int | None = None
    _open: OrderedDict[_Key, dict[int, float]] = field(default_factory=OrderedDict)
    _cells: dict[int, list[float]] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        """Take in the records of one machine."""
        for record in batch.records:
            step = int(record["step"])
            key = (batch.epoch, step, int(record["group"]), int(record["sequence"]))
            waits = self._open.setdefault(key, {})
            waits[int(record["rank"])] = int(record["duration_ns"]) / 1e9
            if len(waits) == self.world_size:
                del self._open[key]
                self._credit(step, waits)
        while len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)

    def steps(self) -> Iterator[tuple[int, tuple[float, ...]]]:
        """(step, lateness of each rank), by step."""
        for step in sorted(self._cells):
            yield step, tuple(self._cells[step])

    def latest(self, rank: int, count: int) -> list[float]:
        """Lateness of one rank in the latest ``count`` steps, oldest first."""
        return [self._cells[step][rank] for step in sorted(self._cells)[-count:]]

    def _credit(self, step: int, waits: dict[int, float]) -> None:
        cell = self._cells.setdefault(step, [0.0] * self.world_size)
        if self.keep_steps is not None and len(self._cells) > self.keep_steps:
            del self._cells[min(self._cells)]
        longest = max(waits.values())
        for rank, duration in waits.items():
            cell[rank] += longest - duration
