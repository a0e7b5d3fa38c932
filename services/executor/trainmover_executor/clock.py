"""The clock of collectives and steps: preallocated rings, drained by the control thread.

Nobody here waits: records are packed into memory that exists already, one call that the interpreter
does not interrupt, so that writers need no lock. A ring that is full overwrites its oldest record,
which counts as dropped. What the figures of a step add up to is worked out when they are drained.
"""

from __future__ import annotations

import itertools
import struct
import time
import zlib
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry import HEAD, OPS, PULSE, RECORD, STEP, Flag, Phase, Sections, span_of
from trainmover_executor.clock_steps import summarise

__all__ = ["CollectiveClock", "GroupClock"]

_OP: Final = {name: index for index, name in enumerate(OPS)}
_RECORD: Final = struct.Struct("<iqIiqiqqq")
_NOBODY: Final = struct.pack("<i", -1)
"""A rank that no record has: the row is free."""
_LOOK: Final = 64
"""Records that a reader expects: it looks for more where there are so many."""
_STEP: Final = struct.Struct("<iIqqqqqqiiQdQ")
assert _RECORD.size == RECORD.itemsize  # noqa: S101 - one layout, two ways to write it
assert _STEP.size == STEP.itemsize  # noqa: S101 - one layout, two ways to write it


class Ring:
    """A ring of packed records with any number of writers and one reader.

    Each record is stamped with its number once it is whole; the reader stops at one that is not.
    """

    def __init__(self, layout: struct.Struct, dtype: np.dtype[np.void], capacity: int) -> None:
        self._layout = layout
        self._dtype = dtype
        self._capacity = capacity
        self._bytes = bytearray(capacity * layout.size)
        self._stamps = array("q", [-1]) * capacity
        self._numbers = itertools.count()
        self._read = 0

    def write(self, *values: float) -> None:
        """Append one record."""
        number = next(self._numbers)
        slot = number % self._capacity
        self._layout.pack_into(self._bytes, slot * self._layout.size, *values)
        self._stamps[slot] = number

    def drain(self) -> tuple[npt.NDArray[np.void], int]:
        """Records since the last call, oldest first, and how many were overwritten unread."""
        stamps = np.frombuffer(self._stamps, np.int64)
        look = _LOOK
        while True:
            numbers = np.arange(self._read, self._read + min(look, self._capacity))
            slots = numbers % self._capacity
            found = stamps[slots]
            unfinished = np.flatnonzero(found < numbers)
            if len(unfinished) or look >= self._capacity:
                break
            look *= 8
        # A younger stamp at the first place: the ring went all the way round.
        dropped = 0
        if found[0] > numbers[0]:
            dropped = int(stamps.max()) + 1 - self._capacity - self._read
            self._read += dropped
            numbers += dropped
            slots = numbers % self._capacity
            unfinished = np.flatnonzero(stamps[slots] < numbers)
        count = int(unfinished[0]) if len(unfinished) else len(numbers)
        self._read += count
        if not count:
            return np.zeros(0, self._dtype), dropped
        return np.frombuffer(self._bytes, self._dtype)[slots[:count]], dropped


