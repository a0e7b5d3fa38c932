"""A ring: as few bytes over each link as there can be, and two neighbours for each rank.

After Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainmover_executor.collectives.communicator.reduction import Reduction
from trainmover_executor.collectives.linked.wire import GroupWire
from trainmover_executor.links.header import Frame
from trainmover_executor.links.table import LinkTable
from trainmover_executor.state.packing.memory import Scratch

__all__ = ["RingWire"]


class RingWire(GroupWire):
    """Collectives around a ring; see ``GroupWire``."""

    def __init__(
        self, table: LinkTable, *, group: str, ranks: Sequence[int], timeout_s: float
    ) -> None:
        super().__init__(table, group=group, ranks=ranks, timeout_s=timeout_s)
        self._scratch = (Scratch(), Scratch())

    def _chunks_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """As many parts as ranks; the one after a rank's own number is combined there."""
        count, size = flat.numel(), self._size
        bounds = [count * i // size for i in range(size + 1)]
        return [flat[bounds[i] : bounds[i + 1]] for i in range(size)]

    def _allreduce_ring(self, flat: torch.Tensor, reduction: Reduction, frame: Frame) -> None:
        size, rank = self._size, self.rank
        chunks = self._chunks_of(flat)
        for step in range(size - 1):
            self._exchange(
                frame,
                chunks[(rank - step) % size],
                chunks[(rank - step - 1) % size],
                to=rank + 1,
                source=rank - 1,
                reduction=reduction,
            )
        self._all_gather_ring(chunks[1:] + chunks[:1], frame)

    def _reduce_scatter_ring(
        self,
        mine: torch.Tensor,
        chunks: Sequence[torch.Tensor],
        reduction: Reduction,
        frame: Frame,
    ) -> None:
        size, rank = self._size, self.rank
        # Chunk r must end at rank r, so it starts its way at rank r + 1 and is passed on, each
        # rank adding its own: two alternating accumulators, the last of which is ``mine``.
        travelling = chunks[(rank - 1) % size]
        if reduction.factor is not None:
            travelling = travelling.clone()
            reduction.prepare(travelling)
        for step in range(size - 1):
            index = (rank - step - 2) % size
            last = step == size - 2
            accumulator = mine if last else self._scratch[step % 2].like(chunks[index])
            accumulator.copy_(chunks[index])
            reduction.prepare(accumulator)
            self._exchange(
                frame, travelling, accumulator, to=rank + 1, source=rank - 1, reduction=reduction
            )
            travelling = accumulator

    def _all_gather_ring(self, flats: Sequence[torch.Tensor], frame: Frame) -> None:
        size, rank = self._size, self.rank
        for step in range(size - 1):
            self._exchange(
                frame,
                flats[(rank - step) % size],
                flats[(rank - step - 1) % size],
                to=rank + 1,
                source=rank - 1,
            )
