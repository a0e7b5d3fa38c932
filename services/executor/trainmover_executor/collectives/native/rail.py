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
    are added depends on places in the ring only, which the job was formed with (INV-SAME-BITS).

    Args:
        rendezvous: How its members find each other.
        library: Which library.
        members: Ranks within the rendezvous's group, in the order of the rail's ranks.
    """

    def __init__(self, rendezvous: Rendezvous, *, library: Library, members: Sequence[int]) -> None:
        self._size = size = len(members)
        ranks = [rendezvous.ranks[member] for member in members]
        self._ring = ring = rendezvous.table.membership.around(ranks)
        self._place = place = ring.index(list(members).index(rendezvous.rank))

        def connection(sender: int) -> NativeGroup:
            pair = [members[ring[sender]], members[ring[(sender + 1) % size]]]
            return NativeGroup(rendezvous, library=library, members=pair)

        self._next = connection(place)
        self._previous = connection((place - 1) % size)
        self._scratch = Scratch()

    def allreduce(self, flat: torch.Tensor, reduction: Reduction) -> None:
        """``flat`` becomes the combination over the rail, with the same bits everywhere."""
        size, count = self._size, flat.numel()
        bounds = [count * i // size for i in range(size + 1)]
        pieces = [flat[bounds[i] : bounds[i + 1]] for i in range(size)]
        self._combine(pieces, reduction)
        self._pass_round(pieces)

    def reduce_scatter(self, pieces: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
        """Combine ``pieces[i]`` for the rail's rank i; changes the others.

        Returns:
            This rank's piece, combined.
        """
        return self._combine(self._in_ring(pieces), reduction)

    def all_gather(self, pieces: Sequence[torch.Tensor]) -> None:
        """``pieces[i]`` becomes that of the rail's rank i; this rank's own is there already."""
        self._pass_round(self._in_ring(pieces))

    def broadcast(self, flat: torch.Tensor, *, root: int) -> None:
        """``flat`` becomes the one of the rail's rank ``root``: along the ring."""
        distance = (self._place - self._ring.index(root)) % self._size
        self._connect()
        if distance > 0:
            self._previous.run("recv", [flat], 0, 0)
        if distance < self._size - 1:
            self._next.run("send", [flat], 1, 0)

    def _in_ring(self, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [pieces[rank] for rank in self._ring]

    def _combine(self, pieces: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
        """``reduce_scatter`` of what is in the order of the ring."""
        size, place = self._size, self._place
        for step in range(size - 1):
            mine = pieces[(place - step - 2) % size]
            arrived = self._scratch.like(mine)
            self._rotate(pieces[(place - step - 1) % size], arrived)
            reduction.combine(mine, arrived)
        return pieces[place]

    def _pass_round(self, pieces: Sequence[torch.Tensor]) -> None:
        """``all_gather`` of what is in the order of the ring."""
        size, place = self._size, self._place
        for step in range(size - 1):
            self._rotate(pieces[(place - step) % size], pieces[(place - step - 1) % size])

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
        behind = (self._place - 1) % self._size
        ends = {self._place: self._next, behind: self._previous}
        for sender in sorted(ends, key=lambda sender: (sender % 2, sender)):
            ends[sender].connect()
