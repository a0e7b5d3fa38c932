"""Calls of torch.distributed with what may come of each, written down by every rank.

The same calls run over Gloo and over TrainMover. A case returns what came out, and what arithmetic
on this rank alone says; what it raises is written down, too.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.distributed import ReduceOp
from torch.distributed import _functional_collectives as funcol
from torch.distributed import nn as dist_nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

Case = Callable[[int, int], tuple[Any, Any]]
"""(rank, world) -> (what came out, what arithmetic says or None)."""

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16),
    *(torch.bool, torch.complex64),
)
SHAPES = ((), (0,), (1,), (3, 5), (2, 0, 3), (123, 321))


def value(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, so that no order of additions changes a bit."""
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) * 7 + rank * 3) % 5 + 1
    if dtype is torch.bool:
        numbers = (numbers + rank) % 2
    return numbers.to(dtype).reshape(shape)


def combined(op: Any, values: list[torch.Tensor]) -> torch.Tensor:
    """By one rank alone."""
    total = values[0].clone()
    for other in values[1:]:
        if op in (ReduceOp.SUM, ReduceOp.AVG):
            total = total | other if total.dtype is torch.bool else total + other
        elif op == ReduceOp.PRODUCT:
            total = total * other
        elif op == ReduceOp.MIN:
            total = torch.minimum(total, other)
        elif op == ReduceOp.MAX:
            total = torch.maximum(total, other)
        elif op == ReduceOp.BAND:
            total = total & other
        elif op == ReduceOp.BOR:
            total = total | other
        elif op == ReduceOp.BXOR:
            total = total ^ other
    if op == ReduceOp.AVG:
        whole = not (total.is_floating_point() or total.is_complex())
        total = total.div(len(values), rounding_mode="trunc") if whole else total / len(values)
    return total.to(values[0].dtype)


def reductions() -> Iterator[tuple[str, Case]]:
    ops = ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
    for name in ops:
        for dtype in DTYPES:
            label = f"{name.lower()} {str(dtype).removeprefix('torch.')}"
            yield from reductions_of(getattr(ReduceOp, name), dtype, label)


def reductions_of(op: Any, dtype: torch.dtype, label: str) -> Iterator[tuple[str, Case]]:
    def all_reduce(rank: int, world: int) -> tuple[Any, Any]:
        mine = value(rank, (5, 3), dtype)
        dist.all_reduce(mine, op)
        return mine, combined(op, [value(r, (5, 3), dtype) for r in range(world)])

    def reduce(rank: int, world: int) -> tuple[Any, Any]:
        mine = value(rank, (5, 3), dtype)
        dist.reduce(mine, 1, op)
        expected = combined(op, [value(r, (5, 3), dtype) for r in range(world)])
        return (mine, expected) if rank == 1 else (None, None)

    def reduce_scatter_tensor(rank: int, world: int) -> tuple[Any, Any]:
        out = torch.empty(2, 3, dtype=dtype)
        dist.reduce_scatter_tensor(out, value(rank, (2 * world, 3), dtype), op)
        whole = combined(op, [value(r, (2 * world, 3), dtype) for r in range(world)])
        return out, whole[2 * rank : 2 * rank + 2]

    def reduce_scatter(rank: int, world: int) -> tuple[Any, Any]:
        out = torch.empty(4, dtype=dtype)
        chunks = [value(rank + i, (4,), dtype) for i in range(world)]
        dist.reduce_scatter(out, chunks, op)
        return out, combined(op, [value(r + rank, (4,), dtype) for r in range(world)])

    for one in (all_reduce, reduce, reduce_scatter_tensor, reduce_scatter):
        # Complex numbers are divided as such by some operations, part by part by others.
        unsure = op == ReduceOp.AVG and dtype.is_complex
        yield f"{one.__name__} {label}", functools.partial(_unknown, one) if unsure else one


def _unknown(one: Case, rank: int, world: int) -> tuple[Any, Any]:
    return one(rank, world)[0], None


