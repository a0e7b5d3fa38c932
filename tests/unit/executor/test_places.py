"""A standby hears where the active rank is, whichever process that is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import timeit
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.executor.decisions import plan, standby

from trainmover.commands import Prepare
from trainmover.job.topology import Layout, Member, Membership
from trainmover_executor.decisions.effects import Heard
from trainmover_executor.decisions.shell import RankDecisions
from trainmover_executor.links.dialling.endpoint import Endpoint
from trainmover_executor.links.dialling.frames import send_frame
from trainmover_executor.links.dialling.secret import LinkSecret
from trainmover_executor.worker.to_standbys import place as place_links
from trainmover_executor.worker.to_standbys.place import PlaceLinks, packed
from trainmover_executor.worker.to_standbys.places import Places

SECRET = LinkSecret(b"s" * 32)


class Process:
    """An active process of ``rank``, as far as places go."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.places = Places()
        self.membership: Membership | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._links = PlaceLinks(
            job="j",
            rank=rank,
            secret=SECRET,
            places=self.places,
            membership=lambda: self.membership,
        )
        self._tasks: list[asyncio.Task] = []
        endpoint = Endpoint(
            self._listener,
            job="j",
            rank=rank,
            secret=SECRET,
            is_stale=lambda epoch: False,
            accept=lambda link_request, sock: self._run(self._links.serve(link_request, sock)),
        )
        endpoint.open()
        self._run(endpoint.serve())

    def _run(self, work) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def die(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._listener.close()


def members(epoch: int, *processes: Process) -> Membership:
    everybody = Membership(
        epoch=epoch,
        layout=Layout(slots=len(processes), ranks_per_slot=1),
        members=tuple(
            Member(machine=f"m{at}", generation=epoch, endpoints=(process.endpoint,))
            for at, process in enumerate(processes)
        ),
    )
    for process in processes:
        process.membership = everybody
    return everybody


@contextlib.asynccontextmanager
async def follower(membership: Membership, *, rank: int) -> AsyncIterator[Places]:
    places = Places()
    links = PlaceLinks(
        job="j", rank=rank, secret=SECRET, places=places, membership=lambda: membership
    )
    task = asyncio.ensure_future(links.follow(wanted=lambda: True))
    try:
        yield places
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert links.sockets() == []


async def news(places: Places) -> object:
    """The next place that comes."""
    come = asyncio.Event()
    places.on_news(come.set)
    async with asyncio.timeout(30):
        while not places.fresh:
            await come.wait()
            come.clear()
    return places.seen()


def place(step: object, **blobs: bytes) -> dict[str, Any]:
    return {"step": step, "place": {"blobs": blobs}}


class TestFollowing:
    async def test_the_newest_place_comes(self):
        processes = [Process(0), Process(1)]
        async with follower(members(1, *processes), rank=1) as seen:
            processes[0].places.show(place("not of this rank"))
            for number in range(5):
                processes[1].places.show(place(number, a=b"x"))
            assert await news(seen) == place(4, a=b"x")
            assert not seen.fresh
            assert [process.places.listeners for process in processes] == [0, 1]
            processes[1].places.show(place(5))
            assert await news(seen) == place(5)
        for process in processes:
            await process.die()

    def test_what_cannot_be_packed_is_left_out(self):
        assert packed(place(object())) == b""
        assert packed(place(1)) != b""

    async def test_a_blob_is_sent_once(self, monkeypatch: pytest.MonkeyPatch):
        sizes: list[int] = []

        async def counting(sock: socket.socket, data: bytes) -> None:
            sizes.append(len(data))
            await send_frame(sock, data)

        monkeypatch.setattr(place_links, "send_frame", counting)
        one, other, large = Process(0), Process(1), b"l" * 100_000
        async with follower(members(1, one, other), rank=0) as seen:
            for number in range(3):
                one.places.show(place(number, large=large))
                assert await news(seen) == place(number, large=large)
            one.places.show(place(4))
            assert await news(seen) == place(4)
        assert len([size for size in sizes if size > len(large)]) == 1
        for process in (one, other):
            await process.die()

    @pytest.mark.parametrize("how", ["killed", "moved"])
    async def test_the_process_that_takes_over_is_found(self, how: str):
        stayer, before, after = Process(0), Process(1), Process(1)
        async with follower(members(1, stayer, before), rank=1) as seen:
            before.places.show(place("before"))
            assert await news(seen) == place("before")
            after.places.show(place("after"))
            if how == "killed":
                await before.die()
                members(2, stayer, after)
            else:
                before.membership = members(2, stayer, after)
            assert await news(seen) == place("after")
        for process in (stayer, before, after) if how == "moved" else (stayer, after):
            await process.die()

    async def test_all_machines_may_have_been_replaced_one_by_one(self):
        first, second = [Process(0), Process(1)], [Process(0), Process(1)]
        async with follower(members(1, *first), rank=0) as seen:
            first[0].places.show(place("one"))
            assert await news(seen) == place("one")
            members(2, first[0], second[1])
            first[0].places.show(place("two"))  # the membership goes in front of it
            assert await news(seen) == place("two")
            await first[1].die()
            await first[0].die()
            members(3, *second)
            second[0].places.show(place("three"))
            assert await news(seen) == place("three")
        for process in second:
            await process.die()


class TestWaiting:
    def test_news_wake_a_standby_and_a_plan_does(self):
        places, role = Places(), RankDecisions(standby())
        places.on_news(role.wake)
        assert role.wait_to_join_or(lambda: places.fresh, timeout_s=0.01) is None
        threading.Timer(0.05, places.see, ["here"]).start()
        assert role.wait_to_join_or(lambda: places.fresh, timeout_s=30) is None
        assert places.seen() == "here"
        role.take(Heard(Prepare(plan=plan(2))))
        assert role.wait_to_join_or(lambda: places.fresh) == plan(2)

    def test_to_show_a_place_takes_no_time(self):
        places = Places()
        assert min(timeit.repeat(lambda: places.show({}), number=1000, repeat=3)) < 0.05
