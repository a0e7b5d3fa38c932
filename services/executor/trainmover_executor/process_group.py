"""A torch ProcessGroup with a stable identity and a swappable inside.

DDP, FSDP2, DTensor, pipeline schedules and torch.compile keep their reference to this object for
the life of the job; a migration exchanges only the communicator it delegates to.

Traps of torch 2.13 that shape this module: the group is opaque to Dynamo, so its methods are
marked as graph breaks; futures must resolve to a list of tensors (DDP); both the old and the new
names of renamed methods are called, depending on the caller.
"""

# torch's overloads list signatures of its C++ entry points that only C++ calls.
# mypy: disable-error-code="override,assignment,no-untyped-call,call-arg,arg-type"

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from trainmover_executor.communicator.base import Communicator
from trainmover_executor.communicator.reduction import reduction_of
from trainmover_executor.engine import GroupEngine

__all__ = ["BACKEND", "TrainMoverProcessGroup", "register_backend"]

BACKEND: Final = "trainmover"

Tensors = list[torch.Tensor]
_F = TypeVar("_F", bound=Callable[..., Any])


def _eager(method: _F) -> _F:
    """Keep Dynamo out of ``method``: sockets and threads cannot be traced."""
    disabled: _F = torch._dynamo.disable(method)  # noqa: SLF001 - the public name is deprecated
    return disabled


