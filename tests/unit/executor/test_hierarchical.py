"""Native inside a machine, native connections of two ranks between machines; with Gloo for NCCL."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.support.fabric import Fabric, everywhere, membership
from torch._C import _distributed_c10d as c10d
from torch.distributed import ReduceOp

from trainmover.errors import ConfigError
from trainmover.job.topology import Layout
from trainmover_executor.collectives.communicator.checks import CollectiveError
from trainmover_executor.collectives.communicator.choice import choice_of
from trainmover_executor.collectives.communicator.reduction import reduction_of
from trainmover_executor.collectives.linked.communicator import LinkCommunicator
from trainmover_executor.collectives.linked.store import Rendezvous, hosting, visiting
from trainmover_executor.collectives.native.hierarchical import Grid, HierarchicalCommunicator
from trainmover_executor.collectives.native.library import Gloo, Nccl
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.links.table import LinkTable

SUM = reduction_of(ReduceOp.SUM)
SHAPES = [(2, 2), (3, 2), (2, 3), (1, 3), (3, 1), (4, 1), (4, 2, (2, 0, 3, 1))]
COUNTS = [0, 1, 7, 30_011]
"""The last one is larger than what every rail carries whole, and divides by nothing."""


class CountedGloo(Gloo):
    """Gloo that notes which ranks, by their own rank in the job, built a group with how many."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.built: list[int] = []

    def build(self, store: c10d.Store, *, rank: int, size: int, timeout_s: float) -> Any:
        self.built.append(size)
        return super().build(store, rank=rank, size=size, timeout_s=timeout_s)


def hierarchy(
    table: LinkTable, *, library: Gloo | None = None, timeout_s: float = 20
) -> HierarchicalCommunicator:
    ranks = range(table.membership.layout.world_size)
    links = LinkCommunicator(table, group="g", ranks=ranks, timeout_s=timeout_s)
    grid = Grid.of(table.membership.layout, ranks)
    assert grid is not None
    return HierarchicalCommunicator(links, library=library or Gloo(), grid=grid)


@pytest.fixture
def fabric_of() -> Iterator[Callable[[int, int], Fabric]]:
    fabrics: list[Fabric] = []

    def make(machines: int, rails: int, ring: tuple[int, ...] = ()) -> Fabric:
        fabrics.append(Fabric(machines * rails, ranks_per_slot=rails, ring=ring))
        return fabrics[-1]

    yield make
    for fabric in fabrics:
        fabric.close()


@pytest.fixture(params=SHAPES, ids=lambda shape: "x".join(map(str, shape[:2])))
def members(
    request: pytest.FixtureRequest, fabric_of: Callable[[int, int], Fabric]
) -> list[HierarchicalCommunicator]:
    fabric = fabric_of(*request.param)
    return [hierarchy(fabric.table(rank)) for rank in range(fabric.world)]


def some(rank: int, count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(100 * seed + rank))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("op", "reference"),
    [
        (ReduceOp.SUM, lambda x: x.sum(0)),
        (ReduceOp.AVG, lambda x: x.mean(0)),
        (ReduceOp.MAX, lambda x: x.amax(0)),
        (c10d._make_nccl_premul_sum(0.5), lambda x: (x * 0.5).sum(0)),
    ],
    ids=["sum", "avg", "max", "premul"],
)
def test_reductions_combine_all_ranks_to_the_same_bits(members, op, reference, count):
    world, reduction = len(members), reduction_of(op)
    inputs = [[some(rank, count, seed) for seed in range(world)] for rank in range(world)]
    totals = [pieces[0].clone() for pieces in inputs]
    outs = [torch.empty(count) for _ in range(world)]

    everywhere(members, lambda rank, c: c.allreduce(totals[rank], reduction))
    everywhere(members, lambda rank, c: c.reduce_scatter(outs[rank], inputs[rank], reduction))

    expected = [reference(torch.stack(of_rank)) for of_rank in zip(*inputs, strict=True)]
    for rank in range(world):
        torch.testing.assert_close(totals[rank], expected[0])
        torch.testing.assert_close(outs[rank], expected[rank])
        assert torch.equal(totals[rank], totals[0])


def test_inputs_of_a_reduction_are_left_alone(members):
    world = len(members)
    inputs = [[some(rank, 64, seed) for seed in range(world)] for rank in range(world)]
    outs = [torch.empty(64) for _ in range(world)]
    everywhere(members, lambda rank, c: c.reduce_scatter(outs[rank], inputs[rank], SUM))
    for rank, pieces in enumerate(inputs):
        for seed, piece in enumerate(pieces):
            assert torch.equal(piece, some(rank, 64, seed))


@pytest.mark.parametrize("count", COUNTS)
def test_a_gather_brings_everything(members, count):
    outs = [[torch.empty(count) for _ in members] for _ in members]
    everywhere(members, lambda rank, c: c.all_gather(outs[rank], some(rank, count)))
    for gathered in outs:
        assert all(torch.equal(out, some(rank, count)) for rank, out in enumerate(gathered))


