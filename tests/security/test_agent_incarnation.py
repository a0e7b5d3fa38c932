"""A machine whose clock goes back is still a machine, and two of one name are not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from trainmover.bus.memory.broker import MemoryBroker
from trainmover.bus.memory.bus import MemoryBus
from trainmover.bus.streams import MACHINES_BUCKET
from trainmover.errors import ConfigError
from trainmover_executor.agent import incarnation
from trainmover_executor.agent.incarnation import (
    newest_generation,
    refuse_namesake,
    take_generation,
    wait_until_alone,
)


async def take(bus: MemoryBus, machine: str = "w") -> int:
    return await take_generation(bus, job="demo", machine=machine)


async def test_generations_grow_although_the_clock_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A registration with a number that is over was ignored, for as long as the clock was back."""
    async with MemoryBus() as bus:
        await bus.setup()
        first = await take(bus)
        assert first >= newest_generation() - 100
        now_s = time.time()
        monkeypatch.setattr(time, "time", lambda: now_s - 3600)
        later = [await take(bus) for _ in range(3)]
        assert later == sorted(later)
        assert later[0] > first + 1000, "its incarnations since the first start count as well"
        assert await take(bus, "other") < first


@pytest.mark.parametrize("junk", [b"", b"x", b"9" * 400, b"-5", b"\xff"])
async def test_whatever_stands_there(junk: bytes) -> None:
    async with MemoryBus() as bus:
        await bus.setup()
        await bus.put(MACHINES_BUCKET, "demo.w.generation", junk, revision=None)
        assert await take(bus) >= newest_generation() - 100


async def test_a_bucket_that_is_missing_is_no_reason_to_stay_away() -> None:
    async with MemoryBus() as bus:
        assert await take(bus) >= newest_generation() - 100


@asynccontextmanager
async def agents(bus: MemoryBus, number: int) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Agents of one machine, as far as the bus can tell."""

    async def read() -> None:
        async for _ in bus.commands("demo", "w"):
            pass

    tasks = [asyncio.create_task(read()) for _ in range(number)]
    while await bus.command_readers("demo", "w") < number:  # noqa: ASYNC110 - it tells a number
        await asyncio.sleep(0)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_second_agent_of_one_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shared out the commands of one machine, and the job waited for one that never came."""
    monkeypatch.setattr(incarnation, "_SILENT_S", 0.2)
    monkeypatch.setattr(incarnation, "_ASKED_AGAIN_S", 0.01)
    async with MemoryBus() as bus:
        await bus.setup()
        await wait_until_alone(bus, job="demo", machine="w")
        async with agents(bus, 1):
            await wait_until_alone(bus, job="demo", machine="another")
            with pytest.raises(ConfigError, match=r"machine 'w' of job 'demo'.*--machine"):
                await wait_until_alone(bus, job="demo", machine="w")


async def test_the_one_that_ended_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnation, "_ASKED_AGAIN_S", 0.01)
    async with MemoryBus() as bus:
        await bus.setup()
        async with agents(bus, 1) as tasks:
            waiting = asyncio.create_task(wait_until_alone(bus, job="demo", machine="w"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            tasks[0].cancel()
            await waiting


@pytest.mark.parametrize(
    ("newer", "readers", "refused"),
    [
        (True, 2, True),
        (True, 1, False),  # the clock went back, or the number was taken by one that is gone
        (False, 2, False),  # the other one ends
    ],
)
async def test_of_two_that_begin_together_the_newer_stays(
    *, newer: bool, readers: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incarnation, "_LOOKED_AFTER_S", (0.0, 0.01))
    async with MemoryBus() as bus:
        await bus.setup()
        mine = await take(bus)
        if newer:
            await take(bus)
        async with agents(bus, readers):
            looking = refuse_namesake(bus, job="demo", machine="w", generation=mine)
            if not refused:
                await looking
                return
            with pytest.raises(ConfigError, match="'w'"):
                await looking


async def test_an_outage_is_no_namesake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnation, "_LOOKED_AFTER_S", (0.0,))
    monkeypatch.setattr(incarnation, "_RETRY_S", 0.0)
    broker = MemoryBroker()
    async with MemoryBus(broker=broker) as bus:
        await bus.setup()
        mine = await take(bus)
        broker.reachable = False
        await wait_until_alone(bus, job="demo", machine="w")
        await refuse_namesake(bus, job="demo", machine="w", generation=mine)
