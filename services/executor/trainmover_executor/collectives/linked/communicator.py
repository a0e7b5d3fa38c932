"""Collectives over direct links: recursive doubling for latency, a ring for bandwidth.

The order in which values are added depends on rank positions, sizes and the ring that the job was
formed with, never on timing or on which machine holds a rank, so a machine can be replaced without
changing a bit (INV-SAME-BITS).
For the same reason doubling or not is a pure function of (group size, message size). Ranks that
share a host do what the ring does all at once.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import torch

from trainmover_executor.collectives.communicator.reduction import Reduction
from trainmover_executor.collectives.linked.all_to_all import MESH_RANKS, Mesh
from trainmover_executor.collectives.linked.doubling import Round, rounds_of
from trainmover_executor.collectives.linked.ring import RingWire
from trainmover_executor.links.exchange import exchange
from trainmover_executor.links.header import Frame
from trainmover_executor.links.link import Link
from trainmover_executor.links.table import LinkTable
from trainmover_executor.state.packing.memory import bytes_of, flat_of, write_back

__all__ = ["SMALL_BYTES", "LinkCommunicator", "strand_of"]

SMALL_BYTES: Final = 32 * 1024
"""Up to here fewer rounds beat fewer bytes (measured on loopback: the curves cross at 20-60 KB)."""

_STRANDS: Final = 16

T = TypeVar("T")


def strand_of(tag: int) -> int:
    """Which of the links between two ranks carries messages with this tag.

    Messages of different strands overtake each other. There are few, because each is a socket and
    two threads, and programs count steps in tags.
    """
    return tag % _STRANDS


class LinkCommunicator(RingWire):
    """Collectives of one group over the links of a ``LinkTable``; see ``GroupWire``."""

    def __init__(
        self, table: LinkTable, *, group: str, ranks: Sequence[int], timeout_s: float
    ) -> None:
        super().__init__(table, group=group, ranks=ranks, timeout_s=timeout_s)
        self._rounds = rounds_of(self.rank, self._size)
        self._meshed = (-1, False)
        self._making = [threading.Lock() for _ in ranks]

    # -- collectives ---------------------------------------------------------------------------

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """See ``Communicator.allreduce``."""
        flat = flat_of(tensor)
        frame = self._next("allreduce")
        reduction.prepare(flat)
        if self._size > 1 and flat.numel():
            if not _is_large([flat]):
                self._allreduce_doubling(flat, reduction, frame)
            elif (mesh := self._mesh(frame)) is not None:
                chunks = self._chunks_of(flat)
                own, *others = chunks[self._place + 1 :] + chunks[: self._place + 1]
                mesh.allreduce(own, others, reduction)
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
        rank = self.rank
        if self._size == 1:
            mine.copy_(chunks[0])
            reduction.prepare(mine)
        elif (
            _is_large(chunks)
            and reduction.factor is None
            and (mesh := self._mesh(frame)) is not None
        ):
            mine.copy_(chunks[rank])
            mesh.reduce_scatter(mine, self._of_others(chunks), reduction)
        else:
            self._reduce_scatter_ring(mine, chunks, reduction, frame)
        reduction.finish(mine, size=self._size)
        write_back(out, mine)

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """See ``Communicator.all_gather``."""
        frame = self._next("all_gather")
        flats = [flat_of(out) for out in outs]
        rank = self.rank
        flats[rank].copy_(flat_of(tensor))
        if _is_large(flats) and (mesh := self._mesh(frame)) is not None:
            mesh.all_gather(flats[rank], self._of_others(flats))
        else:
            self._all_gather_ring(flats, frame)
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
        strand = strand_of(tag)
        count = self._sent[to, strand] = self._sent.get((to, strand), -1) + 1
        exchange(
            frame=(self.table.epoch, tag, count),
            out=(self._message_link(to, strand), bytes_of(flat_of(tensor))),
            stall_timeout_s=self.timeout_s,
        )

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:
        """See ``Communicator.recv``.

        Messages of one pair and one strand arrive in the order they were sent.
        """
        strand = strand_of(tag)
        count = self._received[source, strand] = self._received.get((source, strand), -1) + 1
        flat = flat_of(tensor)
        view = bytes_of(flat)
        exchange(
            frame=(self.table.epoch, tag, count),
            into=(self._message_link(source, strand), len(view), view),
            stall_timeout_s=self.timeout_s,
        )
        write_back(tensor, flat)

    def _message_link(self, member: int, strand: int) -> Link:
        # Sends and receives have threads of their own. Two that came here first at the same time
        # would both dial, and the second link would end the first.
        with self._making[member]:
            return self._link(member, suffix=f"/p2p{strand or ''}")

    # -- agreement ----------------------------------------------------------------------------

    def agree(self, values: Sequence[int], *, best: Callable[[int, int], int]) -> list[int]:
        """All-reduce a few integers of 64 bits.

        Every vote has one. Without tensors: behind their operations stands many times the cost.

        Args:
            values: As many at each rank.
            best: Of two, the one that is kept, in whatever order they come: ``min`` or ``max``.
        """
        frame = self._next("vote")
        words = list(values)
        for each in self._rounds:
            arrived = self._exchange_words(frame, each, words)
            words = list(map(best, words, arrived)) if each.combines else arrived
        return words

    def _exchange_words(self, frame: Frame, each: Round, words: list[int]) -> list[int]:
        """What the other rank has; ``words`` where it sends nothing."""
        layout = f"<{len(words)}q"
        out = into = None
        if each.to is not None:
            out = (self._link(each.to), memoryview(struct.pack(layout, *words)))
        arrived = memoryview(bytearray(struct.calcsize(layout)))
        if each.source is not None:
            into = (self._link(each.source), len(arrived), arrived)
        exchange(frame=frame, out=out, into=into, stall_timeout_s=self.timeout_s)
        return list(struct.unpack(layout, arrived)) if into is not None else words

    def _mesh(self, frame: Frame) -> Mesh | None:
        """All links at once for one collective; None where the group takes the ring."""
        if not 2 < self._size <= MESH_RANKS:
            return None
        since = self.table.unbroken_since(self.ranks)
        if self._meshed[0] != since:
            self._meshed = (since, self._all_share_memory())
        if not self._meshed[1]:
            return None
        return Mesh(self._around(), frame=frame, timeout_s=self.timeout_s)

    def _all_share_memory(self) -> bool:
        """Whether each pair of ranks does: no rank can see that of others, so they agree on it."""
        if len({self.host_of(member) for member in range(self._size)}) > 1:
            return False  # which all of them see
        shared = all(link.shared is not None for link in self._around())
        return bool(self.agree([shared], best=min)[0])

    def _around(self) -> list[Link]:
        """The links to all others in ring order, from the next rank to the one before."""
        return self._links(self._of_others(range(self._size)))

    def _of_others(self, parts: Sequence[T]) -> list[T]:
        """What there is of each other rank, in the same order."""
        return [parts[self._onward(distance)] for distance in range(1, self._size)]

    # -- algorithms ----------------------------------------------------------------------------

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


def _is_large(parts: Sequence[torch.Tensor]) -> bool:
    return sum(part.numel() * part.element_size() for part in parts) > SMALL_BYTES
