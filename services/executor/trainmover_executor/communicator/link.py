"""Collectives over direct links: a ring for bandwidth, recursive doubling for latency.

The order in which values are added depends on rank positions and sizes only, never on timing or on
which machine holds a rank, so a machine can be replaced without changing a bit (INV-SAME-BITS).
For the same reason the algorithm is a pure function of (group size, message size).

The ring after Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations
in MPICH" (2005).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from trainmover_executor.communicator.doubling import rounds_of
from trainmover_executor.communicator.memory import Scratch, bytes_of, flat_of, write_back
from trainmover_executor.communicator.reduction import Reduction
from trainmover_executor.communicator.wire import GroupWire
from trainmover_executor.links.book import LinkBook
from trainmover_executor.links.pump import Frame, pump

__all__ = ["SMALL_BYTES", "LinkCommunicator"]

SMALL_BYTES: Final = 32 * 1024
"""Up to here fewer rounds beat fewer bytes (measured on loopback: the curves cross at 20-60 KB)."""


class LinkCommunicator(GroupWire):
    """Collectives of one group over the links of a ``LinkBook``; see ``GroupWire``."""

    def __init__(
        self, book: LinkBook, *, group: str, ranks: Sequence[int], timeout_s: float
    ) -> None:
        super().__init__(book, group=group, ranks=ranks, timeout_s=timeout_s)
        self._scratch = (Scratch(), Scratch())
        self._rounds = rounds_of(self.rank, self._size)

    # -- collectives ---------------------------------------------------------------------------

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """See ``Communicator.allreduce``."""
        flat = flat_of(tensor)
        frame = self._next("allreduce")
        reduction.prepare(flat)
        if self._size > 1 and flat.numel():
            if flat.numel() * flat.element_size() <= SMALL_BYTES:
                self._allreduce_doubling(flat, reduction, frame)
            else:
                self._allreduce_ring(flat, reduction, frame)
        reduction.finish(flat, size=self._size)
        write_back(tensor, flat)

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> None:
        """See ``Communicator.reduce_scatter``."""
        frame = self._next("reduce_scatter")
        mine = flat_of(out)
        chunks = [flat_of(chunk) for chunk in inputs]
        size, rank = self._size, self.rank
        # Chunk r must end at rank r, so it starts its way at rank r + 1 and is passed on, each
        # rank adding its own: two alternating accumulators, the last of which is ``out``.
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
        if size == 1:
            mine.copy_(travelling)
        reduction.finish(mine, size=size)
        write_back(out, mine)

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """See ``Communicator.all_gather``."""
        frame = self._next("all_gather")
        flats = [flat_of(out) for out in outs]
        size, rank = self._size, self.rank
        flats[rank].copy_(flat_of(tensor))
        for step in range(size - 1):
            self._exchange(
                frame,
                flats[(rank - step) % size],
                flats[(rank - step - 1) % size],
                to=rank + 1,
                source=rank - 1,
            )
        for out, flat in zip(outs, flats, strict=True):
            write_back(out, flat)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.broadcast``. A binomial tree: log2(n) rounds."""
        frame = self._next("broadcast")
        flat = flat_of(tensor)
        size = self._size
        position = (self.rank - root) % size
        reach = 1
        while reach < size:
            if position < reach and position + reach < size:
                self._exchange(frame, flat, None, to=self.rank + reach, source=0)
            elif reach <= position < 2 * reach:
                self._exchange(frame, None, flat, to=0, source=self.rank - reach)
            reach *= 2
        write_back(tensor, flat)

    def reduce(self, tensor: torch.Tensor, reduction: Reduction, *, root: int) -> None:
        """See ``Communicator.reduce``."""
        total = tensor if self.rank == root else tensor.detach().clone()
        self.allreduce(total, reduction)

    def gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.gather``."""
        frame = self._next("gather")
        mine = flat_of(tensor)
        if self.rank != root:
            self._exchange(frame, mine, None, to=root, source=0)
            return
        for peer, out in enumerate(outs):
            flat = flat_of(out)
            if peer == root:
                flat.copy_(mine)
            else:
                self._exchange(frame, None, flat, to=0, source=peer)
            write_back(out, flat)

    def scatter(self, out: torch.Tensor, inputs: Sequence[torch.Tensor], *, root: int) -> None:
        """See ``Communicator.scatter``."""
        frame = self._next("scatter")
        mine = flat_of(out)
        if self.rank != root:
            self._exchange(frame, None, mine, to=0, source=root)
        for peer, piece in enumerate(inputs):
            if peer == self.rank:
                mine.copy_(flat_of(piece))
            else:
                self._exchange(frame, flat_of(piece), None, to=peer, source=0)
        write_back(out, mine)

    def all_to_all(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """See ``Communicator.all_to_all``. Pairwise: in round k send to r + k, hear from r - k."""
        frame = self._next("all_to_all")
        flats = [flat_of(out) for out in outs]
        flats[self.rank].copy_(flat_of(inputs[self.rank]))
        for distance in range(1, self._size):
            to = (self.rank + distance) % self._size
            source = (self.rank - distance) % self._size
            self._exchange(frame, flat_of(inputs[to]), flats[source], to=to, source=source)
        for out, flat in zip(outs, flats, strict=True):
            write_back(out, flat)

    def barrier(self) -> None:
        """See ``Communicator.barrier``. Dissemination: log2(n) rounds."""
        frame = self._next("barrier")
        distance = 1
        while distance < self._size:
            self._exchange(frame, None, None, to=self.rank + distance, source=self.rank - distance)
            distance *= 2

    # -- point to point ------------------------------------------------------------------------

    def send(self, tensor: torch.Tensor, *, to: int, tag: int) -> None:
        """See ``Communicator.send``."""
        count = self._sent[to] = self._sent.get(to, -1) + 1
        link = self._link(to, lane="/p2p")
        pump(
            frame=(self.book.epoch, tag, count),
            out=(link, bytes_of(flat_of(tensor))),
            stall_timeout_s=self.timeout_s,
        )

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:
        """See ``Communicator.recv``. Messages of one pair arrive in the order they were sent."""
        count = self._received[source] = self._received.get(source, -1) + 1
        flat = flat_of(tensor)
        view = bytes_of(flat)
        pump(
            frame=(self.book.epoch, tag, count),
            into=(self._link(source, lane="/p2p"), len(view), view),
            stall_timeout_s=self.timeout_s,
        )
        write_back(tensor, flat)

    # -- algorithms ----------------------------------------------------------------------------

    def _allreduce_ring(self, flat: torch.Tensor, reduction: Reduction, frame: Frame) -> None:
        size, rank = self._size, self.rank
        count = flat.numel()
        bounds = [count * i // size for i in range(size + 1)]
        chunks = [flat[bounds[i] : bounds[i + 1]] for i in range(size)]
        for step in range(size - 1):
            self._exchange(
                frame,
                chunks[(rank - step) % size],
                chunks[(rank - step - 1) % size],
                to=rank + 1,
                source=rank - 1,
                reduction=reduction,
            )
        for step in range(size - 1):
            self._exchange(
                frame,
                chunks[(rank + 1 - step) % size],
                chunks[(rank - step) % size],
                to=rank + 1,
                source=rank - 1,
            )

    def _allreduce_doubling(self, flat: torch.Tensor, reduction: Reduction, frame: Frame) -> None:
        for to, source, combines in self._rounds:
            self._exchange(
                frame,
                None if to is None else flat,
                None if source is None else flat,
                to=to or 0,
                source=source or 0,
                reduction=reduction if combines else None,
            )
