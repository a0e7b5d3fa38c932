"""Collectives among ranks of one host, which exchange all to all over slot channels."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from itertools import combinations

import pytest
import torch
from tests.support.fabric import Fabric, everywhere, shared_pair
from torch.distributed import ReduceOp

from trainmover.errors import ProtocolError, StaleEpochError
from trainmover_executor.collectives.communicator.reduction import reduction_of
from trainmover_executor.collectives.linked.all_to_all import MESH_RANKS
from trainmover_executor.collectives.linked.communicator import SMALL_BYTES, LinkCommunicator
from trainmover_executor.links.link import (
    RECEIVED_BYTES,
    RECEIVED_MESSAGES,
    SENT_BYTES,
    SENT_MESSAGES,
    WAIT_NS,
    Link,
    LinkBrokenError,
)
from trainmover_executor.links.shared_memory.channel import SlotChannel, cut, wait_for
from trainmover_executor.links.shared_memory.slots import SLOT_BYTES

SUM = reduction_of(ReduceOp.SUM)
LARGE = SMALL_BYTES // 4 + 1


def peers_of(fabric: Fabric, rank: int) -> list[int]:
    return sorted(peer for _, peer in fabric.table(rank).edges_to(range(fabric.world)))


def sum_everywhere(fabric: Fabric, count: int = LARGE) -> None:
    tensors = [torch.full((count,), float(rank)) for rank in range(fabric.world)]
    everywhere(fabric.communicators(), lambda rank, c: c.allreduce(tensors[rank], SUM))
    expected = float(sum(range(fabric.world)))
    assert all(bool(tensor.eq(expected).all()) for tensor in tensors)


class TestWhoTakesPart:
    """Which groups exchange all to all; the links that were made tell."""

    def test_ranks_of_one_host_do(self):
        fabric = Fabric(5, shared=True)
        sum_everywhere(fabric)
        assert peers_of(fabric, 2) == [0, 1, 3, 4]
        fabric.close()

    def test_ranks_of_several_hosts_take_the_ring(self):
        fabric = Fabric(5, hosts="aaaab")
        sum_everywhere(fabric)
        assert peers_of(fabric, 2) == [1, 3]
        fabric.close()

    def test_larger_groups_take_the_ring(self):
        fabric = Fabric(MESH_RANKS + 1, shared=True)
        sum_everywhere(fabric)
        assert peers_of(fabric, 2) == [1, 3]
        fabric.close()

    def test_one_link_without_shared_memory_sends_all_around_the_ring(self):
        """Addresses can be equal where hosts are not; only two of the ranks can see that."""
        fabric = Fabric(5, shared=True)
        fabric.shares = lambda one, other: {one, other} != {1, 3}
        sum_everywhere(fabric)
        counters = fabric.table(0).link("g", 2, timeout_s=1).counters
        assert counters[SENT_BYTES] < LARGE  # what they agreed by, and nothing large
        fabric.close()

    def test_a_joiner_on_another_host_sends_all_around_the_ring(self):
        fabric = Fabric(4, shared=True)
        communicators = fabric.communicators()
        tensors = [torch.full((LARGE,), 1.0) for _ in range(4)]
        everywhere(communicators, lambda rank, c: c.allreduce(tensors[rank], SUM))
        moved = fabric.start.members[3].model_copy(
            update={"machine": "spare", "endpoints": ("elsewhere:1",)}
        )
        fabric.tables["elsewhere:1"] = fabric.table(3)
        fabric.start = fabric.start.replace({3: moved}, epoch=2)
        fabric.shares = lambda one, other: 3 not in {one, other}
        for rank in range(4):
            fabric.table(rank).break_off("a new epoch")
            fabric.table(rank).reset(fabric.start)
            communicators[rank].rewind()
        everywhere(communicators, lambda rank, c: c.allreduce(tensors[rank], SUM))
        assert all(bool(tensor.eq(16.0).all()) for tensor in tensors)
        assert peers_of(fabric, 1) == [0, 2]
        fabric.close()


def test_ranks_never_wait_in_a_circle():
    """Messages of more pieces than there are slots, one after another, none like the one before."""
    world, slot = MESH_RANKS, SLOT_BYTES // 4
    fabric = Fabric(world, shared=True)
    sizes = [world * slot * 3 + 5, LARGE, world * slot + 1, 2 * slot] * 3

    def work(rank: int, communicator: LinkCommunicator) -> None:
        for size in sizes:
            tensor = torch.full((size,), 1.0)
            communicator.allreduce(tensor, SUM)
            assert bool(tensor.eq(world).all())

    everywhere(fabric.communicators(), work)
    fabric.close()


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "all_gather"])
def test_both_ends_of_a_link_count_the_same(collective):
    fabric = Fabric(4, shared=True)
    size = SLOT_BYTES // 2

    def work(rank: int, communicator: LinkCommunicator) -> None:
        parts = [torch.ones(size) for _ in range(4)]
        if collective == "allreduce":
            communicator.allreduce(torch.ones(4 * size), SUM)
        elif collective == "reduce_scatter":
            communicator.reduce_scatter(torch.empty(size), parts, SUM)
        else:
            communicator.all_gather(parts, torch.ones(size))

    everywhere(fabric.communicators(), work)
    for one, other in combinations(range(4), 2):
        here = fabric.table(one).link("g", other, timeout_s=1).counters
        there = fabric.table(other).link("g", one, timeout_s=1).counters
        assert here[SENT_MESSAGES] == there[RECEIVED_MESSAGES] == here[RECEIVED_MESSAGES]
        assert here[SENT_BYTES] == there[RECEIVED_BYTES]
        assert here[SENT_BYTES] >= 4 * size
    fabric.close()


@pytest.mark.parametrize("others_run", [False, True], ids=["before", "half-way"])
def test_the_end_of_a_rank_unblocks_all_others(others_run):
    fabric = Fabric(4, shared=True)
    communicators = fabric.communicators(timeout_s=60)
    everywhere(communicators, lambda _, c: c.allreduce(torch.ones(LARGE), SUM))
    came = threading.Semaphore(0)
    fates: dict[int, str] = {}

    def work(rank: int, communicator: LinkCommunicator) -> None:
        if rank == 2:
            for _ in range(3 if others_run else 0):
                came.acquire()
            for peer in (0, 1, 3):
                fabric.table(2).link("g", peer, timeout_s=1).close()
            return
        came.release()
        with pytest.raises(LinkBrokenError) as error:
            communicator.allreduce(torch.ones(20_000_000), SUM)
        fates[rank] = str(error.value)

    everywhere(communicators, work)
    assert fates.keys() == {0, 1, 3}
    assert all("rank 2" in fate for fate in fates.values())
    fabric.close()


def test_a_rank_that_never_comes_is_named_after_the_timeout():
    fabric = Fabric(3, shared=True)
    everywhere(fabric.communicators(), lambda _, c: c.allreduce(torch.ones(LARGE), SUM))
    first = LinkCommunicator(fabric.table(0), group="g", ranks=range(3), timeout_s=0.1)
    first._meshed = (1, True)  # it agreed on that with the others before

    with pytest.raises(LinkBrokenError, match=r"nothing moved on the links to ranks \[1, 2\]"):
        first.allreduce(torch.ones(LARGE), SUM)
    fabric.close()


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    sockets = shared_pair()
    pair = Link(sockets[0], peer=1, group="g"), Link(sockets[1], peer=0, group="g")
    yield pair
    for link in pair:
        link.close()


PIECES = cut(memoryview(bytes(range(256)) * (SLOT_BYTES // 256) + b"rest"))


class TestLane:
    """One message of two pieces each way."""

    def pair(
        self, links: tuple[Link, Link], *, ready: int = 2, frame: tuple[int, int, int] = (1, 2, 3)
    ) -> tuple[SlotChannel, SlotChannel]:
        sizes = [len(piece) for piece in PIECES]
        mine = SlotChannel(links[0], (1, 2, 3), out=PIECES, ready=ready, sizes=sizes)
        return mine, SlotChannel(links[1], frame, out=PIECES, ready=2, sizes=sizes)

    def test_pieces_lie_there_until_they_are_given_back(self, links):
        mine, theirs = self.pair(links)
        assert mine.piece() is None
        assert theirs.advance()
        assert mine.advance()
        assert bytes(mine.piece() or b"") == bytes(PIECES[0])
        assert bytes(mine.piece() or b"") == bytes(PIECES[0])
        mine.give_back()
        assert bytes(mine.piece() or b"") == b"rest"
        mine.give_back()
        assert mine.piece() is None
        assert not theirs.complete
        assert theirs.advance()

    def test_what_is_not_ready_is_not_sent(self, links):
        mine, theirs = self.pair(links, ready=1)
        mine.advance()
        theirs.advance()
        theirs.give_back()
        assert theirs.piece() is None
        mine.allow()
        mine.allow()  # there is no third one
        assert mine.advance()
        assert bytes(theirs.piece() or b"") == b"rest"

    def test_what_came_after_the_last_look_wakes(self, links):
        """Looking again would silence the bell, and nobody would ring it a second time."""
        mine, theirs = self.pair(links, ready=0)
        theirs_first = SlotChannel(links[1], (1, 2, 3), out=PIECES, ready=0, sizes=[SLOT_BYTES, 4])
        theirs_first.advance()
        mine.advance()
        assert mine.piece() is None
        theirs._headers = theirs_first._headers
        assert theirs.advance()  # the pieces, now
        wait_for([mine], stall_timeout_s=5)
        assert bytes(mine.piece() or b"") == bytes(PIECES[0])

    @pytest.mark.parametrize(
        ("frame", "error", "words"),
        [
            ((7, 2, 3), StaleEpochError, "of epoch 7 in epoch 1"),
            ((1, 5, 3), ProtocolError, "in another collective"),
        ],
    )
    def test_another_message_is_refused(self, links, frame, error, words):
        mine, theirs = self.pair(links, frame=frame)
        theirs._headers.advance()
        with pytest.raises(error, match=words):
            mine.advance()

    def test_a_peer_may_end_once_all_it_had_to_say_is_here(self, links):
        mine, theirs = self.pair(links)
        mine.advance()
        theirs.advance()
        for _ in PIECES:
            theirs.give_back()
        links[1].shutdown()
        mine.end()  # not a failure
        poller = select.poll()
        mine.register(poller, for_input=True)
        assert links[0].fd not in dict(poller.poll(0))  # and heard once, not over and over
        for _ in PIECES:
            mine.advance()
            mine.piece()
            mine.give_back()
        assert mine.complete

    def test_a_peer_that_ends_earlier_is_lost(self, links):
        mine, theirs = self.pair(links)
        mine.advance()
        theirs._headers.advance()
        links[1].shutdown()
        with pytest.raises(LinkBrokenError, match="rank 1 ended its link"):
            wait_for([mine], stall_timeout_s=5)

    def test_time_spent_waiting_is_noted_with_the_peer_that_is_late(self, links):
        mine, theirs = self.pair(links)
        mine.advance()
        alarm = threading.Timer(0.02, theirs.advance)
        alarm.start()
        wait_for([mine], stall_timeout_s=5)
        alarm.join()
        assert links[0].counters[WAIT_NS] > 0
