"""Native inside a machine, a ring of native connections between machines.

What a planned move replaces is then small, whatever the size of the job: the group inside the
joiner's machine, and on each rail the two connections to its neighbours (TrainMover, section 4.1).
Messages between two ranks, gathers and scatters go over links, and so does what the library does
not carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch

from trainmover.job.topology import Layout
from trainmover_executor.collectives.communicator.reduction import Reduction
from trainmover_executor.collectives.linked.communicator import LinkCommunicator
from trainmover_executor.collectives.linked.store import Rendezvous
from trainmover_executor.collectives.native.group import NativeGroup, flats_of
from trainmover_executor.collectives.native.library import Flats, Library
from trainmover_executor.collectives.native.native import NativeCommunicator
from trainmover_executor.collectives.native.rail import Rail
from trainmover_executor.state.packing.memory import Scratch

__all__ = ["Grid", "HierarchicalCommunicator"]

_SMALL_BYTES: Final = 32 * 1024
"""Up to here every rail carries everything: one step less, and nothing is cut in pieces."""


@dataclass(frozen=True)
class Grid:
    """A group as machines with equally many ranks each.

    Attributes:
        machines: How many.
        rails: Ranks of the group on each of them.
    """

    machines: int
    rails: int

    @classmethod
    def of(cls, layout: Layout, ranks: Sequence[int]) -> Grid | None:
        """The grid of a group with these global ranks; None where they form none."""
        slots = [layout.slot_of(rank) for rank in ranks]
        machines = len(set(slots))
        rails = len(slots) // machines
        even = all(slot == slots[i // rails * rails] for i, slot in enumerate(slots))
        return cls(machines, rails) if even and machines * rails == len(slots) else None


class HierarchicalCommunicator(LinkCommunicator):
    """Collectives of one group; see the module's docstring.

    Args:
        links: The same group over links, which this one takes the place of.
        library: What carries tensors inside a machine and between two.
        grid: The group's shape.
    """

    def __init__(self, links: LinkCommunicator, *, library: Library, grid: Grid) -> None:
        super().__init__(
            links.table, group=links.group, ranks=links.ranks, timeout_s=links.timeout_s
        )
        self._library = library
        self._grid = grid
        machine, place = divmod(self.rank, grid.rails)
        self.rendezvous = Rendezvous(links)
        self._column = Scratch()
        self._whole = Scratch()
        self._inside: NativeCommunicator | None = None
        if grid.rails > 1:
            first = machine * grid.rails
            members = range(first, first + grid.rails)
            group = NativeGroup(self.rendezvous, library=library, members=members)
            self._inside = NativeCommunicator(group)
        self._rail: Rail | None = None
        if grid.machines > 1:
            members = range(place, len(links.ranks), grid.rails)
            self._rail = Rail(self.rendezvous, library=library, members=members)

    def _flats(
        self, outs: Sequence[torch.Tensor], ins: Sequence[torch.Tensor] = ()
    ) -> AbstractContextManager[Flats]:
        return flats_of(self._library, self.table, outs, ins)

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """See ``Communicator.allreduce``."""
        if not self._library.carries(tensor):
            super().allreduce(tensor, reduction)
            return
        with self._flats([tensor]) as ([flat], _):
            reduction.prepare(flat)
            if flat.numel():
                self._combine(flat, reduction)
            reduction.finish(flat, size=len(self.ranks))

    def _combine(self, flat: torch.Tensor, reduction: Reduction) -> None:
        rails = self._grid.rails
        small = flat.numel() * flat.element_size() <= _SMALL_BYTES
        if self._inside is None or self._rail is None or small:
            if self._inside is not None:
                self._inside.allreduce_flat(flat, reduction)
            if self._rail is not None:
                self._rail.allreduce(flat, reduction)
            return
        even = flat.numel() // rails * rails
        whole, rest = flat[:even], flat[even:]
        mine = self._column.like(whole[: even // rails])
        self._inside.reduce_scatter_flat(mine, whole, reduction)
        self._rail.allreduce(mine, reduction)
        self._inside.all_gather_flat(whole, mine)
        if rest.numel():
            self._combine(rest, reduction)

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> None:
        """See ``Communicator.reduce_scatter``."""
        even = all(piece.numel() == out.numel() for piece in inputs)
        if not (even and out.numel() and self._library.carries(out)):
            super().reduce_scatter(out, inputs, reduction)
            return
        machines, rails = self._grid.machines, self._grid.rails
        with self._flats([out], inputs) as ([mine], pieces):
            whole = self._whole.like(mine, times=machines * rails)
            # By rail: what the ranks with one place need, of all machines.
            torch.cat(
                [piece for place in range(rails) for piece in pieces[place::rails]], out=whole
            )
            reduction.prepare(whole)
            column = whole
            if self._inside is not None:
                column = self._column.like(mine, times=machines)
                self._inside.reduce_scatter_flat(column, whole, reduction)
            if self._rail is not None:
                column = self._rail.reduce_scatter(column.chunk(machines), reduction)
            mine.copy_(column)
            reduction.finish(mine, size=len(self.ranks))

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """See ``Communicator.all_gather``."""
        if not (tensor.numel() and self._library.carries(tensor)):
            super().all_gather(outs, tensor)
            return
        machines, rails = self._grid.machines, self._grid.rails
        with self._flats(outs, [tensor]) as (flats, [mine]):
            column = self._column.like(mine, times=machines)
            parts = column.chunk(machines)
            parts[self.rank // rails].copy_(mine)
            if self._rail is not None:
                self._rail.all_gather(parts)
            whole = column
            if self._inside is not None:
                whole = self._whole.like(column, times=rails)
                self._inside.all_gather_flat(whole, column)
            for place, gathered in enumerate(whole.chunk(rails)):
                for flat, part in zip(flats[place::rails], gathered.chunk(machines), strict=True):
                    flat.copy_(part)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.broadcast``. Along the root's rail, then inside each machine."""
        if not (tensor.numel() and self._library.carries(tensor)):
            super().broadcast(tensor, root=root)
            return
        machine, place = divmod(root, self._grid.rails)
        with self._flats([tensor]) as ([flat], _):
            if self._rail is not None and self.rank % self._grid.rails == place:
                self._rail.broadcast(flat, root=machine)
            if self._inside is not None:
                self._inside.broadcast(flat, root=place)