@pytest.mark.parametrize("count", COUNTS)
def test_everybody_gets_what_any_root_broadcasts(members, count):
    values = [
        [some(rank, count, root) for root in range(len(members))] for rank in range(len(members))
    ]

    def broadcast(rank: int, member: HierarchicalCommunicator) -> None:
        for root, value in enumerate(values[rank]):
            member.broadcast(value, root=root)

    everywhere(members, broadcast)
    for of_rank in values:
        assert all(
            torch.equal(value, some(root, count, root)) for root, value in enumerate(of_rank)
        )


def test_tensors_that_are_not_contiguous_are_written_back(members):
    tensors = [some(rank, 12).view(3, 4) for rank in range(len(members))]
    expected = torch.stack(tensors).sum(0)
    everywhere(members, lambda rank, c: c.allreduce(tensors[rank].t(), SUM))
    for tensor in tensors:
        torch.testing.assert_close(tensor, expected)


def test_a_library_that_does_not_carry_a_tensor_leaves_it_to_links(fabric_of, monkeypatch):
    monkeypatch.setattr(Gloo, "carries", lambda _self, tensor: tensor.dtype != torch.int64)
    fabric = fabric_of(2, 2)
    libraries = [CountedGloo(rank) for rank in range(4)]
    members = [hierarchy(fabric.table(rank), library=libraries[rank]) for rank in range(4)]
    tensors = [torch.tensor([rank]) for rank in range(4)]
    everywhere(members, lambda rank, c: c.allreduce(tensors[rank], SUM))
    assert [int(tensor) for tensor in tensors] == [6] * 4
    assert [library.built for library in libraries] == [[]] * 4


def test_a_switch_builds_again_what_the_leaver_was_in_and_nothing_else(fabric_of):
    fabric = fabric_of(4, 2)
    libraries = [CountedGloo(rank) for rank in range(8)]
    members = [hierarchy(fabric.table(rank), library=libraries[rank]) for rank in range(8)]
    before = [some(rank, 30_011) for rank in range(8)]
    everywhere(members, lambda rank, c: c.allreduce(before[rank], SUM))
    assert [sorted(library.built) for library in libraries] == [[2, 2, 2]] * 8

    later = membership(8, epoch=2, names=["m0", "m1", "spare", "m3"], ranks_per_slot=2)
    for rank in (4, 5):
        table = fabric.add("spare", rank)
        table.reset(later)
        libraries[rank] = CountedGloo(rank)
        members[rank] = hierarchy(table, library=libraries[rank])
    for rank in (0, 1, 2, 3, 6, 7):
        libraries[rank].built.clear()
        fabric.table(rank).switch(later)
        members[rank].rewind()
        members[rank].rendezvous.rewind()
    after = [some(rank, 30_011) for rank in range(8)]
    everywhere(members, lambda rank, c: c.allreduce(after[rank], SUM))

    assert [len(library.built) for library in libraries] == [0, 0, 1, 1, 3, 3, 1, 1]
    for rank in range(8):
        assert torch.equal(after[rank], before[0])  # INV-SAME-BITS


def test_who_waits_for_a_lost_machine_is_freed_when_links_are_broken_off(fabric_of):
    fabric = fabric_of(3, 2)
    members = [hierarchy(fabric.table(rank), timeout_s=600) for rank in range(6)]
    tensors = [some(rank, 30_011) for rank in range(6)]
    everywhere(members, lambda rank, c: c.allreduce(tensors[rank], SUM))
    failed: queue.SimpleQueue[str] = queue.SimpleQueue()

    def wait(member: HierarchicalCommunicator) -> None:
        try:
            member.allreduce(tensors[member.rank], SUM)
        except LinkBrokenError as error:
            failed.put(str(error))

    # Rank 3 heard of it before it came to the collective, as some rank always does.
    for member in members[:3]:
        threading.Thread(target=wait, args=(member,), daemon=True).start()
    for member in members:
        member.table.break_off("machine m2 is lost")

    for _ in members[:3]:
        assert failed.get(timeout=30)  # a twentieth of the groups' own timeout
    with pytest.raises(LinkBrokenError, match="m2 is lost"):
        members[3].allreduce(tensors[3], SUM)


class SilentGloo(Gloo):
    """Ends operations without an error when links are broken off, as NCCL does."""

    def __init__(self, table: LinkTable) -> None:
        self._table = table

    @contextlib.contextmanager
    def flats(self, *tensors: Any) -> Iterator[Any]:
        with super().flats(*tensors) as flats:
            yield flats
        self._table.break_off("machine m1 is lost")


def test_what_ends_while_links_are_broken_off_is_no_result(fabric_of):
    fabric = fabric_of(2, 1)
    tables = [fabric.table(rank) for rank in range(2)]
    members = [hierarchy(table, library=SilentGloo(table)) for table in tables]

    def add(rank: int, member: HierarchicalCommunicator) -> None:
        with pytest.raises(LinkBrokenError, match="m1 is lost"):
            member.allreduce(some(rank, 7), SUM)

    everywhere(members, add)