@dataclass(frozen=True)
class Tensors:
    """What ranks move around."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    transposed: bool

    def of(self, rank: int) -> torch.Tensor:
        """Not contiguous where it is transposed."""
        if not self.transposed:
            return value(rank, self.shape, self.dtype)
        axes = range(len(self.shape))[::-1]
        return value(rank, self.shape[::-1], self.dtype).permute(*axes)

    def empty(self) -> torch.Tensor:
        return torch.zeros_like(self.of(0).to(torch.float32)).to(self.dtype)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.shape} {kind}{' transposed' if self.transposed else ''}"


def moves() -> Iterator[tuple[str, Case]]:
    kinds = [Tensors(shape, torch.float32, transposed=False) for shape in SHAPES]
    kinds += [Tensors(shape, torch.float32, transposed=True) for shape in SHAPES if len(shape) > 1]
    kinds += [Tensors((3, 4), dtype, transposed=False) for dtype in DTYPES]
    for kind in kinds:
        for move in (
            *(broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all),
            *(send_recv, everybody_to_everybody, all_gather_into_rows),
        ):
            yield f"{move.__name__} {kind}", functools.partial(move, kind)


def broadcast(kind: Tensors, rank: int, world: int) -> tuple[Any, Any]:
    mine = kind.of(rank)
    dist.broadcast(mine, 2)
    return mine, kind.of(2)


def all_gather(kind: Tensors, rank: int, world: int) -> tuple[Any, Any]:
    outs = [kind.empty() for _ in range(world)]
    dist.all_gather(outs, kind.of(rank))
    return outs, [kind.of(r) for r in range(world)]


def all_gather_into_tensor(kind: Tensors, rank: int, world: int) -> tuple[Any, Any]:
    out = torch.empty((world, *kind.shape), dtype=kind.dtype)
    dist.all_gather_into_tensor(out, kind.of(rank))
    return out, torch.stack([kind.of(r) for r in range(world)])


def all_gather_into_rows(kind: Tensors, rank: int, world: int) -> tuple[Any, Any]:
    rows, *others = kind.shape or (1,)
    out = torch.empty((world * rows, *others), dtype=kind.dtype)
    dist.all_gather_into_tensor(out, kind.of(rank).reshape(rows, *others))
    return out, torch.cat([kind.of(r).reshape(rows, *others) for r in range(world)])


def gather(kind: Tensors, rank: int, world: int) -> tuple[Any, Any]:
    outs = [kind.empty() for _ in range(world)] if rank == 1 else None
    dist.gather(kind.of(rank), outs, 1)
    return outs, [kind.of(r) for r in range(world)] if rank == 1 else None


def scatter(kind: Tensors, rank: int, world: int) -> tuple[Any, Any]:
    out = kind.empty()
    dist.scatter(out, [kind.of(r + 4) for r in range(world)] if rank == 2 else None, 2)
    return out, kind.of(rank + 4)


def all_to_all(kind: Tensors, rank: int, world: int) -> tuple[Any, Any]:
    outs = [kind.empty() for _ in range(world)]
    dist.all_to_all(outs, [kind.of(rank * 10 + r) for r in range(world)])
    return outs, [kind.of(r * 10 + rank) for r in range(world)]


def send_recv(kind: Tensors, rank: int, world: int) -> tuple[Any, Any]:
    out = kind.empty()
    if rank == 0:
        dist.send(kind.of(0), 1)
    elif rank == 1:
        dist.recv(out, 0)
    return (out, kind.of(0)) if rank == 1 else (None, None)


def everybody_to_everybody(kind: Tensors, rank: int, world: int) -> tuple[Any, Any]:
    others = [r for r in range(world) if r != rank]
    outs = [kind.empty() for _ in others]
    ops = [dist.P2POp(dist.irecv, out, r) for out, r in zip(outs, others, strict=True)]
    ops += [dist.P2POp(dist.isend, kind.of(rank), r) for r in others]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return outs, [kind.of(r) for r in others]


# -- each by itself ------------------------------------------------------------------------------

ALONE: dict[str, Case] = {}


def case(function: Case) -> Case:
    ALONE[function.__name__] = function
    return function


def ramp(rank: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) + 100 * rank


@case
def all_gather_coalesced(rank: int, world: int) -> tuple[Any, Any]:
    outs = [[torch.empty(2), torch.empty(3)] for _ in range(world)]
    dist.all_gather_coalesced(outs, [ramp(rank, 2), ramp(rank + 10, 3)])
    return outs, [[ramp(r, 2), ramp(r + 10, 3)] for r in range(world)]


@case
def all_reduce_coalesced(rank: int, world: int) -> tuple[Any, Any]:
    mine = [ramp(rank, 2), ramp(rank, 3)]
    dist.all_reduce_coalesced(mine)
    return mine, [sum(ramp(r, n) for r in range(world)) for n in (2, 3)]


@case
def all_to_all_single_uneven(rank: int, world: int) -> tuple[Any, Any]:
    sizes = [[0, 1, 2], [3, 0, 1], [1, 2, 0]]
    ins = sizes[rank]
    outs = [sizes[r][rank] for r in range(world)]
    source = ramp(rank, 2 * sum(ins)).view(-1, 2)
    out = torch.empty(sum(outs), 2)
    dist.all_to_all_single(out, source, outs, ins)
    parts = [ramp(r, 2 * sum(sizes[r])).view(-1, 2).split(sizes[r])[rank] for r in range(world)]
    return out, torch.cat(parts)


@case
def all_to_all_single_even(rank: int, world: int) -> tuple[Any, Any]:
    out = torch.empty(2 * world, 2)
    dist.all_to_all_single(out, ramp(rank, 4 * world).view(-1, 2))
    return out, torch.cat([ramp(r, 4 * world).view(world, 2, 2)[rank] for r in range(world)])


@case
def all_to_all_single_of_elements(rank: int, world: int) -> tuple[Any, Any]:
    out = torch.empty(4, 3)
    dist.all_to_all_single(out, ramp(rank, 12).view(4, 3))
    return out, torch.cat([ramp(r, 12).view(3, 4)[rank] for r in range(world)]).view(4, 3)


@case
def all_to_all_single_that_does_not_divide(rank: int, world: int) -> tuple[Any, Any]:
    out = torch.empty(4)
    dist.all_to_all_single(out, ramp(rank, 4))
    return out, "raises"


@case
def all_to_all_single_wrong_sizes(rank: int, world: int) -> tuple[Any, Any]:
    out = torch.empty(6)
    dist.all_to_all_single(out, ramp(rank, 6), [2, 2, 2], [2, 2, 1])
    return out, "raises"


@case
def all_gather_of_another_size(rank: int, world: int) -> tuple[Any, Any]:
    outs = [torch.empty(3) for _ in range(world)]
    dist.all_gather(outs, torch.ones(1))
    return outs, "raises"


@case
def all_gather_of_another_type(rank: int, world: int) -> tuple[Any, Any]:
    out = torch.empty(world, dtype=torch.int64)
    dist.all_gather_into_tensor(out, torch.ones(1))
    return out, "raises"


@case
def all_gather_into_what_does_not_divide(rank: int, world: int) -> tuple[Any, Any]:
    out = torch.empty(2 * world + 1)
    dist.all_gather_into_tensor(out, torch.ones(2))
    return out, "raises"


@case
def all_gather_with_a_short_list(rank: int, world: int) -> tuple[Any, Any]:
    outs = [torch.empty(3) for _ in range(world - 1)]
    dist.all_gather(outs, torch.ones(3))
    return outs, "raises"


@case
def reduce_scatter_tensor_that_does_not_divide(rank: int, world: int) -> tuple[Any, Any]:
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, torch.ones(7))
    return out, "raises"


@case
def reduce_scatter_tensor_of_any_shape(rank: int, world: int) -> tuple[Any, Any]:
    out = torch.empty(3, 2)
    dist.reduce_scatter_tensor(out, torch.ones(2, 9))
    return out, torch.full((3, 2), float(world))


@case
def scatter_with_a_short_list(rank: int, world: int) -> tuple[Any, Any]:
    if rank == 0:
        dist.scatter(torch.empty(1), [torch.ones(1)] * (world - 1), 0)
    else:
        raise ValueError("only the root can know")
    return None, "raises"


@case
def sparse_all_reduce(rank: int, world: int) -> tuple[Any, Any]:
    def of(r: int) -> torch.Tensor:
        indices = torch.tensor([[r, r + 1, r], [0, 1, 0]])  # not coalesced
        return torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, 3.0]), (5, 2))

    mine = of(rank)
    dist.all_reduce(mine)
    return mine.to_dense(), sum(of(r).to_dense() for r in range(world))


@case
def sparse_all_reduce_of_rows(rank: int, world: int) -> tuple[Any, Any]:
    def of(r: int) -> torch.Tensor:
        count = r  # the first rank has none
        return torch.sparse_coo_tensor(
            torch.arange(count)[None], ramp(r, 3 * count).view(-1, 3), (4, 3)
        )

    mine = of(rank)
    dist.all_reduce(mine)
    return mine.to_dense(), sum(of(r).to_dense() for r in range(world))


@case
def sparse_all_reduce_max(rank: int, world: int) -> tuple[Any, Any]:
    mine = torch.eye(2).to_sparse()
    dist.all_reduce(mine, ReduceOp.MAX)
    return mine, "raises"


@case
def sparse_broadcast(rank: int, world: int) -> tuple[Any, Any]:
    mine = torch.eye(2).to_sparse()
    dist.broadcast(mine, 0)
    return mine, "raises"


@case
def premul_sum(rank: int, world: int) -> tuple[Any, Any]:
    mine = ramp(rank, 4)
    dist.all_reduce(mine, c10d._make_nccl_premul_sum(2.0))
    return mine, sum(2 * ramp(r, 4) for r in range(world))


@case
def premul_sum_of_integers(rank: int, world: int) -> tuple[Any, Any]:
    mine = torch.ones(4, dtype=torch.int64)
    dist.all_reduce(mine, c10d._make_nccl_premul_sum(0.5))
    return mine, "raises"


@case
def tags_out_of_order(rank: int, world: int) -> tuple[Any, Any]:
    tensors = [torch.full((4,), float(tag)) for tag in range(3)]
    if rank == 0:
        works = [dist.isend(tensors[tag], 1, tag=tag) for tag in range(3)]
    elif rank == 1:
        outs = [torch.empty(4) for _ in range(3)]
        works = [dist.irecv(outs[tag], 0, tag=tag) for tag in (2, 0, 1)]
    else:
        return None, None
    for work in works:
        work.wait()
    return (None, None) if rank == 0 else (outs, tensors)


@case
def large_messages_that_cross(rank: int, world: int) -> tuple[Any, Any]:
    if rank == 2:
        return None, None
    out = torch.empty(1 << 20)
    works = [dist.isend(ramp(rank, 1 << 20), 1 - rank), dist.irecv(out, 1 - rank)]
    for work in works:
        work.wait()
    return out, ramp(1 - rank, 1 << 20)


@case
def send_to_oneself(rank: int, world: int) -> tuple[Any, Any]:
    dist.send(torch.ones(1), rank)
    return None, "raises"


@case
def batch_with_oneself(rank: int, world: int) -> tuple[Any, Any]:
    out = torch.empty(2)
    ops = [dist.P2POp(dist.isend, torch.ones(2), rank), dist.P2POp(dist.irecv, out, rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return out, "raises"


@case
def recv_from_any_source(rank: int, world: int) -> tuple[Any, Any]:
    if rank == 0 or dist.get_backend() != "gloo":  # where it is refused, nobody may send
        out = torch.empty(2)
        return [dist.recv(out), out], [1, torch.ones(2)]
    if rank == 1:
        dist.send(torch.ones(2), 0)
    return None, None


@case
def negative_tag(rank: int, world: int) -> tuple[Any, Any]:
    if rank == 0:
        dist.send(torch.ones(1), 1, tag=-1)
    elif rank == 1:
        dist.recv(torch.ones(1), 0, tag=-1)
    return None, None


@case
def group_of_one(rank: int, world: int) -> tuple[Any, Any]:
    groups = [dist.new_group([r]) for r in range(world)]
    mine = ramp(rank, 3)
    outs = [torch.empty(3)]
    scattered = torch.empty(3)
    dist.all_reduce(mine, group=groups[rank])
    dist.all_gather(outs, mine, group=groups[rank])
    dist.reduce_scatter_tensor(scattered, mine, group=groups[rank])
    dist.barrier(group=groups[rank])
    for group in groups:
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    return [mine, outs, scattered], [ramp(rank, 3), [ramp(rank, 3)], ramp(rank, 3)]


@case
def group_of_some(rank: int, world: int) -> tuple[Any, Any]:
    group = dist.new_group([2, 0])
    mine = ramp(rank, 3)
    dist.all_reduce(mine, group=group)
    expected = ramp(rank, 3) if rank == 1 else ramp(0, 3) + ramp(2, 3)
    return [mine, dist.get_rank(group)], [expected, {0: 0, 1: -1, 2: 1}[rank]]


@case
def all_to_all_single_in_place(rank: int, world: int) -> tuple[Any, Any]:
    mine = ramp(rank, world)
    dist.all_to_all_single(mine, mine)
    return mine, torch.tensor([ramp(r, world)[rank] for r in range(world)])


@case
def all_gather_in_place(rank: int, world: int) -> tuple[Any, Any]:
    whole = torch.zeros(2 * world)
    whole[2 * rank : 2 * rank + 2] = ramp(rank, 2)
    dist.all_gather_into_tensor(whole, whole[2 * rank : 2 * rank + 2])
    return whole, torch.cat([ramp(r, 2) for r in range(world)])


@case
def reduce_scatter_in_place(rank: int, world: int) -> tuple[Any, Any]:
    whole = ramp(rank, 2 * world)
    part = whole[2 * rank : 2 * rank + 2]
    dist.reduce_scatter_tensor(part, whole)
    return part, sum(ramp(r, 2 * world) for r in range(world))[2 * rank : 2 * rank + 2]


@case
def methods_of_the_group(rank: int, world: int) -> tuple[Any, Any]:
    group = dist.group.WORLD
    total, largest, root, reduced = (ramp(rank, 3) for _ in range(4))
    outs = [torch.empty(3) for _ in range(world)]
    found = [torch.empty(3) for _ in range(world)] if rank == 1 else []
    piece, part = torch.empty(3), torch.empty(3)
    for work in (
        group.allreduce(total),
        group.allreduce([largest], ReduceOp.MAX),
        group.broadcast(root, 2),
        group.reduce(reduced, 0, ReduceOp.MIN),
        group.allgather(outs, ramp(rank, 3)),
        group.gather(found, ramp(rank, 3), 1),
        group.scatter(piece, [ramp(r, 3) for r in range(world)] if rank == 0 else [], 0),
        group.reduce_scatter(part, [ramp(r, 3) for r in range(world)], ReduceOp.SUM),
        group.barrier(),
    ):
        work.wait()
    values = [ramp(r, 3) for r in range(world)]
    return [total, largest, root, reduced if rank == 0 else None, outs, found, piece, part], [
        *(sum(values), values[-1], values[2], values[0] if rank == 0 else None, values),
        *([v for v in values if rank == 1], values[rank], world * values[rank]),
    ]


@case
def barriers(rank: int, world: int) -> tuple[Any, Any]:
    dist.barrier()
    dist.barrier(device_ids=[0])
    work = dist.barrier(async_op=True)
    return work.wait(), True


@case
def coalescing_manager(rank: int, world: int) -> tuple[Any, Any]:
    mine = [ramp(rank, n) for n in (2, 5)]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in mine:
            dist.all_reduce(tensor)
    whole = [torch.empty(world, n) for n in (2, 5)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for out, tensor in zip(whole, mine, strict=True):
            dist.all_gather_into_tensor(out, tensor)
    manager.wait()
    parts = [torch.empty(n) for n in (2, 5)]
    with dist.distributed_c10d._coalescing_manager():
        for out, tensor in zip(parts, whole, strict=True):
            dist.reduce_scatter_tensor(out, tensor)
    totals = [sum(ramp(r, n) for r in range(world)) for n in (2, 5)]
    return [mine, whole, parts], [
        totals,
        [torch.stack([t] * world) for t in totals],
        [t * world for t in totals],
    ]


@case
def coalescing_manager_of_a_device(rank: int, world: int) -> tuple[Any, Any]:
    mine = ramp(rank, 2)
    state = dist.distributed_c10d._world.pg_coalesce_state
    try:
        with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu")):
            dist.all_reduce(mine)
    finally:
        if dist.get_backend() == "gloo":  # which leaves torch collecting
            state.clear()
    return mine, "raises"


@case
def futures(rank: int, world: int) -> tuple[Any, Any]:
    mine = ramp(rank, 3)
    work = dist.all_reduce(mine, async_op=True)
    doubled = work.get_future().then(lambda future: [t * 2 for t in future.value()]).wait()
    return [doubled, work.wait(), work.is_completed(), work.is_success()], [
        [2 * sum(ramp(r, 3) for r in range(world))],
        *(True, True, True),
    ]


@case
def objects(rank: int, world: int) -> tuple[Any, Any]:
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, {"rank": rank, "long": "x" * 1000 * rank})
    shared = ["root", 7] if rank == 1 else [None, None]
    dist.broadcast_object_list(shared, 1)
    piece: list[Any] = [None]
    dist.scatter_object_list(piece, list("abc") if rank == 0 else None, 0)
    found = [None] * world if rank == 2 else None
    dist.gather_object(rank, found, 2)
    return [gathered, shared, piece, found], [
        [{"rank": r, "long": "x" * 1000 * r} for r in range(world)],
        ["root", 7],
        ["abc"[rank]],
        [0, 1, 2] if rank == 2 else None,
    ]


@case
def functional(rank: int, world: int) -> tuple[Any, Any]:
    group = dist.group.WORLD
    out = [
        funcol.all_reduce(ramp(rank, 3), "sum", group) + 0,
        funcol.all_gather_tensor(ramp(rank, 3), 0, group) + 0,
        funcol.reduce_scatter_tensor(ramp(rank, 3 * world), "sum", 0, group) + 0,
        funcol.all_to_all_single(ramp(rank, world), None, None, group) + 0,
        funcol.broadcast(ramp(rank, 2), 1, group) + 0,
        *(t + 0 for t in funcol.all_reduce_coalesced([ramp(rank, 2), ramp(rank, 1)], "sum", group)),
    ]
    return out, [
        sum(ramp(r, 3) for r in range(world)),
        torch.cat([ramp(r, 3) for r in range(world)]),
        sum(ramp(r, 3 * world) for r in range(world))[3 * rank : 3 * rank + 3],
        torch.stack([ramp(r, world)[rank] for r in range(world)]),
        ramp(1, 2),
        *(sum(ramp(r, n) for r in range(world)) for n in (2, 1)),
    ]


@case
def autograd(rank: int, world: int) -> tuple[Any, Any]:
    mine = ramp(rank, 3).requires_grad_()
    total = dist_nn.all_reduce(mine)
    gathered = torch.stack(dist_nn.all_gather(mine))
    (total.sum() + (gathered * 2).sum()).backward()
    values = [ramp(r, 3) for r in range(world)]
    return [total.detach(), gathered.detach(), mine.grad], [
        sum(values),
        torch.stack(values),
        torch.full((3,), 3.0 * world),
    ]


@case
def autograd_of_the_others(rank: int, world: int) -> tuple[Any, Any]:
    seen = []
    for count, move in (
        (3, lambda t: dist_nn.broadcast(t, 1)),
        (3, lambda t: dist_nn.reduce(t, 1)),
        (3, lambda t: torch.stack(dist_nn.gather(t, 1))),
        (3, lambda t: dist_nn.scatter([t + r for r in range(world)], 1)),
        (6, lambda t: dist_nn.reduce_scatter(torch.empty(2), list(t.split(2)))),
        (3, lambda t: torch.cat(dist_nn.all_to_all([torch.empty(1)] * world, list(t.split(1))))),
        (3, lambda t: dist_nn.all_to_all_single(torch.empty(3), t)),
    ):
        mine = ramp(rank, count).requires_grad_()
        out = move(mine)
        (out * (rank + 1)).sum().backward()
        seen.append((out.detach() if rank == 1 else None, mine.grad))
    return seen, None


@case
def functional_of_several(rank: int, world: int) -> tuple[Any, Any]:
    group = dist.group.WORLD
    whole = funcol.all_gather_into_tensor_coalesced([ramp(rank, 2), ramp(rank, 3)], group)
    parts = funcol.reduce_scatter_tensor_coalesced(
        [ramp(rank, 2 * world), ramp(rank, world)], "sum", [0, 0], group
    )
    uneven = funcol.all_to_all_single(
        ramp(rank, 6), [rank + 1] * world, [r + 1 for r in range(world)], group
    )
    return [[t + 0 for t in whole], [t + 0 for t in parts], uneven + 0], None


@case
def mesh(rank: int, world: int) -> tuple[Any, Any]:
    grid = init_device_mesh("cpu", (1, world), mesh_dim_names=("outer", "inner"))
    mine = ramp(rank, 2)
    dist.all_reduce(mine, group=grid["inner"].get_group())
    dist.all_reduce(mine, group=grid["outer"].get_group())
    return [mine, grid["inner"].get_local_rank()], [sum(ramp(r, 2) for r in range(world)), rank]


@case
def ddp_sparse(rank: int, world: int) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Embedding(5, 2, sparse=True))
    model(torch.tensor([rank, 4])).sum().backward()
    return model.module.weight.grad.to_dense(), None


@case
def ddp_logging(rank: int, world: int) -> tuple[Any, Any]:
    model = DistributedDataParallel(nn.Linear(2, 2))
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    data = model._get_ddp_logging_data()
    return [data["rank"], data["world_size"], data["iteration"]], None


def again_from_the_beginning(
    initialize: Callable[[], None], rank: int, world: int
) -> tuple[Any, Any]:
    dist.destroy_process_group()
    initialize()
    mine = ramp(rank, 3)
    dist.all_reduce(mine)
    return mine, sum(ramp(r, 3) for r in range(world))


# -- how it is run --------------------------------------------------------------------------------


def by_trainmover() -> None:
    dist.init_process_group("trainmover")


class ByGloo:
    """One rank of a plain job."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._inits = itertools.count()

    def __call__(self) -> None:
        rendezvous = f"file://{self._folder}/rendezvous{next(self._inits)}"
        dist.init_process_group("gloo", init_method=rendezvous, rank=self._rank, world_size=3)


def run_all(folder: Path, initialize: Callable[[], None]) -> None:
    """Every case in turn; writes {name: (kind, what came out, what it should be)}."""
    initialize()
    rank, world = dist.get_rank(), dist.get_world_size()
    seen: dict[str, tuple[str, Any, Any]] = {}
    again = functools.partial(again_from_the_beginning, initialize)
    for name, one in [*reductions(), *moves(), *ALONE.items(), ("again", again)]:
        try:
            seen[name] = ("value", *one(rank, world))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what came of the call
            seen[name] = ("raised", type(error).__name__, str(error))
    torch.save(seen, folder / f"{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    if sys.argv[2] == "trainmover":
        run_all(folder, by_trainmover)
        return
    context = torch.multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=run_all, args=(folder, ByGloo(folder, rank))) for rank in range(3)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main()
