"""Tensors of a device go through the host: the same bits, and nothing but what is asked for.

No device is needed: what matters is that nobody reads or writes a tensor's memory behind the
staging, so host tensors are declared to be foreign. ``tests/cuda`` runs on the real thing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support.fabric import Fabric, everywhere
from torch.distributed import ReduceOp

from trainmover_executor.collectives.communicator.reduction import reduction_of
from trainmover_executor.collectives.linked.communicator import LinkCommunicator
from trainmover_executor.program.values.large import print_of
from trainmover_executor.state.packing import memory
from trainmover_executor.state.packing.fingerprint import words_of

WORLD, COUNT = 3, 30_011
SUM = reduction_of(ReduceOp.SUM)
Tensors = list[torch.Tensor]


def some(rank: int, seed: int = 0, count: int = COUNT) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(100 * seed + rank))


def several(rank: int) -> Tensors:
    return [some(rank, seed) for seed in range(WORLD)]


def empty() -> Tensors:
    return [torch.empty(COUNT) for _ in range(WORLD)]


def allreduce(c: LinkCommunicator, rank: int) -> Tensors:
    one, transposed = some(rank), some(rank, count=12).view(3, 4).t()
    c.allreduce(one, SUM)
    c.allreduce(transposed, SUM)
    return [one, transposed]


def reduce_to_one(c: LinkCommunicator, rank: int) -> Tensors:
    mine = some(rank)
    c.reduce(mine, SUM, root=1)
    return [mine]


def reduce_scatter(c: LinkCommunicator, rank: int) -> Tensors:
    out, inputs = torch.empty(COUNT), several(rank)
    c.reduce_scatter(out, inputs, SUM)
    return [out, *inputs]


def all_gather(c: LinkCommunicator, rank: int) -> Tensors:
    outs = empty()
    c.all_gather(outs, some(rank))
    return outs


def broadcast(c: LinkCommunicator, rank: int) -> Tensors:
    mine = some(rank)
    c.broadcast(mine, root=2)
    return [mine]


def gather_and_scatter(c: LinkCommunicator, rank: int) -> Tensors:
    outs = empty() if rank == 1 else []
    c.gather(outs, some(rank), root=1)
    out = torch.empty(COUNT)
    c.scatter(out, several(rank) if rank == 0 else [], root=0)
    return [*outs, out]


def all_to_all(c: LinkCommunicator, rank: int) -> Tensors:
    outs = empty()
    c.all_to_all(outs, several(rank))
    return outs


def point_to_point(c: LinkCommunicator, rank: int) -> Tensors:
    got = torch.empty(COUNT)
    if rank == 0:
        c.send(some(0), to=1, tag=3)
    elif rank == 1:
        c.recv(got.zero_(), source=0, tag=3)
    return [got.zero_() if rank != 1 else got]


Work = Callable[[LinkCommunicator, int], Tensors]


def results(work: Work) -> list[Tensors]:
    fabric = Fabric(WORLD)
    found: list[Tensors] = [[] for _ in range(WORLD)]

    def run(rank: int, communicator: LinkCommunicator) -> None:
        found[rank] = work(communicator, rank)

    everywhere(fabric.communicators(), run)
    fabric.close()
    return found


@pytest.mark.parametrize(
    "work",
    [
        allreduce,
        reduce_to_one,
        reduce_scatter,
        all_gather,
        broadcast,
        gather_and_scatter,
        all_to_all,
        point_to_point,
    ],
)
def test_staging_changes_no_bit(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = results(work)
    asked = []

    def foreign(tensor: torch.Tensor) -> bool:
        asked.append(tensor)
        return False

    monkeypatch.setattr(memory, "on_host", foreign)
    staged = results(work)
    assert asked
    for rank, (one, other) in enumerate(zip(direct, staged, strict=True)):
        assert all(map(torch.equal, one, other)), f"rank {rank}"


def test_what_is_staged_is_a_copy_until_it_is_written_back(monkeypatch: Any) -> None:
    monkeypatch.setattr(memory, "on_host", lambda _: False)
    tensor = torch.arange(6.0).view(2, 3)
    flat = memory.flat_of(tensor)
    flat += 1
    assert torch.equal(tensor, torch.arange(6.0).view(2, 3))
    memory.write_back(tensor, flat)
    assert torch.equal(tensor, torch.arange(6.0).view(2, 3) + 1)


def test_host_tensors_need_no_fence() -> None:
    assert memory.fence([torch.zeros(3)]) is None


@pytest.mark.parametrize("count", [0, 1, 8, 30_011])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_a_device_adds_up_to_the_same_prints(
    count: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [some(0, count=count).mul(99).to(dtype), some(1, count=count + 8).to(dtype)[8:]]
    here = [words_of(tensors), *map(print_of, tensors)]
    asked = []
    monkeypatch.setattr(memory, "on_host", lambda tensor: asked.append(tensor) or False)
    assert [words_of(tensors), *map(print_of, tensors)] == here
    assert asked