def test_groups_of_nccl_are_aborted_all_at_once():
    """An abort waits for the kernels of all groups, and each of them spins until its own."""
    both, done = threading.Barrier(3, timeout=30), threading.Barrier(3, timeout=30)

    class Group:
        def abort(self) -> None:
            both.wait()
            done.wait()

    for group in (Group(), Group()):
        Nccl.abort(Mock(spec=Nccl), group)
    both.wait()
    done.wait()


@pytest.mark.parametrize(
    "header", [[7, 0, 0], [-1, 0, 0], [1, -1, 4], [1, 0, 1 << 40], [1, 1 << 40, 0]]
)
def test_what_no_store_says_is_refused_before_memory_is_taken_for_it(fabric_of, header):
    fabric = fabric_of(2, 1)
    stranger, host = (hierarchy(fabric.table(rank)).rendezvous for rank in range(2))

    def talk(rank: int, rendezvous: Rendezvous) -> None:
        if rank == 0:
            rendezvous.send(torch.tensor(header), to=1, tag=0)
        else:
            with pytest.raises(LinkBrokenError, match="which no store says"):
                rendezvous.hear(0)

    everywhere([stranger, host], talk)


def test_a_guest_that_is_lost_frees_whoever_waits_for_what_it_would_set(fabric_of):
    fabric = fabric_of(2, 1)
    members = [hierarchy(fabric.table(rank), timeout_s=600) for rank in range(2)]

    def visit(member: HierarchicalCommunicator) -> None:
        with visiting(member.rendezvous, 0) as store:
            store.set("name of rank 1", b"guest")
            member.table.break_off("the guest dies")

    def host(member: HierarchicalCommunicator) -> None:
        with hosting(member.rendezvous, [1]) as store:
            assert store.get("name of rank 1") == b"guest"
            store.get("address of rank 1")

    def meet(rank: int, member: HierarchicalCommunicator) -> None:
        with pytest.raises(LinkBrokenError):
            (host, visit)[rank](member)

    everywhere(members, meet)


@pytest.mark.parametrize(
    ("ranks", "grid"),
    [
        (range(8), Grid(4, 2)),
        ([0, 1], Grid(1, 2)),
        ([0, 2, 4, 6], Grid(4, 1)),
        ([4, 5, 0, 1], Grid(2, 2)),
        ([0, 1, 2], None),
        ([0, 2, 1, 3], None),
        ([0, 1, 2, 4], None),
    ],
)
def test_a_grid_is_machines_with_equally_many_ranks_side_by_side(ranks, grid):
    assert Grid.of(Layout(slots=4, ranks_per_slot=2), ranks) == grid


def test_what_cannot_be_had_is_said_with_what_can(monkeypatch):
    with pytest.raises(ConfigError, match="'mpi' is not a communicator; use one of link, gloo"):
        choice_of({"TRAINMOVER_COMMUNICATOR": "mpi"})
    monkeypatch.delattr(c10d, "ProcessGroupNCCL", raising=False)
    with pytest.raises(ConfigError, match=r"built without NCCL\. Install a CUDA build"):
        choice_of({"TRAINMOVER_COMMUNICATOR": "hierarchical-nccl"})


def test_a_type_that_the_library_does_not_add_is_no_broken_link(fabric_of):
    """As one, the step would be redone for ever."""
    fabric = fabric_of(1, 2)

    def add(rank: int, communicator: HierarchicalCommunicator) -> None:
        with pytest.raises(CollectiveError, match=r"gloo cannot reduce torch\.int16"):
            communicator.allreduce(torch.ones(3, dtype=torch.int16), SUM)

    everywhere([hierarchy(fabric.table(rank)) for rank in range(2)], add)


@pytest.mark.parametrize("dtype", [torch.int16, torch.complex64, torch.float8_e4m3fn])
def test_every_type_is_moved(fabric_of, dtype):
    fabric = fabric_of(1, 2)
    values = [torch.tensor([1.0, 2.0]).add(rank).to(dtype) for rank in range(2)]
    outs = [[torch.empty(2, dtype=dtype) for _ in range(2)] for _ in range(2)]
    copies = [one.clone() for one in values]

    def move(rank: int, communicator: HierarchicalCommunicator) -> None:
        communicator.all_gather(outs[rank], values[rank])
        communicator.broadcast(copies[rank], root=1)

    everywhere([hierarchy(fabric.table(rank)) for rank in range(2)], move)
    for rank in range(2):
        assert [one.tolist() for one in outs[rank]] == [one.tolist() for one in values]
        assert copies[rank].tolist() == values[1].tolist()


def test_a_sum_of_booleans_is_one(fabric_of):
    fabric = fabric_of(1, 2)
    both = [torch.tensor([True, False]) for _ in range(2)]
    everywhere(
        [hierarchy(fabric.table(rank)) for rank in range(2)],
        lambda rank, communicator: communicator.allreduce(both[rank], SUM),
    )
    assert [one.view(torch.uint8).tolist() for one in both] == [[1, 0]] * 2
