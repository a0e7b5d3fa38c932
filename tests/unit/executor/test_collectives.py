"""Every collective over real links, against arithmetic done in one place."""

from __future__ import annotations

import concurrent.futures
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from tests.support.fabric import Fabric, everywhere
from torch._C import _distributed_c10d as c10d
from torch.distributed import ReduceOp

from trainmover.errors import ProtocolError
from trainmover_executor.collectives.communicator.reduction import reduction_of
from trainmover_executor.collectives.linked.communicator import SMALL_BYTES, LinkCommunicator
from trainmover_executor.collectives.linked.doubling import rounds_of
from trainmover_executor.links.dialling.handshake import LinkRequest
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.links.shared_memory.slots import SLOT_BYTES

SUM = reduction_of(ReduceOp.SUM)
SMALL, LARGE = 7, SMALL_BYTES // 4 * 3 + 5


@pytest.fixture(params=[False, True], ids=["tcp", "shm"])
def shared(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(
    params=[(n, False, ()) for n in (1, 2, 3, 4, 5)]
    + [(n, True, ()) for n in (2, 3, 4)]
    + [(5, False, (2, 0, 4, 1, 3)), (4, True, (2, 0, 3, 1))],
    ids=lambda p: f"{p[0]}-{'shm' if p[1] else 'tcp'}{'-ring' if p[2] else ''}",
)
def fabric(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    world, shared, ring = request.param
    fabric = Fabric(world, shared=shared, ring=ring)
    yield fabric
    fabric.close()


HALF = c10d._make_nccl_premul_sum(torch.tensor([0.5]))


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
        (c10d._make_nccl_premul_sum(0.5), lambda x: (x * 0.5).sum(0)),
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
@pytest.mark.parametrize(("reduction", "factor"), [(SUM, 1.0), (reduction_of(HALF), 0.5)])
def test_reduce_scatter_leaves_each_rank_its_chunk_and_its_inputs_alone(
    fabric, count, reduction, factor
):
    world = fabric.world
    inputs = [[value(rank * 10 + i, count) for i in range(world)] for rank in range(world)]
    kept = [[chunk.clone() for chunk in chunks] for chunks in inputs]
    outs = [torch.empty(count) for _ in range(world)]

    everywhere(
        fabric.communicators(),
        lambda rank, c: c.reduce_scatter(outs[rank], inputs[rank], reduction),
    )

    for rank, out in enumerate(outs):
        expected = torch.stack([inputs[r][rank] for r in range(world)]).mul(factor).sum(0)
        assert torch.equal(out, expected)
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


def test_large_messages_that_cross_do_not_wait_for_each_other(shared):
    fabric = Fabric(2, shared=shared)
    outs = [[torch.empty(8_000_000) for _ in range(2)] for _ in range(2)]
    everywhere(
        fabric.communicators(),
        lambda rank, c: c.all_to_all(outs[rank], [torch.full((8_000_000,), float(rank))] * 2),
    )
    assert outs[0][1].eq(1).all()
    assert outs[1][0].eq(0).all()
    fabric.close()


def test_messages_of_a_pair_arrive_in_order(shared):
    fabric = Fabric(2, shared=shared)
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


def test_bytes_of_unknown_size_are_exchanged_and_bounded(shared):
    fabric = Fabric(2, shared=shared)
    communicators = fabric.communicators()
    received = everywhere(
        communicators,
        lambda rank, c: c.exchange_bytes(
            b"x" * (rank + 1), peers=[(1 - rank, 1 - rank)] * 2, limit=9
        ),
    )
    assert received == [[b"xx", b"xx"], [b"x", b"x"]]
    large = everywhere(
        communicators,
        lambda rank, c: c.exchange_bytes(
            bytes([rank]) * 9_000_000, peers=[(1 - rank, 1 - rank)], limit=10_000_000
        ),
    )
    assert large == [[b"\1" * 9_000_000], [b"\0" * 9_000_000]]
    with pytest.raises(ProtocolError, match="announces 100 bytes"):
        everywhere(
            communicators,
            lambda rank, c: c.exchange_bytes(b"x" * 100, peers=[(1 - rank, 1 - rank)], limit=9),
        )
    fabric.close()


@pytest.mark.parametrize("best", [min, max])
def test_integers_are_agreed_on(fabric: Fabric, best):
    values = [[rank * 7 % 5, -rank, 1 << 40 + rank] for rank in range(fabric.world)]
    expected = [best(column) for column in zip(*values, strict=True)]
    agreed = everywhere(fabric.communicators(), lambda rank, c: c.agree(values[rank], best=best))
    assert agreed == [expected] * fabric.world


@pytest.mark.parametrize("size", range(1, 20))
def test_in_rounds_of_doubling_each_value_counts_once_and_nobody_waits_for_ever(size):
    pending = [list(rounds_of(rank, size)) for rank in range(size)]
    held = [{rank: 1} for rank in range(size)]
    sent: dict[tuple[int, int], list[dict[int, int]]] = {}
    told = [False] * size  # who sent what the round in front of its queue asks for
    while any(pending):
        before = sum(map(len, pending))
        for rank, (to, source, combines) in [(r, q[0]) for r, q in enumerate(pending) if q]:
            if to is not None and not told[rank]:
                sent.setdefault((rank, to), []).append(dict(held[rank]))
                told[rank] = True
            if source is not None:
                if not sent.get((source, rank)):
                    continue
                came = sent[source, rank].pop(0)
                held[rank] = Counter(held[rank]) + Counter(came) if combines else came
            del pending[rank][0]
            told[rank] = False
        assert sum(map(len, pending)) < before
    assert held == [dict.fromkeys(range(size), 1)] * size
    assert not any(sent.values())


def test_ranks_in_different_collectives_get_an_error_that_says_so(shared):
    fabric = Fabric(2, shared=shared)

    def disagree(rank: int, communicator: LinkCommunicator) -> None:
        if rank == 0:
            communicator.allreduce(torch.ones(2), SUM)
        else:
            communicator.barrier()

    with pytest.raises(ProtocolError, match="in another collective of group 'g'"):
        everywhere(fabric.communicators(), disagree)
    fabric.close()


def test_breaking_off_unblocks_whoever_waits(shared):
    fabric = Fabric(2, shared=shared)
    first, _ = fabric.communicators()

    def wait_or_break(rank: int, _: object) -> None:
        if rank == 0:
            first.barrier()
        else:
            fabric.table(0).break_off("the operator said so")

    with pytest.raises(LinkBrokenError, match=r"the operator said so|ended its link"):
        everywhere([0, 1], wait_or_break)
    fabric.close()


def test_a_peer_that_never_comes_is_given_up_after_the_timeout():
    fabric = Fabric(2)
    _, second = fabric.communicators(timeout_s=0.1)
    with pytest.raises(LinkBrokenError, match="rank 0 did not open its link"):
        second.barrier()
    fabric.close()


@pytest.mark.parametrize("ring", [(), (2, 0, 3, 1)], ids=["by number", "named"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_ranks_are_changes_no_bit(op, dtype, ring):
    """A machine may be replaced by one on another host, or by one on the same."""
    reduction, results = reduction_of(op), []
    for hosts in ("abcd", "aaaa", "aaab"):  # messages are of more than one slot, of odd sizes
        fabric = Fabric(4, hosts=hosts, ring=ring)
        tensors = [rough(rank, 3_000_017, dtype) for rank in range(4)]
        parts = [[rough(4 * rank + i, 700_003, dtype) for i in range(4)] for rank in range(4)]
        outs = [torch.empty(700_003, dtype=dtype) for _ in range(4)]

        def work(rank: int, c: LinkCommunicator, t=tensors, o=outs, p=parts) -> None:
            c.allreduce(t[rank], reduction)
            c.reduce_scatter(o[rank], p[rank], reduction)

        everywhere(fabric.communicators(), work)
        assert all(bits_of(tensor) == bits_of(tensors[0]) for tensor in tensors)
        results.append([bits_of(tensors[0]), *map(bits_of, outs)])
        fabric.close()
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("hosts", ["abcd", "aaaa"])
def test_sums_are_taken_in_the_order_of_the_ring(hosts):
    """They have the bits of a job whose ranks are numbered in that order, and no others."""
    results = {}
    for name, ring, seeds in (
        ("named", (2, 0, 3, 1), (0, 1, 2, 3)),
        ("renumbered", (), (2, 0, 3, 1)),
        ("by number", (), (0, 1, 2, 3)),
    ):
        fabric = Fabric(4, hosts=hosts, ring=ring)
        tensors = [rough(seed, LARGE, torch.float32) for seed in seeds]
        everywhere(fabric.communicators(), lambda rank, c, t=tensors: c.allreduce(t[rank], SUM))
        assert len({bits_of(tensor) for tensor in tensors}) == 1
        results[name] = bits_of(tensors[0])
        fabric.close()
    assert results["named"] == results["renumbered"] != results["by number"]


def rough(seed: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers whose sum depends on the order, and zeros of both signs."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed)).to(dtype)
    values[seed % 3 :: 5] = -0.0
    values[seed % 2 :: 7] = 0.0
    return values


def bits_of(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_collectives_of_any_size_follow_one_another(hosts):
    """Slots are used in turns: what one collective leaves behind, the next one finds."""
    world, slot = len(hosts), SLOT_BYTES // 4
    fabric = Fabric(world, hosts=hosts)
    given = [[value(10 * rank + i, 3 * slot + 7) for i in range(world)] for rank in range(world)]
    total = [sum(chunks[i] for chunks in given) for i in range(world)]

    def work(rank: int, communicator: LinkCommunicator) -> None:
        for size in (2 * slot + 1, 5, 9_000, slot, 20_000, 3 * slot + 7):
            mine = [chunk[:size] for chunk in given[rank]]
            everything = mine[0].clone()
            communicator.allreduce(everything, SUM)
            assert torch.equal(everything, total[0][:size])
            out = torch.empty(size)
            communicator.reduce_scatter(out, mine, SUM)
            assert torch.equal(out, total[rank][:size])
            outs = [torch.empty(size) for _ in range(world)]
            communicator.all_gather(outs, mine[0])
            assert all(torch.equal(one, given[r][0][:size]) for r, one in enumerate(outs))

    everywhere(fabric.communicators(), work)
    fabric.close()


def test_the_end_of_a_peer_unblocks_a_message_half_way(shared):
    """A sender that has no free slot, and a receiver that has no filled one, both learn of it."""
    fabric = Fabric(2, shared=shared)
    sender, receiver = fabric.communicators(timeout_s=60)

    def send_or_die(rank: int, _: object) -> None:
        if rank == 0:
            sender.send(torch.ones(16_000_000), to=1, tag=0)
        else:
            link = fabric.table(1).link("g/p2p", 0, timeout_s=5)
            link.close()

    with pytest.raises(LinkBrokenError, match=r"rank 1"):
        everywhere([0, 1], send_or_die)

    def receive_or_die(rank: int, _: object) -> None:
        if rank == 1:
            receiver.recv(torch.empty(16_000_000), source=0, tag=0)
        else:
            link = fabric.table(0).link("g/p2p", 1, timeout_s=5)
            link.send_some(memoryview(struct.pack("<IIQQ", 2, 0, 0, 64_000_000)))
            link.close()

    for table in (fabric.table(0), fabric.table(1)):
        table.break_off("again")
        table.reset(fabric.start.replace({}, epoch=2))
    with pytest.raises(LinkBrokenError, match=r"rank 0"):
        everywhere([0, 1], receive_or_die)
    fabric.close()


def test_the_first_messages_of_two_ranks_may_cross(shared):
    """Sends and receives have threads of their own, and both need the link that is not there."""
    fabric = Fabric(2, shared=shared)
    dialled: list[str] = []

    def dial_slowly(
        endpoint: str, link_request: LinkRequest
    ) -> concurrent.futures.Future[socket.socket]:
        dialled.append(link_request.group)
        answer: concurrent.futures.Future[socket.socket] = concurrent.futures.Future()
        threading.Timer(
            0.1, lambda: answer.set_result(dial(endpoint, link_request).result())
        ).start()
        return answer

    dial, fabric.table(0)._dial = fabric.dial, dial_slowly

    def both(rank: int, communicator: LinkCommunicator) -> torch.Tensor:
        arrived = torch.empty(3)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            mine = value(rank, 3)
            done = [
                pool.submit(communicator.send, mine, to=1 - rank, tag=0),
                pool.submit(communicator.recv, arrived, source=1 - rank, tag=0),
            ]
            for each in done:
                each.result(timeout=20)
        return arrived

    arrived = everywhere(fabric.communicators(), both)
    assert torch.equal(arrived[0], value(1, 3))
    assert torch.equal(arrived[1], value(0, 3))
    assert dialled == ["g/p2p"]
    fabric.close()
