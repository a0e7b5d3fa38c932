"""Collectives by a native library: inside a machine, or in a whole group for comparison.

In a whole group every member has to build it again whenever one changes. ``LinkCommunicator``
exists because of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import ReduceOp

from trainmover_executor.collectives.communicator.checks import CollectiveError
from trainmover_executor.collectives.communicator.reduction import Reduction
from trainmover_executor.collectives.native.group import NativeGroup

__all__ = ["NativeCommunicator"]

_OPS: Final[dict[str, Any]] = {
    "sum": ReduceOp.SUM,
    "avg": ReduceOp.SUM,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "product": ReduceOp.PRODUCT,
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
}

_REDUCED: Final = frozenset(
    {
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
    }
)
"""What both libraries combine."""


def _raw(flat: torch.Tensor) -> torch.Tensor:
    """Its bytes: moving them takes no library that knows the type."""
    return flat.view(torch.uint8)


class NativeCommunicator:
    """Collectives of one group by the library of ``group``."""

    def __init__(self, group: NativeGroup) -> None:
        self._group = group
        self._flats = group.flats

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """See ``Communicator.allreduce``."""
        with self._flats([tensor]) as ([flat], _):
            reduction.prepare(flat)
            self.allreduce_flat(flat, reduction)
            reduction.finish(flat, size=self._group.size)

    def allreduce_flat(self, flat: torch.Tensor, reduction: Reduction) -> None:
        """Combine what the library can work on, and nothing else."""
        options = c10d.AllreduceOptions()
        options.reduceOp = self._op(flat, reduction)
        self._group.run("allreduce", [flat], options)

    def _op(self, flat: torch.Tensor, reduction: Reduction) -> Any:
        """Torch's name of ``reduction``.

        Raises:
            CollectiveError: The library cannot add this type. It would say so in the way in which
                it says that a peer is gone, and the step would be redone for ever.
        """
        if flat.dtype not in _REDUCED:
            raise CollectiveError(
                f"{self._group.library.name} cannot reduce {flat.dtype}: convert it, or leave "
                "TRAINMOVER_COMMUNICATOR at 'link'"
            )
        if flat.dtype is torch.bool and reduction.name == "sum":
            return ReduceOp.MAX  # bytes would be added, and 2 is no boolean
        return _OPS[reduction.name]

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> None:
        """See ``Communicator.reduce_scatter``."""
        with self._flats([out], inputs) as ([mine], pieces):
            whole = torch.cat(pieces)
            reduction.prepare(whole)
            self.reduce_scatter_flat(mine, whole, reduction)
            reduction.finish(mine, size=self._group.size)

    def reduce_scatter_flat(
        self, mine: torch.Tensor, whole: torch.Tensor, reduction: Reduction
    ) -> None:
        """``mine`` becomes the combination of this rank's part of ``whole``."""
        options = c10d.ReduceScatterOptions()
        options.reduceOp = self._op(whole, reduction)
        self._group.run("_reduce_scatter_base", mine, whole, options)

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """See ``Communicator.all_gather``."""
        with self._flats(outs, [tensor]) as (flats, [mine]):
            self._group.run("allgather", [list(map(_raw, flats))], [_raw(mine)])

    def all_gather_flat(self, whole: torch.Tensor, mine: torch.Tensor) -> None:
        """``whole`` becomes every rank's ``mine``, one after the other."""
        self._group.run("_allgather_base", _raw(whole), _raw(mine), c10d.AllgatherOptions())

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.broadcast``."""
        options = c10d.BroadcastOptions()
        options.rootRank = root
        with self._flats([tensor]) as ([flat], _):
            self._group.run("broadcast", [_raw(flat)], options)

    def reduce(self, tensor: torch.Tensor, reduction: Reduction, *, root: int) -> None:
        """See ``Communicator.reduce``."""
        total = tensor if self._group.rank == root else tensor.detach().clone()
        self.allreduce(total, reduction)

    def gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.gather``. By all-gather."""
        everything = [torch.empty_like(tensor) for _ in range(self._group.size)]
        self.all_gather(everything, tensor)
        if self._group.rank == root:
            for out, value in zip(outs, everything, strict=True):
                out.detach().copy_(value)

    def scatter(self, out: torch.Tensor, inputs: Sequence[torch.Tensor], *, root: int) -> None:
        """See ``Communicator.scatter``."""
        options = c10d.ScatterOptions()
        options.rootRank = root
        with self._flats([out], inputs) as ([mine], pieces):
            raw = [[_raw(piece) for piece in pieces]] if pieces else []
            self._group.run("scatter", [_raw(mine)], raw, options)

    def all_to_all(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """See ``Communicator.all_to_all``."""
        with self._flats(outs, inputs) as (flats, pieces):
            outs, ins = list(map(_raw, flats)), list(map(_raw, pieces))
            sizes = [out.numel() for out in outs]
            sent = torch.cat(ins)
            received = sent.new_empty(sum(sizes))
            self._group.run("alltoall_base", received, sent, sizes, [each.numel() for each in ins])
            for out, piece in zip(outs, torch.split(received, sizes), strict=True):
                out.copy_(piece)

    def send(self, tensor: torch.Tensor, *, to: int, tag: int) -> None:
        """See ``Communicator.send``."""
        with self._flats([], [tensor]) as (_, [flat]):
            self._group.run("send", [flat], to, tag)

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:
        """See ``Communicator.recv``."""
        with self._flats([tensor]) as ([flat], _):
            self._group.run("recv", [flat], source, tag)

    def barrier(self) -> None:
        """See ``Communicator.barrier``."""
        self._group.run("barrier", c10d.BarrierOptions())
