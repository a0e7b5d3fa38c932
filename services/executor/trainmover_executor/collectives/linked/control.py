"""What ranks tell each other beside collectives: votes, private state, state that is followed.

Used by the training thread alone, at the vote.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import torch

from trainmover_executor.collectives.linked.communicator import LinkCommunicator
from trainmover_executor.collectives.linked.wire import TAG
from trainmover_executor.links.exchange import exchange, swap
from trainmover_executor.state.packing.memory import bytes_of, flat_of

__all__ = ["ControlCommunicator"]

_AHEAD_BYTES: Final = 24 * 1024
_ASIDE: Final = "/aside"


class ControlCommunicator(LinkCommunicator):
    """The group of all ranks: agreements between them, and exchanges that are no collectives."""

    def exchange_bytes(
        self, data: bytes, *, peers: Sequence[tuple[int, int]], limit: int
    ) -> list[bytes]:
        """Send bytes to some ranks and receive bytes of unknown size from as many others.

        Args:
            data: What to send, the same to all.
            peers: (rank to send to, rank to receive from) within the group; equal distances at
                all ranks, in the same order.
            limit: Most bytes the other side may announce.

        Raises:
            ProtocolError: The other side announces more than ``limit``.
        """
        rounds = [(self._next("gather"), self._link(to), source) for to, source in peers]
        view = memoryview(data)
        # What the sockets hold needs nobody to read it yet: one wait instead of one for each peer.
        ahead = len(data) <= _AHEAD_BYTES
        if ahead:
            for frame, link, _ in rounds:
                exchange(frame=frame, out=(link, view), stall_timeout_s=self.timeout_s)
        return [
            bytes(
                swap(
                    frame=frame,
                    out=None if ahead else (link, view),
                    source=self._link(source),
                    limit=limit,
                    stall_timeout_s=self.timeout_s,
                )
            )
            for frame, link, source in rounds
        ]

    def exchange_heads(
        self, data: bytes | None, *, to: int, source: int | None, limit: int
    ) -> bytes | None:
        """Send bytes to one rank and receive bytes of unknown size from another.

        Ranks need not agree on who sends: links of their own carry it.

        Args:
            data: What to send; None to send nothing.
            to: Member to send to.
            source: Member to receive from; None to receive nothing.
            limit: Most bytes the other side may announce.

        Raises:
            ProtocolError: The other side announces more than ``limit``.
        """
        out = None if data is None else (self._link(to, suffix=_ASIDE), memoryview(data))
        frame = (self.table.epoch, TAG["send"], 0)
        if source is None:
            exchange(frame=frame, out=out, stall_timeout_s=self.timeout_s)
            return None
        return bytes(
            swap(
                frame=frame,
                out=out,
                source=self._link(source, suffix=_ASIDE),
                limit=limit,
                stall_timeout_s=self.timeout_s,
            )
        )

    def exchange_tensors(
        self,
        outs: Sequence[torch.Tensor],
        into: Sequence[torch.Tensor],
        *,
        to: int,
        source: int,
    ) -> None:
        """After ``exchange_heads``: send contiguous tensors to one rank, receive from another."""
        frame = (self.table.epoch, TAG["send"], 1)
        for out, place in itertools.zip_longest(outs, into):
            outgoing = incoming = None
            if out is not None:
                outgoing = (self._link(to, suffix=_ASIDE), bytes_of(flat_of(out)))
            if place is not None:
                view = bytes_of(flat_of(place))
                incoming = (self._link(source, suffix=_ASIDE), len(view), view)
            exchange(frame=frame, out=outgoing, into=incoming, stall_timeout_s=self.timeout_s)
