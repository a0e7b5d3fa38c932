"""A ring of machines made of native groups of two: what a move replaces is two of them.

Native libraries cannot exchange one member of a group, but a group of two that the leaver is in
has to be built again anyway. So each connection of the ring is a group of its own, for one
direction, and the ring is rotated by hand (TrainMover, section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainmover_executor.collectives.communicator.reduction import Reduction
from trainmover_executor.collectives.linked.store import Rendezvous
from trainmover_executor.collectives.native.group import NativeGroup
from trainmover_executor.collectives.native.library import Library
from trainmover_executor.state.packing.memory import Scratch

__all__ = ["Rail"]


class Rail:
    """Collectives among ranks of one rail: those with the same place on their machines.

    Tensors are flat and contiguous, where the library can work on them. The order in which values
    are added depends on positions in the ring only (INV-SAME-BITS).

    Args:
        rendezvous: How its members find each other.
        library: Which library.
        members: Ranks within the rendezvous's group, in ring order.
    """

    def __init__(self, rendezvous: Rendezvous, *, library: Library, members: Sequence[int]) -> None:
        self._size = size = len(members)
        self._rank = rank = list(members).index(rendezvous.rank)

        def connection(sender: int) -> NativeGroup:
            pair = [members[sender], members[(sender + 1) % size]]
            return NativeGroup(rendezvous, library=library, members=pair)

        self._next = connection(rank)
        self._previous = connection((rank - 1) % size)
        self._scratch = Scratch()

    def allreduce(self, flat: torch.Tensor, reduction: Reduction) -> None:
        """``flat`` becomes the combination over the rail, with the same bits everywhere."""
        size, count = self._size, flat.numel()
        bounds = [count * i // size for i in range(size + 1)]
        pieces = [flat[bounds[i] : bounds[i + 1]] for i in range(size)]
        self.reduce_scatter(pieces, reduction)
        self.all_gather(pieces)

    def reduce_scatter(self, pieces: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
        """Combine ``pieces[i]`` for the rail's rank i; changes the others.

        Returns:
            This rank's piece, combined.
        """
        size, rank = self._size, self._rank
        for step in range(size - 1):
            mine = pieces[(rank - step - 2) % size]
            arrived = self._scratch.like(mine)
            self._rotate(pieces[(rank - step - 1) % size], arrived)
            reduction.combine(mine, arrived)
        return pieces[rank]

    def all_gather(self, pieces: Sequence[torch.Tensor]) -> None:
        """``pieces[i]`` becomes that of the rail's rank i; this rank's own is there already."""
        size, rank = self._size, self._rank
        for step in range(size - 1):
            self._rotate(pieces[(rank - step) % size], pieces[(rank - step - 1) % size])

    def broadcast(self, flat: torch.Tensor, *, root: int) -> None:
        """``flat`` becomes the one of the rail's rank ``root``: along the ring."""
        distance = (self._rank - root) % self._size
        self._connect()
        if distance > 0:
            self._previous.run("recv", [flat], 0, 0)
        if distance < self._size - 1:
            self._next.run("send", [flat], 1, 0)

    def _rotate(self, out: torch.Tensor, into: torch.Tensor) -> None:
        """Send ``out`` on, and take ``into`` from behind, at once."""
        self._connect()
        sent = self._next.start("send", [out], 1, 0)
        self._previous.run("recv", [into], 0, 0)
        sent.wait()

    def _connect(self) -> None:
        """Build both connections where they are not there.

        In an order that all ranks keep, or they wait in a circle: every second one of the ring
        first.
        """
        behind = (self._rank - 1) % self._size
        ends = {self._rank: self._next, behind: self._previous}
        for sender in sorted(ends, key=lambda sender: (sender % 2, sender)):
            ends[sender].connect()