class CollectiveClock:
    """Keeps the latest records of one rank.

    Args:
        rank: Global rank.
        capacity: Records of operations that are kept until they are drained.
        running: Operations that may run at the same time and still be seen.

    Attributes:
        step: Index of the step that new records belong to; set by the session.
        nonfinite: NaN and Inf seen in this step's samples of what was about to be reduced.
    """

    def __init__(self, *, rank: int, capacity: int = 16384, running: int = 512) -> None:
        self.step = 0
        self.nonfinite = 0
        self._rank = rank
        self._ring = Ring(_RECORD, RECORD, capacity)
        self._steps = Ring(_STEP, STEP, 2048)
        self._running = bytearray(_RECORD.pack(-1, *[0] * 8) * running)
        self._free = deque(range(running))
        self._phase = (Phase.STARTING, time.perf_counter_ns())
        self._groups: list[GroupClock] = []
        self._unsaid: deque[GroupClock] = deque()
        self._left = np.zeros(0, RECORD)

    def group(self, name: str, ranks: Sequence[int] = ()) -> GroupClock:
        """A writer for one group of global ranks."""
        group = GroupClock(self, name, ranks)
        self._groups.append(group)
        self._unsaid.append(group)
        return group

    # -- operations ------------------------------------------------------------------------------

    def enter(self, *, group: int, peer: int, sequence: int, op: int, size: int) -> int:
        """An operation begins; returns what ``leave`` wants, -1 when it cannot be followed."""
        try:
            slot = self._free.popleft()
        except IndexError:
            return -1
        now = time.perf_counter_ns()
        values = (self._rank, self.step, group, peer, sequence, op, size, now, 0)
        _RECORD.pack_into(self._running, slot * _RECORD.size, *values)
        return slot

    def leave(self, slot: int, *, complete: bool = True) -> None:
        """The operation is over; only one that is complete leaves a record."""
        if slot < 0:
            return
        at = slot * _RECORD.size
        rank, step, group, peer, sequence, op, size, entered, _ = _RECORD.unpack_from(
            self._running, at
        )
        if complete:
            duration = time.perf_counter_ns() - entered
            self._ring.write(rank, step, group, peer, sequence, op, size, entered, duration)
        self._running[at : at + len(_NOBODY)] = _NOBODY
        self._free.append(slot)

    # -- steps -----------------------------------------------------------------------------------

    def enter_phase(self, phase: Phase) -> None:
        """The rank does something else from now on."""
        self._phase = (phase, time.perf_counter_ns())

    def committed(
        self,
        *,
        step: int,
        flags: Flag,
        duration_ns: int,
        loader_ns: int,
        outside_ns: int,
        cpu_ns: int,
        loss: float,
        checksum: int,
    ) -> None:
        """A step is complete; its waits are added up when it is drained."""
        nonfinite, self.nonfinite = self.nonfinite, 0
        self._steps.write(
            *(self._rank, flags, step, duration_ns, 0, loader_ns, outside_ns, cpu_ns),
            *(0, min(nonfinite, 1 << 30), 0, loss, checksum),
        )

    # -- the reader ------------------------------------------------------------------------------

    def drain(self) -> tuple[Sections, int]:
        """Everything since the last call, and how many records were overwritten unread."""
        steps, _ = self._steps.drain()  # first: the operations of a committed step are all there
        records, dropped = self._ring.drain()
        # As bytes: numpy would compare the fields of the two layouts.
        known = np.frombuffer(self._left.tobytes() + records.tobytes(), RECORD)
        self._left = summarise(steps, known)
        running, heads = self._open(), np.zeros(0, HEAD)
        if not len(records):  # it may stand still: say how far it is
            rows = [(self._rank, group.id, group.issued) for group in self._groups]
            heads = np.array(rows, HEAD)
        sections = Sections(
            records=records, open=running, steps=steps, pulses=self._pulse(), heads=heads
        )
        return sections, dropped

    def group_ids(self) -> dict[str, int]:
        """Id of every group, by its name."""
        return {group.name: group.id for group in self._groups}

    def new_groups(self) -> dict[int, tuple[range, ...]]:
        """Groups that were made since the last call: their ranks, by id."""
        found = {}
        while self._unsaid:
            group = self._unsaid.popleft()
            found[group.id] = span_of(group.ranks)
        return found

    def _open(self) -> npt.NDArray[np.void]:
        if len(self._free) == len(self._running) // _RECORD.size:
            return np.zeros(0, RECORD)
        table = np.frombuffer(bytes(self._running), RECORD)
        running = table[table["rank"] >= 0].copy()
        running["duration_ns"] = time.perf_counter_ns() - running["enter_ns"]
        return running

    def _pulse(self) -> npt.NDArray[np.void]:
        phase, since = self._phase
        row = (self._rank, phase, self.step, time.perf_counter_ns() - since, 0, 0)
        return np.array([row], PULSE)


class GroupClock:
    """Writes the records of one group and numbers them as they are issued.

    Callers see to it that two threads do not enter at the same time.

    Attributes:
        name: Name of the group.
        id: CRC-32 of it.
        ranks: Global ranks of its members.
        issued: Number of collectives that were entered at this epoch.
    """

    __slots__ = ("_clock", "_messages", "id", "issued", "name", "ranks")

    def __init__(self, clock: CollectiveClock, name: str, ranks: Sequence[int]) -> None:
        self._clock = clock
        self.name = name
        self.id = zlib.crc32(name.encode())
        self.ranks = tuple(ranks)
        self.issued = 0
        self._messages: dict[tuple[int, int], int] = {}

    def rewind(self) -> None:
        """Start numbering anew: an epoch begins at every member."""
        self.issued = 0
        self._messages.clear()

    def enter(self, op: str, *, size: int, peer: int = -1) -> int:
        """A collective, or a message to or from global rank ``peer``, begins; see ``leave``."""
        index = _OP[op]
        if peer < 0:
            sequence = self.issued
            self.issued += 1
        else:
            sequence = self._messages.get((index, peer), 0)
            self._messages[index, peer] = sequence + 1
        return self._clock.enter(group=self.id, peer=peer, sequence=sequence, op=index, size=size)

    def leave(self, slot: int, *, complete: bool = True) -> None:
        """What ``enter`` returned is over."""
        self._clock.leave(slot, complete=complete)
