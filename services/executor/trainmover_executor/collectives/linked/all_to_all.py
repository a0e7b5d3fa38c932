"""Large collectives among the ranks of one host: everybody exchanges with everybody, at once.

A ring takes 2 (n - 1) rounds, in each of which every rank waits for its neighbour; where ranks
share cores, each wait is a change of processes. Here it is two: each rank gets from all others what
it has to combine, and hands the result to all others, piece after piece. Pieces are combined where
they lie in shared memory.

They are combined as the ring does it: the same operations on the same operands in the same order.
So a rank that moves to another host, where the group takes the ring, changes no bit
(INV-SAME-BITS).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from trainmover_executor.collectives.communicator.reduction import Reduction
from trainmover_executor.links.header import Frame
from trainmover_executor.links.link import Link
from trainmover_executor.links.shared_memory.channel import SlotChannel, cut, wait_for
from trainmover_executor.links.shared_memory.slots import SLOT_BYTES
from trainmover_executor.state.packing.memory import bytes_of

__all__ = ["MESH_RANKS", "Mesh"]

MESH_RANKS: Final = 8
"""Largest group that exchanges all to all: each pair shares the memory of a link."""


class Mesh:
    """The links of one rank to all others of its group, for one collective.

    Args:
        links: In ring order, from the next rank to the one before; all of them share memory.
        frame: What the messages are.
        timeout_s: Seconds without any progress after which the collective fails.
    """

    def __init__(self, links: Sequence[Link], *, frame: Frame, timeout_s: float) -> None:
        self._links = links
        self._frame = frame
        self._timeout_s = timeout_s
        self._channels: list[SlotChannel] = []

    def reduce_scatter(
        self, own: torch.Tensor, shares: Sequence[torch.Tensor], how: Reduction
    ) -> None:
        """Combine into ``own`` what the others have for it.

        Args:
            own: Flat; this rank's contribution, then the combination over ranks.
            shares: What this rank contributes at each peer, in the order of the links.
            how: How pieces combine.
        """
        sizes = _sizes(cut(bytes_of(own)))
        for link, share in zip(self._links, shares, strict=True):
            pieces = cut(bytes_of(share))
            self._add(link, out=pieces, ready=len(pieces), sizes=sizes)
        self._run(_split(own), how, into=[])

    def all_gather(self, own: torch.Tensor, totals: Sequence[torch.Tensor]) -> None:
        """Hand ``own`` to all others.

        Args:
            own: Flat.
            totals: Where to put what each peer hands out, in the order of the links.
        """
        out = cut(bytes_of(own))
        into = [cut(bytes_of(total)) for total in totals]
        for link, pieces in zip(self._links, into, strict=True):
            self._add(link, out=out, ready=len(out), sizes=_sizes(pieces))
        self._run((), None, into=into)

    def allreduce(self, own: torch.Tensor, others: Sequence[torch.Tensor], how: Reduction) -> None:
        """Combine a tensor over ranks, in place; pieces of the result are handed out as they come.

        Args:
            own: Flat; the chunk that is combined at this rank.
            others: The chunks that are combined at each peer, in the order of the links.
            how: How pieces combine.
        """
        total = cut(bytes_of(own))
        into = [cut(bytes_of(chunk)) for chunk in others]
        for link, share in zip(self._links, into, strict=True):
            sizes = _sizes(total) + _sizes(share)
            self._add(link, out=[*share, *total], ready=len(share), sizes=sizes)
        self._run(_split(own), how, into=into)

    def _add(
        self, link: Link, *, out: Sequence[memoryview], ready: int, sizes: Sequence[int]
    ) -> None:
        self._channels.append(SlotChannel(link, self._frame, out=out, ready=ready, sizes=sizes))

    def _run(
        self,
        own: Sequence[torch.Tensor],
        how: Reduction | None,
        *,
        into: Sequence[Sequence[memoryview]],
    ) -> None:
        """First the pieces of ``own`` come over each channel, then those of ``into``."""
        channels, combined = self._channels, 0
        while True:
            moved = False
            for channel in channels:
                moved |= channel.advance()
            while how and combined < len(own) and self._combine(own[combined], how):
                combined += 1
                moved = True
            for channel, targets in zip(channels, into, strict=False):
                moved |= _collect(channel, targets, after=len(own))
            if all(channel.complete for channel in channels):
                return
            if not moved:
                wait_for(channels, stall_timeout_s=self._timeout_s)

    def _combine(self, own: torch.Tensor, how: Reduction) -> bool:
        """Combine the next piece if all channels brought theirs; the result may be handed out."""
        pieces = []
        for channel in self._channels:
            if (piece := channel.piece()) is None:
                return False
            pieces.append(piece)
        total, *others = (torch.frombuffer(piece, dtype=own.dtype) for piece in pieces)
        for values in (*others, own):
            how.combine(values, total)
            total = values
        for channel in self._channels:
            channel.give_back()
            channel.allow()
            channel.advance()
        return True


def _collect(channel: SlotChannel, targets: Sequence[memoryview], *, after: int) -> bool:
    """Copy what came of ``targets``, which follow ``after`` pieces of another kind."""
    before = channel.got
    while after <= channel.got < after + len(targets) and (piece := channel.piece()) is not None:
        target = np.frombuffer(targets[channel.got - after], np.uint8)
        np.copyto(target, np.frombuffer(piece, np.uint8))
        channel.give_back()
    return channel.got > before


def _sizes(pieces: Sequence[memoryview]) -> list[int]:
    return [len(piece) for piece in pieces]


def _split(own: torch.Tensor) -> list[torch.Tensor]:
    """The pieces of ``cut`` as elements."""
    step = SLOT_BYTES // own.element_size()
    return [own[at : at + step] for at in range(0, own.numel(), step)]
