"""Collectives by ProcessGroupGloo: the comparison, and the fallback where links cannot be used.

A native group cannot replace one member: at every epoch it is built again from nothing, by all
members, at their first collective. And nobody can interrupt it: after a crash a rank that is not
connected to the dead one waits for the group's timeout. ``LinkCommunicator`` exists because of
these two facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import ReduceOp

from trainmover_executor.communicator.link import LinkCommunicator
from trainmover_executor.communicator.memory import flat_of, write_back
from trainmover_executor.communicator.reduction import Reduction
from trainmover_executor.links.link import LinkBrokenError

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


class NativeCommunicator:
    """Collectives of one group by Gloo.

    Args:
        links: The same group over links; used to agree on where to meet.
        rank: Rank within the group.
        size: Number of ranks.
        timeout_s: Gloo's timeout for every operation.
    """

    def __init__(self, links: LinkCommunicator, *, rank: int, size: int, timeout_s: float) -> None:
        self._links = links
        self._rank = rank
        self._size = size
        self._timeout = timedelta(seconds=timeout_s)
        self._store: c10d.TCPStore | None = None
        self._built: Any = None
        self._epoch = 0

    def _group(self) -> Any:
        """The Gloo group of the current epoch, built now if it is not there."""
        if self._built is None or self._epoch != self._links.epoch:
            self._build()
        return self._built

    def _build(self) -> None:
        self._built = None
        self._store = None
        port = torch.zeros(1, dtype=torch.int64)
        if self._rank == 0:
            self._store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            port[0] = self._store.port
        self._links.broadcast(port, root=0)
        host = self._links.host_of(0)
        if self._store is None:
            self._store = c10d.TCPStore(host, int(port.item()), is_master=False)
        self._built = c10d.ProcessGroupGloo(self._store, self._rank, self._size, self._timeout)
        self._epoch = self._links.epoch

    def _run(self, name: str, *arguments: Any) -> None:
        try:
            getattr(self._group(), name)(*arguments).wait()
        except RuntimeError as error:
            raise LinkBrokenError(f"gloo {name} failed: {error}") from None

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """See ``Communicator.allreduce``."""
        options = c10d.AllreduceOptions()
        options.reduceOp = _OPS[reduction.name]
        flat = flat_of(tensor)
        reduction.prepare(flat)
        self._run("allreduce", [flat], options)
        reduction.finish(flat, size=self._size)
        write_back(tensor, flat)

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
    ) -> None:
        """See ``Communicator.reduce_scatter``. By all-reduce: Gloo has no general one."""
        total = torch.cat([flat_of(piece) for piece in inputs])
        self.allreduce(total, reduction)
        out.detach().copy_(
            torch.split(total, [p.numel() for p in inputs])[self._rank].view(out.shape)
        )

    def all_gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        """See ``Communicator.all_gather``."""
        flats = [flat_of(out) for out in outs]
        self._run("allgather", [flats], [flat_of(tensor)])
        for out, flat in zip(outs, flats, strict=True):
            write_back(out, flat)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.broadcast``."""
        options = c10d.BroadcastOptions()
        options.rootRank = root
        flat = flat_of(tensor)
        self._run("broadcast", [flat], options)
        write_back(tensor, flat)

    def reduce(self, tensor: torch.Tensor, reduction: Reduction, *, root: int) -> None:
        """See ``Communicator.reduce``."""
        self.allreduce(tensor if self._rank == root else tensor.detach().clone(), reduction)

    def gather(self, outs: Sequence[torch.Tensor], tensor: torch.Tensor, *, root: int) -> None:
        """See ``Communicator.gather``. By all-gather."""
        everything = [torch.empty_like(tensor) for _ in range(self._size)]
        self.all_gather(everything, tensor)
        if self._rank == root:
            for out, value in zip(outs, everything, strict=True):
                out.detach().copy_(value)

    def scatter(self, out: torch.Tensor, inputs: Sequence[torch.Tensor], *, root: int) -> None:
        """See ``Communicator.scatter``."""
        options = c10d.ScatterOptions()
        options.rootRank = root
        flat = flat_of(out)
        self._run("scatter", [flat], [[flat_of(i) for i in inputs]] if inputs else [], options)
        write_back(out, flat)

    def all_to_all(self, outs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """See ``Communicator.all_to_all``."""
        sizes_out = [out.numel() for out in outs]
        sizes_in = [piece.numel() for piece in inputs]
        received = torch.empty(sum(sizes_out), dtype=outs[0].dtype)
        sent = torch.cat([flat_of(piece) for piece in inputs])
        self._run("alltoall_base", received, sent, sizes_out, sizes_in)
        for out, piece in zip(outs, torch.split(received, sizes_out), strict=True):
            out.detach().copy_(piece.view(out.shape))

    def send(self, tensor: torch.Tensor, *, to: int, tag: int) -> None:
        """See ``Communicator.send``."""
        self._run("send", [flat_of(tensor)], to, tag)

    def recv(self, tensor: torch.Tensor, *, source: int, tag: int) -> None:
        """See ``Communicator.recv``."""
        flat = flat_of(tensor)
        self._run("recv", [flat], source, tag)
        write_back(tensor, flat)

    def barrier(self) -> None:
        """See ``Communicator.barrier``."""
        self._run("barrier", c10d.BarrierOptions())
