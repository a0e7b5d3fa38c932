"""A lease: an entry that names nobody keeps nobody out, and a live holder never looks dead."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator

import pytest

from trainmover.bus.memory.bus import MemoryBus
from trainmover.bus.streams import JOBS_BUCKET
from trainmover.errors import ConflictError, LeaseLostError
from trainmover.runtime import procfs
from trainmover.runtime.lease import Lease

TTL_S = 0.6
KEY = "demo.planner-lease"


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    async with MemoryBus() as bus:
        await bus.setup()
        yield bus


def lease(bus: MemoryBus) -> Lease:
    return Lease(bus, job="demo", service="planner", ttl_s=TTL_S)


async def write(bus: MemoryBus, value: bytes) -> None:
    while True:
        known = await bus.get(JOBS_BUCKET, KEY)
        revision = None if known is None else known.revision
        try:
            await bus.put(JOBS_BUCKET, KEY, value, revision=revision)
        except ConflictError:
            continue
        return


@pytest.mark.parametrize("junk", [b"", b"\xff", b"{}", b'{"type": "an answer"}', b'{"id": 3}'])
async def test_a_holder_writes_over_what_cannot_be_read(bus: MemoryBus, junk: bytes) -> None:
    mine = lease(bus)
    await mine.acquire()
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(mine.keep())
        for _ in range(5):
            await write(bus, junk)
            await asyncio.sleep(TTL_S / 3)
        assert mine.held
        keeping.cancel()
    entry = await bus.get(JOBS_BUCKET, KEY)
    assert entry is not None
    assert json.loads(entry.value)["pid"] == os.getpid()


async def test_whoever_waits_takes_what_cannot_be_read_however_often_it_changes(
    bus: MemoryBus,
) -> None:
    await write(bus, b"junk")

    async def flood() -> None:
        while True:
            await write(bus, b"junk")
            await asyncio.sleep(TTL_S / 20)

    async with asyncio.TaskGroup() as group:
        flooding = group.create_task(flood())
        async with asyncio.timeout(10 * TTL_S):
            await lease(bus).acquire()
        flooding.cancel()


async def test_another_holder_is_still_believed(bus: MemoryBus) -> None:
    mine = lease(bus)
    await mine.acquire()
    await write(bus, b'{"id": "other"}')
    with pytest.raises(LeaseLostError):
        await mine.keep()


async def taken_within(bus: MemoryBus, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await lease(bus).acquire()
    except TimeoutError:
        return False
    return True


def ended_process() -> dict[str, int]:
    with subprocess.Popen(["sleep", "600"]) as child:
        stat = procfs.read_stat(child.pid)
        child.kill()
    assert stat is not None
    return {"pid": child.pid, "start_ticks": stat.start_ticks}


async def held_by(bus: MemoryBus, **changes: object) -> None:
    """An entry of a process of ours that has ended, changed."""
    entry = json.loads(lease(bus)._me.model_dump_json())
    gone = {"id": "gone", **ended_process()}
    await write(bus, json.dumps(entry | gone | changes).encode())


async def test_a_dead_process_of_this_host_is_not_waited_for(bus: MemoryBus) -> None:
    await held_by(bus)
    assert await taken_within(bus, TTL_S / 2)


async def test_a_process_of_another_namespace_is_waited_for(bus: MemoryBus) -> None:
    """Containers of one host may have the same host name; their processes cannot be seen here."""
    await held_by(bus, pids="boot/4026531836")
    assert not await taken_within(bus, TTL_S / 2)


@pytest.mark.parametrize("pid", [2**70, -1, 0])
async def test_numbers_that_are_no_process(bus: MemoryBus, pid: int) -> None:
    await held_by(bus, pid=pid)
    await taken_within(bus, 3 * TTL_S)


async def test_a_later_process_with_its_number_is_not_the_holder(bus: MemoryBus) -> None:
    await held_by(bus, pid=os.getpid())
    assert await taken_within(bus, TTL_S / 2)