class TrainMoverProcessGroup(dist.ProcessGroup):
    """The process group that user code sees.

    Args:
        rank: This rank within the group.
        size: Number of ranks.
        name: Torch's name of the group, equal at all members.
        ranks: Global ranks of the members.
        engine: What runs the operations.
    """

    def __init__(
        self, *, rank: int, size: int, name: str, ranks: Sequence[int], engine: GroupEngine
    ) -> None:
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._name = name
        self._engine = engine
        self.ranks = tuple(ranks)

    @property
    def engine(self) -> GroupEngine:
        """What runs this group's operations."""
        return self._engine

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Name of the backend."""
        return BACKEND

    def name(self) -> str:
        """Name of the backend."""
        return BACKEND

    def rank(self) -> int:
        """This rank within the group."""
        return self._rank

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    getRank = rank  # noqa: N815 - torch's name
    getSize = size  # noqa: N815 - torch's name

    @property
    def pg_name(self) -> str:
        """Name of the group."""
        return self.group_name

    @property
    def group_name(self) -> str:
        """Name of the group."""
        return self._name

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Name of the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name
        super()._set_group_name(name)

    # -- reductions ----------------------------------------------------------------------------

    @_eager
    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """All-reduce every tensor of the list in place."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        reduction = reduction_of(_op(opts))

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                communicator.allreduce(tensor, reduction)

        return self._engine.run("allreduce", operation, tensors, reduces=tensors)

    allreduce_coalesced = allreduce

    @_eager
    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce to ``opts.rootRank``."""
        reduction, root = reduction_of(_op(opts)), opts.rootRank

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                communicator.reduce(tensor, reduction, root=root)

        return self._engine.run("reduce", operation, list(tensors))

    @_eager
    def reduce_scatter(self, outs: Tensors, ins: list[Tensors], opts: Any = None) -> Work:
        """Reduce-scatter lists of chunks."""
        reduction = reduction_of(_op(opts))

        def operation(communicator: Communicator) -> None:
            for out, chunks in zip(outs, ins, strict=True):
                communicator.reduce_scatter(out, chunks, reduction)

        pieces = [chunk for chunks in ins for chunk in chunks]
        return self._engine.run("reduce_scatter", operation, list(outs), reduces=pieces)

    @_eager
    def reduce_scatter_single(
        self, out: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Work:
        """Reduce-scatter the equal chunks of one tensor."""
        return self.reduce_scatter([out], [self._chunks(source)], opts)

    _reduce_scatter_base = reduce_scatter_single

    @_eager
    def reduce_scatter_single_coalesced(
        self, outs: Tensors, sources: Tensors, opts: Any = None
    ) -> Work:
        """Reduce-scatter the equal chunks of several tensors."""
        return self.reduce_scatter(outs, [self._chunks(source) for source in sources], opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- gathers -------------------------------------------------------------------------------

    @_eager
    def allgather(self, outs: list[Tensors], ins: Tensors, opts: Any = None) -> Work:  # noqa: ARG002
        """All-gather into lists of tensors."""

        def operation(communicator: Communicator) -> None:
            for pieces, mine in zip(outs, ins, strict=True):
                communicator.all_gather(pieces, mine)

        return self._engine.run("all_gather", operation, [piece for out in outs for piece in out])

    allgather_coalesced = allgather

    @_eager
    def all_gather_single(self, out: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> Work:  # noqa: ARG002
        """All-gather into one tensor."""
        return self.all_gather_single_coalesced([out], [mine])

    _allgather_base = all_gather_single

    @_eager
    def all_gather_single_coalesced(self, outs: Tensors, ins: Tensors, opts: Any = None) -> Work:  # noqa: ARG002
        """All-gather several tensors, each into one."""
        pieces = [self._chunks(out) for out in outs]

        def operation(communicator: Communicator) -> None:
            for chunks, mine in zip(pieces, ins, strict=True):
                communicator.all_gather(chunks, mine)

        return self._engine.run("all_gather", operation, list(outs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @_eager
    def gather(self, outs: list[Tensors], ins: Tensors, opts: Any) -> Work:
        """Gather to ``opts.rootRank``."""
        root = opts.rootRank

        def operation(communicator: Communicator) -> None:
            communicator.gather(outs[0] if outs else [], ins[0], root=root)

        return self._engine.run("gather", operation, [piece for out in outs for piece in out])

    @_eager
    def scatter(self, outs: Tensors, ins: list[Tensors], opts: Any) -> Work:
        """Scatter from ``opts.rootRank``."""
        root = opts.rootRank

        def operation(communicator: Communicator) -> None:
            communicator.scatter(outs[0], ins[0] if ins else [], root=root)

        return self._engine.run("scatter", operation, list(outs))

    @_eager
    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:
        """Broadcast from ``opts.rootRank``."""
        root = 0 if opts is None else opts.rootRank

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                communicator.broadcast(tensor, root=root)

        return self._engine.run("broadcast", operation, list(tensors))

    # -- all to all, point to point, barrier -----------------------------------------------------

    @_eager
    def alltoall(self, outs: Tensors, ins: Tensors, opts: Any = None) -> Work:  # noqa: ARG002
        """All-to-all with one tensor per peer."""

        def operation(communicator: Communicator) -> None:
            communicator.all_to_all(outs, ins)

        return self._engine.run("all_to_all", operation, list(outs))

    @_eager
    def all_to_all_single(
        self,
        out: torch.Tensor,
        source: torch.Tensor,
        out_sizes: Sequence[int] = (),
        in_sizes: Sequence[int] = (),
        opts: Any = None,  # noqa: ARG002
    ) -> Work:
        """All-to-all of rows of one tensor; empty sizes mean equal parts."""
        outs = list(out.split(list(out_sizes))) if out_sizes else self._chunks(out)
        ins = list(source.split(list(in_sizes))) if in_sizes else self._chunks(source)

        def operation(communicator: Communicator) -> None:
            communicator.all_to_all(outs, ins)

        return self._engine.run("all_to_all", operation, [out])

    alltoall_base = all_to_all_single

    @_eager
    def send(self, tensors: Tensors, to: int, tag: int = 0) -> Work:
        """Send to rank ``to`` of the group."""

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                communicator.send(tensor, to=to, tag=tag)

        return self._engine.run("send", operation, list(tensors), lane=("send", to), peer=to)

    @_eager
    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        """Receive from rank ``source`` of the group."""

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                communicator.recv(tensor, source=source, tag=tag)

        return self._engine.run(
            "recv", operation, list(tensors), lane=("recv", source), peer=source
        )

    @_eager
    def barrier(self, opts: Any = None) -> Work:  # noqa: ARG002
        """Wait for every rank."""
        return self._engine.run("barrier", lambda communicator: communicator.barrier(), [])

    # -- what torch asks of every group ----------------------------------------------------------

    def set_timeout(self, timeout: timedelta) -> None:
        """Accepted and ignored: a stalled link is the detector's business, not a timer's."""

    def abort(self) -> None:
        """Nothing to abort: operations end with their links."""

    def shutdown(self) -> None:
        """Nothing to shut down: links belong to the process."""

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _chunks(self, tensor: torch.Tensor) -> Tensors:
        """The equal parts of a contiguous tensor, by rank, as flat views."""
        flat = tensor.detach().view(-1)
        return list(flat.view(self._size, flat.numel() // self._size).unbind(0))


def _op(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def register_backend(creator: Callable[[Any, Any], dist.ProcessGroup]) -> None:
    """Make ``init_process_group("trainmover")`` call ``creator(options, backend_options)``."""
    if BACKEND in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND, creator, extended_api=True, devices=["cpu", "cuda"])
