"""Messages between the members of a group over its links; what every algorithm is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from trainmover.job.endpoints import split_endpoint
from trainmover.telemetry.records import OPS
from trainmover_executor.collectives.communicator.reduction import Reduction
from trainmover_executor.links.exchange import PIECE_BYTES, Consume, exchange
from trainmover_executor.links.header import Frame
from trainmover_executor.links.link import Link
from trainmover_executor.links.table import LinkTable
from trainmover_executor.state.packing.memory import PieceBuffer, bytes_of

__all__ = ["TAG", "GroupWire"]

TAG: Final = {name: index for index, name in enumerate(OPS)}
"""What a frame's tag says: the operation."""

_EMPTY: Final = memoryview(b"")


class GroupWire:
    """The members of one group, and the links of a ``LinkTable`` to them.

    Args:
        table: Where links come from.
        group: Name of the group; part of every link's identity.
        ranks: Global ranks of the members, in group order.
        timeout_s: Seconds without any progress after which a message fails.

    Attributes:
        rank: This rank's position in the group.
    """

    def __init__(
        self, table: LinkTable, *, group: str, ranks: Sequence[int], timeout_s: float
    ) -> None:
        self.table = table
        self.group = group
        self.ranks = tuple(ranks)
        self.rank = self.ranks.index(table.rank)
        self._size = len(self.ranks)
        self.timeout_s = timeout_s
        self._piece = PieceBuffer()
        self._sequence = 0
        self._sent: dict[tuple[int, int], int] = {}
        self._received: dict[tuple[int, int], int] = {}

    @property
    def epoch(self) -> int:
        """The epoch its messages carry."""
        return self.table.epoch

    def host_of(self, member: int) -> str:
        """Host name or address of a member of the group."""
        return split_endpoint(self.table.membership.endpoint_of(self.ranks[member]))[0]

    def rewind(self) -> None:
        """Start counting messages anew: a new epoch begins at every member."""
        self._sequence = 0
        self._sent.clear()
        self._received.clear()

    def _exchange(
        self,
        frame: Frame,
        out: torch.Tensor | None,
        into: torch.Tensor | None,
        *,
        to: int,
        source: int,
        reduction: Reduction | None = None,
    ) -> None:
        """Send ``out`` and receive ``into`` at once; with ``reduction`` combine what arrives.

        With both None an empty message is exchanged. ``out`` and ``into`` may be the same tensor
        only for messages that fit one piece, which are sent before anything is combined.
        """
        both_empty = out is None and into is None
        outgoing = None
        if out is not None or both_empty:
            data = bytes_of(out) if out is not None else _EMPTY
            if out is into and out is not None:
                data = memoryview(bytes(data))
            outgoing = (self._link(to % self._size), data)
        incoming = None
        consume = None
        if into is not None or both_empty:
            link = self._link(source % self._size)
            size = into.numel() * into.element_size() if into is not None else 0
            if reduction is not None and into is not None:
                incoming = (link, size, self._piece.bytes)
                consume = _combiner(into, reduction)
            else:
                view = bytes_of(into) if into is not None else _EMPTY
                incoming = (link, size, view)
        exchange(
            frame=frame,
            out=outgoing,
            into=incoming,
            consume=consume,
            stall_timeout_s=self.timeout_s,
        )

    def _link(self, member: int, *, suffix: str = "") -> Link:
        return self.table.link(self.group + suffix, self.ranks[member], timeout_s=self.timeout_s)

    def _links(self, members: Sequence[int]) -> list[Link]:
        """Links to several members; those that are not there yet are made at the same time."""
        peers = [self.ranks[member] for member in members]
        return self.table.links(self.group, peers, timeout_s=self.timeout_s)

    def _next(self, op: str) -> Frame:
        self._sequence += 1
        return self.table.epoch, TAG[op], self._sequence


def _combiner(into: torch.Tensor, reduction: Reduction) -> Consume:
    width, dtype = into.element_size(), into.dtype

    def combine(offset: int, piece: memoryview) -> None:
        values = torch.frombuffer(piece, dtype=dtype)
        first = offset // width
        reduction.combine(into[first : first + len(values)], values)

    return combine


assert PIECE_BYTES % 16 == 0  # noqa: S101 - a piece holds whole elements of every dtype
