"""A ring: as few bytes over each link as there can be, and two neighbours for each rank.

After Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from trainmover_executor.collectives.communicator.reduction import Reduction
from trainmover_executor.collectives.linked.wire import GroupWire
from trainmover_executor.links.header import Frame
from trainmover_executor.links.table import LinkTable
from trainmover_executor.state.packing.memory import Scratch

__all__ = ["RingWire"]

T = TypeVar("T")


class RingWire(GroupWire):
    """Collectives around a ring, in the order that the membership names; see ``GroupWire``.

    That order is the job's for its whole life, so that the order of sums is, too (INV-SAME-BITS).
    """

    def __init__(
        self, table: LinkTable, *, group: str, ranks: Sequence[int], timeout_s: float
    ) -> None:
        super().__init__(table, group=group, ranks=ranks, timeout_s=timeout_s)
        self._scratch = (Scratch(), Scratch())
        self._ring = table.membership.around(self.ranks)
        self._place = self._ring.index(self.rank)

    def _in_ring(self, parts: Sequence[T]) -> list[T]:
        """What there is of each rank, in the order of the ring."""
        return [parts[member] for member in self._ring]

    def _onward(self, distance: int) -> int:
        """The member of the group that comes so many places after this one in the ring."""
        return self._ring[(self._place + distance) % self._size]

    def _chunks_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """As many parts as ranks; the one after a rank's own place is combined there."""
        count, size = flat.numel(), self._size
        bounds = [count * i // size for i in range(size + 1)]
        return [flat[bounds[i] : bounds[i + 1]] for i in range(size)]

    def _allreduce_ring(self, flat: torch.Tensor, reduction: Reduction, frame: Frame) -> None:
        size, place = self._size, self._place
        chunks = self._chunks_of(flat)
        for step in range(size - 1):
            self._exchange(
                frame,
                chunks[(place - step) % size],
                chunks[(place - step - 1) % size],
                to=self._onward(1),
                source=self._onward(-1),
                reduction=reduction,
            )
        self._pass_round(chunks[1:] + chunks[:1], frame)

    def _reduce_scatter_ring(
        self,
        mine: torch.Tensor,
        chunks: Sequence[torch.Tensor],
        reduction: Reduction,
        frame: Frame,
    ) -> None:
        size, place = self._size, self._place
        # Each chunk must end at its own rank, so it starts its way at the one after it and is
        # passed on, each rank adding its own: two alternating accumulators, the last of which is
        # ``mine``.
        chunks = self._in_ring(chunks)
        travelling = chunks[(place - 1) % size]
        if reduction.factor is not None:
            travelling = travelling.clone()
            reduction.prepare(travelling)
        for step in range(size - 1):
            index = (place - step - 2) % size
            last = step == size - 2
            accumulator = mine if last else self._scratch[step % 2].like(chunks[index])
            accumulator.copy_(chunks[index])
            reduction.prepare(accumulator)
            self._exchange(
                frame,
                travelling,
                accumulator,
                to=self._onward(1),
                source=self._onward(-1),
                reduction=reduction,
            )
            travelling = accumulator

    def _all_gather_ring(self, flats: Sequence[torch.Tensor], frame: Frame) -> None:
        self._pass_round(self._in_ring(flats), frame)

    def _pass_round(self, flats: Sequence[torch.Tensor], frame: Frame) -> None:
        """All-gather of what is in the order of the ring already."""
        size, place = self._size, self._place
        for step in range(size - 1):
            self._exchange(
                frame,
                flats[(place - step) % size],
                flats[(place - step - 1) % size],
                to=self._onward(1),
                source=self._onward(-1),
            )
