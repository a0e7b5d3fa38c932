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

from trainmover_executor.collectives.communicator.base import Communicator
from trainmover_executor.collectives.communicator.checks import (
    CollectiveError,
    check_contiguous,
    check_dense,
    check_even,
    check_part,
    check_parts,
    check_splits,
    check_tag,
)
from trainmover_executor.collectives.communicator.reduction import Reduction, reduction_of
from trainmover_executor.collectives.communicator.sparse import allreduce_sparse
from trainmover_executor.collectives.engine import GroupEngine
from trainmover_executor.collectives.linked.communicator import strand_of

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
    def _device_types(self) -> list[torch.device]:
        """Whose tensors it carries: asynchronous checkpoints want to see ``cpu`` among them."""
        return [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, device: torch.device) -> dist.ProcessGroup:  # noqa: ARG002
        """What carries tensors of ``device``."""
        return self

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
        """All-reduce every tensor of the list in place; sparse ones by sum only."""
        tensors = _listed(tensors)
        reduction = reduction_of(_op(opts))
        if any(tensor.layout is torch.sparse_coo for tensor in tensors):
            return self._allreduce_sparse(tensors, reduction, opts)
        check_dense("all_reduce", *tensors)
        for tensor in tensors:
            reduction.check("all_reduce", tensor)

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                communicator.allreduce(tensor, reduction)

        return self._engine.run(
            "allreduce", operation, tensors, reduces=tensors, timeout=_timeout(opts)
        )

    allreduce_coalesced = allreduce

    def _allreduce_sparse(self, tensors: Tensors, reduction: Reduction, opts: Any) -> Work:
        if reduction.name != "sum" or reduction.factor is not None:
            raise CollectiveError(
                "all_reduce of sparse tensors: only a sum is possible; use to_dense() for others"
            )
        if any(tensor.layout is not torch.sparse_coo for tensor in tensors):
            raise CollectiveError("all_reduce: sparse COO tensors go with nothing else in one list")
        values = [tensor._values() for tensor in tensors]  # noqa: SLF001 - of uncoalesced ones, too
        for each in values:
            reduction.check("all_reduce", each)

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                allreduce_sparse(communicator, tensor, size=self._size)

        return self._engine.run(
            "allreduce", operation, tensors, reduces=values, timeout=_timeout(opts)
        )

    @_eager
    def reduce(self, tensors: Tensors, opts: Any = None, op: Any = None) -> Work:
        """Reduce to ``opts.rootRank``."""
        tensors = _listed(tensors)
        root = _root(opts)
        reduction = reduction_of(_op(opts) if op is None else op)
        check_dense("reduce", *tensors)
        for tensor in tensors:
            reduction.check("reduce", tensor)

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                communicator.reduce(tensor, reduction, root=root)

        return self._engine.run("reduce", operation, tensors, timeout=_timeout(opts))

    @_eager
    def reduce_scatter(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        """Reduce-scatter lists of chunks."""
        if isinstance(outs, torch.Tensor):
            outs, ins = [outs], [ins]
        reduction = reduction_of(_op(opts))
        for out, chunks in zip(outs, ins, strict=True):
            check_parts("reduce_scatter", chunks, out, size=self._size, rank=self._rank)
            reduction.check("reduce_scatter", out)

        def operation(communicator: Communicator) -> None:
            for out, chunks in zip(outs, ins, strict=True):
                communicator.reduce_scatter(out, chunks, reduction)

        pieces = [chunk for chunks in ins for chunk in chunks]
        return self._engine.run(
            "reduce_scatter", operation, list(outs), reduces=pieces, timeout=_timeout(opts)
        )

    @_eager
    def reduce_scatter_single(
        self, out: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Work:
        """Reduce-scatter the equal chunks of one tensor."""
        return self.reduce_scatter_single_coalesced([out], [source], opts)

    _reduce_scatter_base = reduce_scatter_single

    @_eager
    def reduce_scatter_single_coalesced(
        self, outs: Tensors, sources: Tensors, opts: Any = None
    ) -> Work:
        """Reduce-scatter the equal chunks of several tensors."""
        for out, source in zip(outs, sources, strict=True):
            check_part("reduce_scatter", out, source, parts=self._size)
        return self.reduce_scatter(outs, [self._chunks(source) for source in sources], opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- gathers -------------------------------------------------------------------------------

    @_eager
    def allgather(self, outs: Any, ins: Any, opts: Any = None) -> Work:
        """All-gather into lists of tensors: ``outs[i][rank]`` becomes that rank's ``ins[i]``."""
        if isinstance(ins, torch.Tensor):
            outs, ins = [outs], [ins]
        for pieces, mine in zip(outs, ins, strict=True):
            check_parts("all_gather", pieces, mine, size=self._size, rank=self._rank)

        def operation(communicator: Communicator) -> None:
            for pieces, mine in zip(outs, ins, strict=True):
                communicator.all_gather(pieces, mine)

        result = [piece for out in outs for piece in out]
        return self._engine.run("all_gather", operation, result, timeout=_timeout(opts))

    @_eager
    def allgather_coalesced(self, outs: list[Tensors], ins: Tensors, opts: Any = None) -> Work:
        """All-gather several tensors: ``outs[rank][i]`` becomes that rank's ``ins[i]``."""
        if len(outs) != self._size or any(len(pieces) != len(ins) for pieces in outs):
            raise CollectiveError(
                f"all_gather_coalesced of {len(ins)} tensors among {self._size} ranks: the output "
                "is a list for each rank, each of as many tensors"
            )
        return self.allgather([list(pieces) for pieces in zip(*outs, strict=True)], ins, opts)

    @_eager
    def all_gather_single(self, out: torch.Tensor, mine: torch.Tensor, opts: Any = None) -> Work:
        """All-gather into one tensor."""
        return self.all_gather_single_coalesced([out], [mine], opts)

    _allgather_base = all_gather_single

    @_eager
    def all_gather_single_coalesced(self, outs: Tensors, ins: Tensors, opts: Any = None) -> Work:
        """All-gather several tensors, each into one."""
        for out, mine in zip(outs, ins, strict=True):
            check_part("all_gather", mine, out, parts=self._size)
            check_contiguous("all_gather_into_tensor", out)
        pieces = [self._chunks(out) for out in outs]

        def operation(communicator: Communicator) -> None:
            for chunks, mine in zip(pieces, ins, strict=True):
                communicator.all_gather(chunks, mine)

        return self._engine.run("all_gather", operation, list(outs), timeout=_timeout(opts))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @_eager
    def gather(self, outs: Any, ins: Any, opts: Any) -> Work:
        """Gather to ``opts.rootRank``."""
        root = _root(opts)
        if isinstance(ins, torch.Tensor):
            outs, ins = [outs] if outs else [], [ins]
        check_dense("gather", *ins)
        pieces = outs[0] if outs else []
        if self._rank == root:
            check_parts("gather", pieces, ins[0], size=self._size)

        def operation(communicator: Communicator) -> None:
            communicator.gather(pieces, ins[0], root=root)

        return self._engine.run("gather", operation, list(pieces), timeout=_timeout(opts))

    @_eager
    def scatter(self, outs: Any, ins: Any, opts: Any) -> Work:
        """Scatter from ``opts.rootRank``."""
        root = _root(opts)
        if isinstance(outs, torch.Tensor):
            outs, ins = [outs], [ins] if ins else []
        check_dense("scatter", *outs)
        pieces = ins[0] if ins else []
        if self._rank == root:
            check_parts("scatter", pieces, outs[0], size=self._size)

        def operation(communicator: Communicator) -> None:
            communicator.scatter(outs[0], pieces, root=root)

        return self._engine.run("scatter", operation, list(outs), timeout=_timeout(opts))

    @_eager
    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        """Broadcast from ``opts.rootRank``."""
        tensors = _listed(tensors)
        root = _root(opts)
        check_dense("broadcast", *tensors)

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                communicator.broadcast(tensor, root=root)

        return self._engine.run("broadcast", operation, tensors, timeout=_timeout(opts))

    # -- all to all, point to point, barrier -----------------------------------------------------

    @_eager
    def alltoall(self, outs: Tensors, ins: Tensors, opts: Any = None) -> Work:
        """All-to-all with one tensor per peer."""
        mine = ins[self._rank] if len(ins) == self._size else torch.empty(0)
        check_parts("all_to_all", ins, mine, size=self._size, rank=self._rank)
        check_parts("all_to_all", outs, mine, size=self._size, rank=self._rank)

        def operation(communicator: Communicator) -> None:
            communicator.all_to_all(outs, ins)

        return self._engine.run("all_to_all", operation, list(outs), timeout=_timeout(opts))

    @_eager
    def all_to_all_single(
        self,
        out: torch.Tensor,
        source: torch.Tensor,
        out_sizes: Sequence[int] = (),
        in_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """All-to-all of rows of one tensor; empty sizes mean equal parts."""
        name = "all_to_all_single"
        check_contiguous(name, out)
        if out.data_ptr() == source.data_ptr():
            source = source.clone()  # what is still to be sent would be overwritten
        outs = self._rows(name, out, out_sizes)
        ins = self._rows(name, source, in_sizes)
        check_parts(name, outs, ins[self._rank], size=self._size, rank=self._rank)

        def operation(communicator: Communicator) -> None:
            communicator.all_to_all(outs, ins)

        return self._engine.run("all_to_all", operation, [out], timeout=_timeout(opts))

    alltoall_base = all_to_all_single

    def _rows(self, op: str, tensor: torch.Tensor, sizes: Sequence[int]) -> Tensors:
        if sizes:
            check_splits(op, tensor, sizes, size=self._size)
            return list(tensor.split(list(sizes)))
        check_even(op, tensor, size=self._size)
        return self._chunks(tensor)

    @_eager
    def send(self, tensors: Tensors, to: int, tag: int = 0) -> Work:
        """Send to rank ``to`` of the group."""
        self._check_message("send", tensors, to, tag)

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                communicator.send(tensor, to=to, tag=tag)

        queue_key = ("send", to, strand_of(tag))
        return self._engine.run("send", operation, list(tensors), queue_key=queue_key, peer=to)

    @_eager
    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        """Receive from rank ``source`` of the group."""
        self._check_message("recv", tensors, source, tag)

        def operation(communicator: Communicator) -> None:
            for tensor in tensors:
                communicator.recv(tensor, source=source, tag=tag)

        queue_key = ("recv", source, strand_of(tag))
        return self._engine.run("recv", operation, list(tensors), queue_key=queue_key, peer=source)

    def _check_message(self, op: str, tensors: Tensors, peer: int, tag: int) -> None:
        check_dense(op, *tensors)
        check_tag(op, tag)
        if peer == self._rank:
            raise CollectiveError(f"{op}: a rank has no message for itself; copy the tensor")
        if not 0 <= peer < self._size:
            raise CollectiveError(f"{op}: there is no rank {peer} in a group of {self._size}")

    @_eager
    def barrier(self, opts: Any = None) -> Work:
        """Wait for every rank."""
        return self._engine.run(
            "barrier", lambda communicator: communicator.barrier(), [], timeout=_timeout(opts)
        )

    # -- what is refused -------------------------------------------------------------------------

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:  # noqa: ARG002
        """Refused: which message comes first is chance, and a redone step would differ."""
        raise CollectiveError(
            "recv without a source: whose message comes first is chance, so a step that is redone "
            "would have another result. Name the source: recv(tensor, src=...)."
        )

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """Refused: who is missing is the detector's business."""
        raise CollectiveError(
            "monitored_barrier is not there: use barrier(). Who is missing is said by "
            "'trainmover status', for collectives of any kind."
        )

    def _start_coalescing(self, *_: Any) -> None:
        """Refused: operations of one kind are taken together, without a device."""
        # Torch has noted already that it collects operations, and would collect for ever.
        dist.distributed_c10d._world.pg_coalesce_state.pop(self, None)  # noqa: SLF001
        raise CollectiveError(
            "_coalescing_manager(device=...) is not supported by the trainmover backend: leave "
            "device out"
        )

    # -- what torch asks of every group ----------------------------------------------------------

    def set_timeout(self, timeout: timedelta) -> None:
        """Accepted and ignored: a stalled link is the detector's business, not a timer's."""

    def abort(self) -> None:
        """Nothing to abort: operations end with their links."""

    def shutdown(self) -> None:
        """End this group's threads; links belong to the process."""
        self._engine.end()

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _chunks(self, tensor: torch.Tensor) -> Tensors:
        """The equal parts of a tensor, by rank, flat: views where it is contiguous."""
        flat = tensor.detach().reshape(-1)
        return list(flat.view(self._size, flat.numel() // self._size).unbind(0))


def _listed(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _op(opts: Any) -> Any:
    """The reduce operation: of options, or itself."""
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def _root(opts: Any) -> int:
    """The root's rank in the group: of options, or itself."""
    if opts is None:
        return 0
    root: int = getattr(opts, "rootRank", opts)
    return root


def _timeout(opts: Any) -> timedelta:
    """How long the caller wants to wait; zero where it does not say."""
    timeout = getattr(opts, "timeout", None)
    return timeout if isinstance(timeout, timedelta) and timeout > timedelta(0) else timedelta(0)


def register_backend(creator: Callable[[Any, Any], dist.ProcessGroup]) -> None:
    """Make ``init_process_group("trainmover")`` call ``creator(options, backend_options)``."""
    if BACKEND in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(BACKEND, creator, extended_api=True, devices=["cpu", "cuda"])
