"""The clock of collectives and steps: the training process's side, which only writes.

Nobody here waits: records are packed into memory that exists already, each with calls that the
interpreter does not interrupt, so that writers need no lock. A ring that is full overwrites its
oldest record. Reading, and adding up what the figures of a step come to, is the agent's work; see
``clock_reader.py``.
"""

from __future__ import annotations

import itertools
import time
import zlib
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final

from trainmover.telemetry.records import OPS, Flag, Phase, span_of
from trainmover_executor.clock.memory import (
    EPOCH,
    HEARD,
    PACKED_RECORD,
    PHASE,
    PHASE_BITS,
    STEP_NUMBER,
    ClockMemory,
    RingMemory,
)

__all__ = ["CollectiveClock", "GroupClock", "Ring"]

_OP: Final = {name: index for index, name in enumerate(OPS)}


class Ring:
    """The writers' side of a ring of packed records; there may be any number of them.

    Attributes:
        written: Number of a record that was written of late; it changes with each.
    """

    def __init__(self, memory: RingMemory) -> None:
        self.written = 0
        self._pack_into = memory.layout.pack_into
        self._size = memory.layout.size
        self._bytes = memory.bytes
        self._stamps = memory.stamps
        self._capacity = memory.capacity
        self._numbers = itertools.count(1)

    def write(self, *values: float) -> None:
        """Append one record."""
        number = next(self._numbers)
        slot = number % self._capacity
        # Without a stamp from here on: a reader must not take half of two records for one.
        self._stamps[slot] = 0
        self._pack_into(self._bytes, slot * self._size, *values)
        self._stamps[slot] = self.written = number


class CollectiveClock:
    """Notes what one rank does.

    Args:
        rank: Global rank.
        memory: Where; of this process alone when omitted.

    Attributes:
        memory: The same.
    """

    def __init__(self, *, rank: int, memory: ClockMemory | None = None) -> None:
        self.memory = ClockMemory.private() if memory is None else memory
        self._nonfinite: deque[int] = deque()  # appended to by many threads, each at its own pace
        self._rank = rank
        self._step = 0
        self._words = self.memory.words
        self._rows = self.memory.rows
        self._busy = self.memory.busy
        self._records = Ring(self.memory.records)
        self._steps = Ring(self.memory.steps)
        self._running = self.memory.shape.running
        self._free = deque(range(self._running))
        self._unused_rows = deque(range(self.memory.shape.groups))
        self._ids: dict[str, int] = {}
        self._unsaid: deque[GroupClock] = deque()
        self._ended_before = 0
        self.enter_phase(Phase.STARTING)

    @property
    def step(self) -> int:
        """Index of the step that new records belong to; set by the session."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = self._words[STEP_NUMBER] = step

    def note_nonfinite(self, count: int) -> None:
        """So many NaN and Inf were in a sample of what is about to be reduced; from any thread."""
        if count:
            self._nonfinite.append(count)

    def enter_epoch(self, epoch: int) -> None:
        """New records belong to this epoch."""
        self._words[EPOCH] = epoch

    def group(self, name: str, ranks: Sequence[int] = ()) -> GroupClock:
        """A writer for one group of global ranks."""
        identity = self._ids[name] = zlib.crc32(name.encode())
        issued, row = memoryview(array("q", [0])), 0
        if self._unused_rows:
            issued, row = self.memory.issued, self._unused_rows.popleft()
            self.memory.group_ids[row] = identity + 1
        group = GroupClock(self, identity, ranks, issued=issued, row=row)
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
        values = (self._rank, self._step, group, peer, sequence, op, size, now, 0)
        PACKED_RECORD.pack_into(self._rows, slot * PACKED_RECORD.size, *values)
        self._busy[slot] = now
        return slot

    def leave(self, slot: int, *, complete: bool = True) -> None:
        """The operation is over; only one that is complete leaves a record."""
        if slot < 0:
            return
        if complete:
            *values, entered, _ = PACKED_RECORD.unpack_from(self._rows, slot * PACKED_RECORD.size)
            self._records.write(*values, entered, time.perf_counter_ns() - entered)
        self._busy[slot] = 0
        self._free.append(slot)

    # -- steps -----------------------------------------------------------------------------------

    def enter_phase(self, phase: Phase) -> None:
        """The rank does something else from now on."""
        self._words[PHASE] = time.perf_counter_ns() << PHASE_BITS | phase

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
        """A step is complete; its waits are added up when it is read."""
        nonfinite = sum(self._nonfinite.popleft() for _ in range(len(self._nonfinite)))
        self._steps.write(
            *(self._rank, flags, step, duration_ns, 0, loader_ns, outside_ns, cpu_ns),
            *(0, min(nonfinite, 1 << 30), 0, loss, checksum),
        )

    # -- the control thread ----------------------------------------------------------------------

    def beat(self) -> bool:
        """A sign of life; whether operations run and none has ended since the last one."""
        self._words[HEARD] = time.perf_counter_ns()
        before, self._ended_before = self._ended_before, self._records.written
        return before == self._ended_before and len(self._free) < self._running

    def group_ids(self) -> dict[str, int]:
        """Id of every group, by its name."""
        return dict(self._ids)

    @property
    def has_new_groups(self) -> bool:
        """Whether ``new_groups`` has any."""
        return bool(self._unsaid)

    def new_groups(self) -> dict[int, tuple[range, ...]]:
        """Groups that were made since the last call: their ranks, by id."""
        found = {}
        while self._unsaid:
            group = self._unsaid.popleft()
            found[group.id] = span_of(group.ranks)
        return found


class GroupClock:
    """Writes the records of one group and numbers them as they are issued.

    Callers see to it that two threads do not enter at the same time.

    Args:
        clock: The rank's.
        identity: CRC-32 of the group's name.
        ranks: Global ranks of its members.
        issued: Where the number of collectives is counted.
        row: And at which place.

    Attributes:
        id: CRC-32 of the group's name.
        ranks: Global ranks of its members.
        leave: What ``enter`` returned is over; see ``CollectiveClock.leave``.
    """

    __slots__ = ("_clock", "_issued", "_messages", "_row", "id", "leave", "ranks")

    def __init__(
        self,
        clock: CollectiveClock,
        identity: int,
        ranks: Sequence[int],
        *,
        issued: memoryview,
        row: int,
    ) -> None:
        self._clock = clock
        self._issued = issued
        self._row = row
        self._messages: dict[tuple[int, int], int] = {}
        self.id = identity
        self.ranks = tuple(ranks)
        self.leave = clock.leave

    @property
    def issued(self) -> int:
        """Number of collectives that were entered at this epoch."""
        return int(self._issued[self._row])

    def rewind(self) -> None:
        """Start numbering anew: an epoch begins at every member."""
        self._issued[self._row] = 0
        self._messages.clear()

    def enter(self, op: str, *, size: int, peer: int = -1) -> int:
        """A collective, or a message to or from global rank ``peer``, begins; see ``leave``."""
        index = _OP[op]
        if peer < 0:
            sequence = self._issued[self._row]
            self._issued[self._row] = sequence + 1
        else:
            sequence = self._messages.get((index, peer), 0)
            self._messages[index, peer] = sequence + 1
        return self._clock.enter(group=self.id, peer=peer, sequence=sequence, op=index, size=size)
