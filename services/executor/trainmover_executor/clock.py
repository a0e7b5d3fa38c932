"""The clock of collectives: a preallocated ring of records, drained by the control thread."""

from __future__ import annotations

import threading
import time
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry import OPS, RECORD

__all__ = ["CollectiveClock", "GroupClock"]

_OP: Final = {name: index for index, name in enumerate(OPS)}


class CollectiveClock:
    """Keeps the latest ``capacity`` records of one rank.

    Writers are communication threads; the training thread writes one record per step, its vote.
    Nobody waits for a reader: a full ring overwrites the oldest record and counts it as dropped.

    Attributes:
        step: Index of the step that new records belong to; set by the session.
    """

    def __init__(self, *, rank: int, capacity: int = 16384) -> None:
        self.step = 0
        self._rank = rank
        self._ring = np.zeros(capacity, RECORD)
        self._lock = threading.Lock()
        self._written = 0
        self._read = 0

    def group(self, name: str) -> GroupClock:
        """A writer for one group."""
        return GroupClock(self, zlib.crc32(name.encode()))

    def write(
        self, *, group: int, sequence: int, op: int, size: int, entered_ns: int, duration_ns: int
    ) -> None:
        """Append one record."""
        with self._lock:
            self._ring[self._written % len(self._ring)] = (
                self._rank,
                self.step,
                group,
                sequence,
                op,
                size,
                entered_ns,
                duration_ns,
            )
            self._written += 1

    def drain(self) -> tuple[npt.NDArray[np.void], int]:
        """Records since the last call, oldest first, and how many were overwritten unread."""
        with self._lock:
            capacity = len(self._ring)
            first = max(self._read, self._written - capacity)
            dropped = first - self._read
            indices = np.arange(first, self._written) % capacity
            records = self._ring[indices]
            self._read = self._written
        return records, dropped


class GroupClock:
    """Writes the records of one group and numbers them."""

    __slots__ = ("_clock", "_group", "_sequence")

    def __init__(self, clock: CollectiveClock, group: int) -> None:
        self._clock = clock
        self._group = group
        self._sequence = 0

    def rewind(self) -> None:
        """Start numbering anew: an epoch begins at every member."""
        self._sequence = 0

    def record(self, op: str, *, size: int, entered_ns: int) -> None:
        """A collective that began at ``entered_ns`` (perf counter) completed now."""
        self._clock.write(
            group=self._group,
            sequence=self._sequence,
            op=_OP[op],
            size=size,
            entered_ns=entered_ns,
            duration_ns=time.perf_counter_ns() - entered_ns,
        )
        self._sequence += 1
