"""Every collective over real links, against arithmetic done in one place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.support.fabric import Fabric, everywhere
from torch.distributed import ReduceOp

from trainmover.errors import ProtocolError
from trainmover_executor.communicator.link import SMALL_BYTES, LinkCommunicator
from trainmover_executor.communicator.reduction import reduction_of
from trainmover_executor.links.link import LinkBrokenError

SUM = reduction_of(ReduceOp.SUM)
SMALL, LARGE = 7, SMALL_BYTES // 4 * 3 + 5


@pytest.fixture(params=[1, 2, 3, 4, 5], ids=lambda n: f"{n}-ranks")
def fabric(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    fabric = Fabric(request.param)
    yield fabric
    fabric.close()


def value(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-50, 50, (count,), generator=generator).to(dtype)


@pytest.mark.parametrize("count", [0, 1, SMALL, LARGE])
@pytest.mark.parametrize(
    ("op", "reference"),
    [
        (ReduceOp.SUM, lambda x: x.sum(0)),
        (ReduceOp.AVG, lambda x: x.sum(0) / len(x)),
        (ReduceOp.MIN, lambda x: x.amin(0)),
        (ReduceOp.MAX, lambda x: x.amax(0)),
    ],
)
def test_allreduce_combines_all_ranks(fabric: Fabric, count, op, reference):
    tensors = [value(rank, count) for rank in range(fabric.world)]
    expected = reference(torch.stack(tensors)) if count else torch.empty(0)

    everywhere(fabric.communicators(), lambda rank, c: c.allreduce(tensors[rank], reduction_of(op)))

    for tensor in tensors:
        torch.testing.assert_close(tensor, expected)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8]
)
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_allreduce_takes_every_dtype_and_gives_all_ranks_the_same_bits(fabric, dtype, count):
    tensors = [(value(rank, count) / 3).to(dtype) for rank in range(fabric.world)]
    everywhere(fabric.communicators(), lambda rank, c: c.allreduce(tensors[rank], SUM))
    for tensor in tensors:
        assert torch.equal(tensor, tensors[0])


def test_allreduce_writes_back_into_a_tensor_that_is_not_contiguous(fabric):
    tensors = [value(rank, 12).view(3, 4) for rank in range(fabric.world)]
    expected = torch.stack(tensors).sum(0)
    everywhere(fabric.communicators(), lambda rank, c: c.allreduce(tensors[rank].t(), SUM))
    for tensor in tensors:
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_the_bits_of_a_sum_depend_on_rank_positions_only(count):
    """The foundation of INV-SAME-BITS: repeating a sum over new links gives the same bits."""
    results = []
    for _ in range(2):
        fabric = Fabric(4)
        tensors = [torch.randn(count, generator=torch.Generator().manual_seed(r)) for r in range(4)]
        everywhere(fabric.communicators(), lambda rank, c, t=tensors: c.allreduce(t[rank], SUM))
        results.append(tensors[0])
        fabric.close()
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_reduce_scatter_leaves_each_rank_its_chunk_and_its_inputs_alone(fabric, count):
    world = fabric.world
    inputs = [[value(rank * 10 + i, count) for i in range(world)] for rank in range(world)]
    kept = [[chunk.clone() for chunk in chunks] for chunks in inputs]
    outs = [torch.empty(count) for _ in range(world)]

    everywhere(
        fabric.communicators(), lambda rank, c: c.reduce_scatter(outs[rank], inputs[rank], SUM)
    )

    for rank, out in enumerate(outs):
        assert torch.equal(out, torch.stack([inputs[r][rank] for r in range(world)]).sum(0))
        assert all(torch.equal(a, b) for a, b in zip(inputs[rank], kept[rank], strict=True))


@pytest.mark.parametrize("count", [0, SMALL, LARGE])
def test_all_gather_collects_every_rank(fabric, count):
    world = fabric.world
    outs = [[torch.empty(count) for _ in range(world)] for _ in range(world)]
    everywhere(fabric.communicators(), lambda rank, c: c.all_gather(outs[rank], value(rank, count)))
    for collected in outs:
        assert all(torch.equal(out, value(rank, count)) for rank, out in enumerate(collected))


def test_broadcast_and_scatter_and_gather_work_from_every_root(fabric):
    world = fabric.world
    communicators = fabric.communicators()
    for root in range(world):
        tensors = [value(rank, SMALL) for rank in range(world)]
        everywhere(communicators, lambda rank, c, t=tensors, r=root: c.broadcast(t[rank], root=r))
        assert all(torch.equal(tensor, value(root, SMALL)) for tensor in tensors)

        pieces = [value(100 + i, SMALL) for i in range(world)]
        outs = [torch.empty(SMALL) for _ in range(world)]
        everywhere(
            communicators,
            lambda rank, c, o=outs, p=pieces, r=root: c.scatter(
                o[rank], p if rank == r else [], root=r
            ),
        )
        assert all(torch.equal(out, piece) for out, piece in zip(outs, pieces, strict=True))

        gathered = [torch.empty(SMALL) for _ in range(world)]
        everywhere(
            communicators,
            lambda rank, c, g=gathered, r=root: c.gather(
                g if rank == r else [], value(rank, SMALL), root=r
            ),
        )
        assert all(torch.equal(out, value(rank, SMALL)) for rank, out in enumerate(gathered))


def test_all_to_all_exchanges_parts_of_different_sizes(fabric):
    world = fabric.world
    outs = [[torch.empty(1 + source) for source in range(world)] for _ in range(world)]
    everywhere(
        fabric.communicators(),
        lambda rank, c: c.all_to_all(
            outs[rank], [torch.full((1 + rank,), 10.0 * rank + to) for to in range(world)]
        ),
    )
    for rank, received in enumerate(outs):
        for source, out in enumerate(received):
            assert torch.equal(out, torch.full((1 + source,), 10.0 * source + rank))


def test_large_messages_that_cross_do_not_wait_for_each_other():
    fabric = Fabric(2)
    outs = [[torch.empty(8_000_000) for _ in range(2)] for _ in range(2)]
    everywhere(
        fabric.communicators(),
        lambda rank, c: c.all_to_all(outs[rank], [torch.full((8_000_000,), float(rank))] * 2),
    )
    assert outs[0][1].eq(1).all()
    assert outs[1][0].eq(0).all()
    fabric.close()


def test_messages_of_a_pair_arrive_in_order():
    fabric = Fabric(2)
    received = [torch.empty(3) for _ in range(3)]

    def talk(rank: int, communicator: LinkCommunicator) -> None:
        for index in range(3):
            if rank == 0:
                communicator.send(torch.full((3,), float(index)), to=1, tag=index)
            else:
                communicator.recv(received[index], source=0, tag=index)

    everywhere(fabric.communicators(), talk)
    assert [int(tensor[0]) for tensor in received] == [0, 1, 2]
    fabric.close()


def test_bytes_of_unknown_size_are_exchanged_and_bounded():
    fabric = Fabric(2)
    communicators = fabric.communicators()
    received = everywhere(
        communicators,
        lambda rank, c: c.exchange_bytes(b"x" * (rank + 1), to=1 - rank, source=1 - rank, limit=9),
    )
    assert [bytes(data) for data in received] == [b"xx", b"x"]
    with pytest.raises(ProtocolError, match="announces 100 bytes"):
        everywhere(
            communicators,
            lambda rank, c: c.exchange_bytes(b"x" * 100, to=1 - rank, source=1 - rank, limit=9),
        )
    fabric.close()


def test_ranks_in_different_collectives_get_an_error_that_says_so():
    fabric = Fabric(2)

    def disagree(rank: int, communicator: LinkCommunicator) -> None:
        if rank == 0:
            communicator.allreduce(torch.ones(2), SUM)
        else:
            communicator.barrier()

    with pytest.raises(ProtocolError, match="in another collective of group 'g'"):
        everywhere(fabric.communicators(), disagree)
    fabric.close()


def test_breaking_off_unblocks_whoever_waits():
    fabric = Fabric(2)
    first, _ = fabric.communicators()

    def wait_or_break(rank: int, _: object) -> None:
        if rank == 0:
            first.barrier()
        else:
            fabric.book(0).break_off("the operator said so")

    with pytest.raises(LinkBrokenError, match=r"the operator said so|ended its link"):
        everywhere([0, 1], wait_or_break)
    fabric.close()


def test_a_peer_that_never_comes_is_given_up_after_the_timeout():
    fabric = Fabric(2)
    _, second = fabric.communicators(timeout_s=0.1)
    with pytest.raises(LinkBrokenError, match="rank 0 did not open its link"):
        second.barrier()
    fabric.close()
