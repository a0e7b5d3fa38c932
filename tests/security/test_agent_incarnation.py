"""A machine whose clock goes back is still a machine."""

from __future__ import annotations

import time

import pytest

from trainmover.bus.memory.bus import MemoryBus
from trainmover.bus.streams import MACHINES_BUCKET
from trainmover_executor.agent.incarnation import newest_generation, take_generation


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
