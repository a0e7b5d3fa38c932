"""What the training thread notes about its own steps: where the time went, and is the state sane.

A few clock readings and one checksum of a small block of the parameters each step; nothing is
allocated that grows, nothing waits.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from torch import nn

from trainmover.telemetry.records import Flag, Phase
from trainmover_executor.clock.writer import CollectiveClock
from trainmover_executor.state.packing.memory import on_host
from trainmover_executor.state.packing.shards import local_of

__all__ = ["StepTiming"]

_BLOCK_BYTES: Final = 65_536
_Block: Final = ctypes.c_char * _BLOCK_BYTES


class StepTiming:
    """Times the parts of a step and adds one record to the clock for each that commits.

    Args:
        clock: Where records go.
        models: Whose parameters are checked, one block a step: replicas must hold the same bits.

    Attributes:
        last: The last step, and the checksum of its block; None where there is none.
    """

    def __init__(self, clock: CollectiveClock, models: Sequence[nn.Module]) -> None:
        self._clock = clock
        self._checksums = _BlockChecksums(models)
        self._since_ns = time.perf_counter_ns()
        self._left_ns = self._since_ns
        self._cpu_ns = time.process_time_ns()
        self._loader_ns = 0
        self._outside_ns = 0
        self._attempts = 0
        self.last: tuple[int, int] | None = None

    def draw(self, draw: Callable[[], tuple[bool, object]]) -> tuple[bool, object]:
        """Draw a batch with ``draw`` and note how long it took."""
        self._clock.enter_phase(Phase.LOADER)
        began = time.perf_counter_ns()
        self._outside_ns = began - self._left_ns
        drawn = draw()
        self._loader_ns = time.perf_counter_ns() - began
        self._attempts = 0
        return drawn

    def attempt(self) -> None:
        """The body of the step begins, for the first time or again."""
        self._attempts += 1
        self._clock.enter_phase(Phase.BODY)

    def enter(self, phase: Phase) -> None:
        """The step goes on with something else."""
        self._clock.enter_phase(phase)

    def left(self) -> None:
        """The body of the step was left: what follows is the program's own."""
        self._left_ns = time.perf_counter_ns()
        self._clock.enter_phase(Phase.OUTSIDE)

    def committed(self, *, step: int, loss: float | None, moved: bool) -> None:
        """The step is complete."""
        now, cpu = time.perf_counter_ns(), time.process_time_ns()
        flags = Flag.LOSS if loss is not None else Flag(0)
        checksum = self._checksums.of(step)
        self.last = None if checksum is None else (step, checksum)
        if checksum is not None:
            flags |= Flag.CHECKSUM
        if self._attempts > 1 or moved:
            flags |= Flag.REDONE
        if self._checksums.accelerated:
            flags |= Flag.ACCELERATOR
        self._clock.committed(
            step=step,
            flags=flags,
            duration_ns=now - self._since_ns,
            loader_ns=self._loader_ns,
            outside_ns=self._outside_ns,
            cpu_ns=cpu - self._cpu_ns,
            loss=0.0 if loss is None else loss,
            checksum=checksum or 0,
        )
        self._since_ns, self._cpu_ns = now, cpu
        # What the program does between two steps counts to the coming one: the record of this one
        # may be read already, at some ranks and not at others.
        self._clock.step = step + 1


class _BlockChecksums:
    """CRC-32 of one block of the parameters after another, one for each step."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._parameters = [p for model in models for p in model.parameters()]
        self.accelerated = not all(map(on_host, self._parameters))
        self._blocks: list[tuple[int, int]] | None = None

    def of(self, step: int) -> int | None:
        """The checksum of the block whose turn it is; None where there is none."""
        if self._blocks is None:
            self._blocks = [
                (index, start)
                for index, parameter in enumerate(self._parameters)
                for start in range(0, local_of(parameter).nbytes, _BLOCK_BYTES)
            ]
        if not self._blocks or self.accelerated:
            return None
        index, start = self._blocks[step % len(self._blocks)]
        local = local_of(self._parameters[index])
        if not local.is_contiguous():
            return None
        size, address = min(_BLOCK_BYTES, local.nbytes - start), local.data_ptr()
        if size <= 0 or not address:  # it was given other memory, or lent its own
            return None
        # By its address, for the reason that ``finite.py`` gives.
        return zlib.crc32(memoryview(_Block.from_address(address + start))[:size])
