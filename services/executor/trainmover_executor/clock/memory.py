"""The memory of a rank's clock: its training process writes, the agent of its machine reads.

One anonymous file for each process, made by the agent and inherited by the worker, so that taking
telemetry costs the worker nothing but the writing, and what was written outlives it. Nobody waits
for anybody: whatever is larger than a word has a stamp that says whether it is whole.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainmover.telemetry.records import RECORD, STEP

__all__ = [
    "EPOCH",
    "HEARD",
    "PACKED_RECORD",
    "PACKED_STEP",
    "PHASE",
    "PHASE_BITS",
    "STEP_NUMBER",
    "ClockMemory",
    "ClockShape",
    "RingMemory",
]

PACKED_RECORD: Final = struct.Struct("<iqIiqiqqq")
PACKED_STEP: Final = struct.Struct("<iIqqqqqqiiQdQ")
assert PACKED_RECORD.size == RECORD.itemsize  # noqa: S101 - one layout, two ways to write it
assert PACKED_STEP.size == STEP.itemsize  # noqa: S101 - one layout, two ways to write it

EPOCH, STEP_NUMBER, PHASE, HEARD = range(4)
"""Words: the epoch and step that new records belong to; since when the rank does what (nanoseconds,
shifted by ``PHASE_BITS``, and the phase); and when its control thread was last awake."""
PHASE_BITS: Final = 3
_WORDS: Final = 8
_WORD: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockShape:
    """How much a clock remembers.

    Attributes:
        records: Operations that are kept until they are read.
        steps: Steps that are.
        running: Operations that may run at the same time and still be seen.
        groups: Groups whose number of collectives is known while the rank stands still.
    """

    records: int = 16_384
    steps: int = 2_048
    running: int = 512
    groups: int = 256

    @property
    def size(self) -> int:
        """Bytes of memory that it takes."""
        words = _WORDS + 2 * self.groups + self.running + self.records + self.steps
        operations = (self.running + self.records) * PACKED_RECORD.size
        return words * _WORD + operations + self.steps * PACKED_STEP.size


@dataclass(frozen=True, slots=True, kw_only=True)
class RingMemory:
    """Records, and for each the number of the one that is whole in that place; 0 for none.

    Attributes:
        layout: How a record is packed.
        dtype: The same, for numpy.
        stamps: Words, one for each place.
        bytes: As many records.
    """

    layout: struct.Struct
    dtype: np.dtype[np.void]
    stamps: memoryview
    bytes: memoryview

    @property
    def capacity(self) -> int:
        """Number of places."""
        return len(self.stamps)


class _Cutter:
    """Hands out a buffer piece by piece; all of them begin at whole words."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self.at = 0

    def bytes(self, size: int) -> memoryview:
        piece = self._buffer[self.at : self.at + size]
        self.at += size
        return piece

    def words(self, count: int) -> memoryview:
        return self.bytes(count * _WORD).cast("q")

    def ring(self, layout: struct.Struct, dtype: np.dtype[np.void], *, capacity: int) -> RingMemory:
        stamps = self.words(capacity)
        return RingMemory(
            layout=layout, dtype=dtype, stamps=stamps, bytes=self.bytes(capacity * layout.size)
        )


class ClockMemory:
    """Views of one clock's memory.

    Args:
        buffer: Zeros at first; ``shape.size`` bytes.
        shape: The same at both sides.

    Attributes:
        words: ``EPOCH``, ``STEP_NUMBER``, ``PHASE`` and ``HEARD``.
        group_ids: One more than the CRC-32 of each group's name; 0 where there is none.
        issued: Collectives that the rank entered in that group at this epoch.
        busy: When the operation of a row began, which is the row's stamp; 0 where none runs.
        rows: Running operations, packed like records.
        records: Operations that ended.
        steps: Committed steps.
    """

    def __init__(self, buffer: mmap.mmap | bytearray, shape: ClockShape) -> None:
        self.shape = shape
        cutter = _Cutter(memoryview(buffer))
        self.words = cutter.words(_WORDS)
        self.group_ids = cutter.words(shape.groups)
        self.issued = cutter.words(shape.groups)
        self.busy = cutter.words(shape.running)
        self.rows = cutter.bytes(shape.running * PACKED_RECORD.size)
        self.records = cutter.ring(PACKED_RECORD, RECORD, capacity=shape.records)
        self.steps = cutter.ring(PACKED_STEP, STEP, capacity=shape.steps)
        assert cutter.at == len(buffer) == shape.size  # noqa: S101 - or views would overlap its end

    @classmethod
    def private(cls, shape: ClockShape = ClockShape()) -> ClockMemory:
        """Memory of this process."""
        return cls(bytearray(shape.size), shape)

    @classmethod
    def shared(cls) -> tuple[ClockMemory, int]:
        """Memory that another process can attach to with the descriptor that comes with it."""
        shape = ClockShape()
        descriptor = os.memfd_create("trainmover-clock")
        os.ftruncate(descriptor, shape.size)
        return cls(mmap.mmap(descriptor, shape.size), shape), descriptor

    @classmethod
    def attach(cls, descriptor: int) -> ClockMemory:
        """What ``shared`` made, in the process that inherited the descriptor; closes that."""
        shape = ClockShape()
        memory = cls(mmap.mmap(descriptor, shape.size), shape)
        os.close(descriptor)
        return memory
