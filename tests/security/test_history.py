"""Catching up: all that was stored, or nothing and a word about it; silence says nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest
from tests.unit import factories as make

from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.facts import every_fact, history
from trainmover.bus.nats import reading
from trainmover.bus.nats.bus import NatsBus
from trainmover.errors import BusUnavailableError
from trainmover.events.machine import MachineLost
from trainmover.runtime import procfs
from trainmover.testing import BusBench, memory_bench, nats_bench
from trainmover.tracing.observe import new_event
from trainmover_console.view.live import Watched, follow
from trainmover_planner.service import Planner

JOB = "demo"


def lost(name: str) -> MachineLost:
    return MachineLost(machine=name, reason="")


@pytest.fixture(params=["nats", "memory"])
async def bench(request: pytest.FixtureRequest, nats_url: str) -> AsyncIterator[BusBench]:
    async with memory_bench() if request.param == "memory" else nats_bench(nats_url) as bench:
        yield bench


async def say(bench: BusBench, count: int) -> None:
    async with bench.connect() as bus:
        for n in range(count):
            await bus.publish(new_event(job=JOB, source="/planner", payload=lost(f"w{n}")))


@pytest.mark.parametrize("count", [0, 1, 300])
async def test_all_of_it_and_no_more(bench: BusBench, count: int) -> None:
    await say(bench, count)
    async with bench.connect() as bus:
        found = await history(bus, JOB)
        assert [fact.payload for fact in found] == [lost(f"w{n}") for n in range(count)]
        assert await history(bus, "another") == []


async def test_what_cannot_be_read_at_the_end_does_not_hold_it_up(bench: BusBench) -> None:
    await say(bench, 3)
    for n in range(3):
        await bench.inject("tm.v1.demo.machine.lost", {"ce-id": f"{n}"}, b"junk")
    async with bench.connect() as bus, asyncio.timeout(2):
        assert len(await history(bus, JOB)) == 3


async def test_what_expires_meanwhile_does_not_hold_it_up(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact that is kept for a minute may go between the count and its turn: idle says so."""
    begin = reading.OrderedReader._begin

    async def five_expire(reader: reading.OrderedReader) -> None:
        caught_up, reader._caught_up = reader._caught_up, None
        await begin(reader)
        reader._caught_up, reader._behind = caught_up, 5

    monkeypatch.setattr(reading.OrderedReader, "_begin", five_expire)
    async with NatsBus(nats_url) as bus:
        await bus.setup()
        async with asyncio.timeout(5):
            assert await history(bus, JOB) == []


@pytest.fixture
def stalled(nats_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A server whose disk stalls now and then: the process is stopped, its connections stay."""
    yield nats_server
    os.kill(nats_server.pid, signal.SIGCONT)


def stop(server: EmbeddedServer) -> None:
    """Stop it, and return when it has stopped: its threads go on for a moment on a busy host."""
    os.kill(server.pid, signal.SIGSTOP)
    while (stat := procfs.read_stat(server.pid)) is not None and stat.state != "T":
        time.sleep(0.001)


async def freeze(server: EmbeddedServer, *, after_s: float, for_s: float) -> None:
    await asyncio.sleep(after_s)
    os.kill(server.pid, signal.SIGSTOP)
    await asyncio.sleep(for_s)
    os.kill(server.pid, signal.SIGCONT)


async def test_a_stalled_bus_makes_a_planner_wait_and_not_begin_with_half(
    stalled: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It acted on what had come within one second of silence, and ignored the rest."""
    async with NatsBus(stalled.url) as bus:
        await bus.setup()
        facts = [make.registered(f"w{n}") for n in range(40)]
        for fact in facts:
            await bus.publish(new_event(job=JOB, source=make.source_of(fact), payload=fact))
    stopped = asyncio.Event()
    accept = reading.OrderedReader._accept

    async def slow(reader: reading.OrderedReader, message: object) -> bool:
        if reader._last == 20 and not stopped.is_set():
            stopped.set()
            os.kill(stalled.pid, signal.SIGSTOP)
            reader._stale = True  # what was on its way is lost with the connection
            asyncio.get_running_loop().call_later(2.5, os.kill, stalled.pid, signal.SIGCONT)
            return False
        return await accept(reader, message)  # type: ignore[arg-type]

    monkeypatch.setattr(reading.OrderedReader, "_accept", slow)
    async with NatsBus(stalled.url) as bus:
        planner = Planner(bus, job=JOB)
        running = asyncio.ensure_future(planner.run())
        async with asyncio.timeout(30):
            while planner._outbox is None or not bus.client._subs:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            reply = await _status(bus)
        running.cancel()
    assert stopped.is_set()
    assert reply.count(b'"machine":"w') >= len(facts)


async def _status(bus: NatsBus) -> bytes:
    from trainmover.protocol.requests import StatusRequest

    while True:
        try:
            return await bus.request(JOB, "status", StatusRequest(), timeout_s=1)
        except BusUnavailableError:
            await asyncio.sleep(0.1)


async def test_whoever_asks_is_told_that_the_bus_does_not_get_on(
    stalled: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``status`` showed an old state as the current one."""
    async with NatsBus(stalled.url) as bus:
        await bus.setup()
        await bus.publish(new_event(job=JOB, source="/planner", payload=lost("w0")))
        async with aclosing(bus.events(JOB)) as facts:
            await anext(facts)
        stop(stalled)
        with pytest.raises(BusUnavailableError):
            await history(bus, JOB, patience_s=1.5)


async def test_who_watches_is_current_when_all_is_read(bench: BusBench) -> None:
    await say(bench, 5)
    await bench.inject("tm.v1.demo.machine.lost", {}, b"junk")
    watched = Watched(JOB)
    seen = asyncio.Event()

    def changed() -> None:
        if watched.current:
            seen.set()

    async with bench.connect() as bus:
        task = asyncio.ensure_future(follow(bus, watched, changed=changed))
        async with asyncio.timeout(5):
            await seen.wait()
        task.cancel()
    assert watched.told == 5


async def test_ages_are_the_buss(bench: BusBench) -> None:
    """A sender whose clock is an hour ahead delayed recovery for an hour."""
    from dataclasses import replace
    from datetime import timedelta

    from trainmover.events import encode

    said = new_event(job=JOB, source="/planner", payload=lost("w0"))
    ahead = replace(said, time=said.time + timedelta(hours=1))
    await bench.inject(ahead.subject, *encode(ahead))
    await asyncio.sleep(0.3)
    async with bench.connect() as bus:
        facts = every_fact(bus, JOB, unavailable=lambda _: None)
        async with aclosing(facts):
            delivery = await anext(facts)
            assert 0.25 <= delivery.age_s < 30
            assert delivery.payload.time == ahead.time
