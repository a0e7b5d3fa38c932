"""Reads a rank's clock from the memory that its process writes; in the agent of its machine.

The writer never waits and never knows. Each thing that is larger than a word has a stamp, looked
at before and after it was copied: it is taken when both say the same. Processors that reorder
stores (ARM) show them to others within far less than a microsecond, which is why stamps are read
well before what they stand for.
"""

from __future__ import annotations

import os
import time

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import HEAD, PULSE, RECORD, Sections
from trainmover_executor.clock.memory import (
    EPOCH,
    HEARD,
    PHASE,
    PHASE_BITS,
    STEP_NUMBER,
    ClockMemory,
    RingMemory,
)
from trainmover_executor.clock.steps import summarise

__all__ = ["ClockReader", "RingReader"]


class RingReader:
    """The one reader of a ring."""

    def __init__(self, memory: RingMemory) -> None:
        self._stamps = np.frombuffer(memory.stamps, np.int64)
        self._records = np.frombuffer(memory.bytes, memory.dtype)
        self._capacity = memory.capacity
        self._next = 1

    def read(self) -> tuple[npt.NDArray[np.void], int]:
        """Records since the last call, oldest first, and how many were overwritten unread."""
        newest = int(self._stamps.max())
        first = max(self._next, newest - self._capacity + 1)
        numbers = np.arange(first, max(first, newest + 1))
        slots = numbers % self._capacity
        # One that is not whole will be there the next time; a younger one in its place: it is gone.
        unfinished = np.flatnonzero(self._stamps[slots] < numbers)
        if len(unfinished):
            numbers, slots = numbers[: unfinished[0]], slots[: unfinished[0]]
        if not len(numbers):
            return self._records[:0], 0
        os.sched_yield()
        records = self._records[slots]
        whole = self._stamps[slots] == numbers
        before, self._next = self._next, int(numbers[-1]) + 1
        if not whole.all():
            records = records[whole]
        return records, self._next - before - len(records)


class ClockReader:
    """The one reader of a clock.

    Args:
        rank: Whose.
        memory: Which its process writes.
    """

    def __init__(self, *, rank: int, memory: ClockMemory) -> None:
        self._rank = rank
        self._words = memory.words
        self._group_ids = np.frombuffer(memory.group_ids, np.int64)
        self._issued = np.frombuffer(memory.issued, np.int64)
        self._busy = np.frombuffer(memory.busy, np.int64)
        self._rows = np.frombuffer(memory.rows, RECORD)
        self._steps = RingReader(memory.steps)
        self._records = RingReader(memory.records)
        self._left = np.zeros(0, RECORD)
        self._heard = 0

    @property
    def epoch(self) -> int:
        """What new records belong to."""
        return int(self._words[EPOCH])

    def read(self) -> tuple[Sections, int]:
        """Everything since the last call, and how many operations were overwritten unread.

        What runs and where the rank is comes only with a new sign of life: a process that is
        frozen, or whose interpreter is, tells nothing about itself.
        """
        steps, _ = self._steps.read()  # first: the operations of a committed step are all there
        records, dropped = self._records.read()
        self._left = summarise(steps, np.concatenate([self._left, records]))
        heard = self._words[HEARD]
        if heard == self._heard:
            return Sections(records=records, steps=steps), dropped
        self._heard = heard
        sections = Sections(
            records=records,
            steps=steps,
            open=self._open(),
            pulses=self._pulse(heard),
            # It may stand still: say how far it is.
            heads=np.zeros(0, HEAD) if len(records) else self._heads(),
        )
        return sections, dropped

    def skip(self) -> None:
        """Forget everything until now."""
        self._steps.read()
        self._records.read()
        self._left = np.zeros(0, RECORD)

    def _open(self) -> npt.NDArray[np.void]:
        began = self._busy.copy()
        running = np.flatnonzero(began)
        if not len(running):
            return np.zeros(0, RECORD)
        os.sched_yield()
        rows = self._rows[running]
        rows = rows[self._busy[running] == began[running]]
        rows["duration_ns"] = time.perf_counter_ns() - rows["enter_ns"]
        found: npt.NDArray[np.void] = rows
        return found

    def _pulse(self, heard: int) -> npt.NDArray[np.void]:
        word = self._words[PHASE]
        since, phase = word >> PHASE_BITS, word & (1 << PHASE_BITS) - 1
        row = (self._rank, phase, self._words[STEP_NUMBER], max(0, heard - since), 0, 0)
        return np.array([row], PULSE)

    def _heads(self) -> npt.NDArray[np.void]:
        known = np.flatnonzero(self._group_ids)
        heads = np.zeros(len(known), HEAD)
        heads["rank"] = self._rank
        heads["group"] = self._group_ids[known] - 1
        heads["issued"] = self._issued[known]
        return heads
