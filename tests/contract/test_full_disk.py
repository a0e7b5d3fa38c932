"""A disk that is full and is freed again: what was acknowledged is kept, all else comes once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.small_disk import SmallDisk, small_disk

from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.errors import BusUnavailableError
from trainmover.events import Envelope
from trainmover.events.machine import MachineLost
from trainmover.runtime.lease import Lease
from trainmover.testing import collect
from trainmover.tracing.observe import new_event


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", megabytes=24) as made:
        yield made


@pytest.fixture
def server(disk: SmallDisk) -> Iterator[EmbeddedServer]:
    with disk.server() as started:
        yield started


def lost(number: int, *, size: int = 2000) -> Envelope:
    payload = MachineLost(machine=f"m-{number}", reason="x" * size)
    return new_event(job="demo", source="/planner", payload=payload, id=f"lost-{number}")


async def insist(bus: NatsBus, event: Envelope) -> None:
    while True:
        with contextlib.suppress(BusUnavailableError):
            return await bus.publish(event)
        await asyncio.sleep(0.1)


async def publish_all(bus: NatsBus, acknowledged: list[str]) -> None:
    for number in range(20, 1000):
        await bus.publish(lost(number, size=20_000))
        acknowledged.append(f"lost-{number}")


async def test_nothing_is_acknowledged_that_is_not_stored_and_nothing_is_lost(
    disk: SmallDisk, server: EmbeddedServer
) -> None:
    async with NatsBus(server.url) as bus, aclosing(bus.events("demo")) as reading:
        await bus.setup()
        acknowledged = []
        for number in range(20):
            await bus.publish(lost(number))
            acknowledged.append(f"lost-{number}")
        disk.fill()
        with pytest.raises(BusUnavailableError, match="outcome is unknown"):
            await publish_all(bus, acknowledged)
        waiting = asyncio.create_task(insist(bus, lost(len(acknowledged), size=20_000)))
        disk.free()
        # A server that could not write goes on failing with room to spare: it must start anew.
        server.kill()
        server.start()
        async with asyncio.timeout(30):
            await waiting
        wanted = [*acknowledged, f"lost-{len(acknowledged)}"]
        got = [
            each.payload.id
            for each in await collect(reading, len(wanted), within=timedelta(seconds=30))
        ]
        assert got == wanted
        assert await bus.event_count("demo") == len(wanted)


async def test_nobody_leads_on_a_full_disk_and_somebody_does_afterwards(
    disk: SmallDisk, server: EmbeddedServer
) -> None:
    async with NatsBus(server.url) as bus:
        await bus.setup()
        lease = Lease(bus, job="demo", service="planner", ttl_s=1.0)
        first = await lease.acquire()
        disk.fill()
        keeping = asyncio.create_task(lease.keep())
        async with asyncio.timeout(60):
            while lease.held:
                await bus.send_telemetry("demo", "m", b"")  # what is not stored still goes
                await asyncio.sleep(0.05)
        disk.free()
        server.kill()
        server.start()
        async with asyncio.timeout(30):
            await lease.confirmed()
        assert lease.term == first
        keeping.cancel()


async def test_a_frozen_server_that_thaws_has_stored_each_fact_once(nats_server: EmbeddedServer):
    async with NatsBus(nats_server.url, timeout_s=0.3) as bus:
        await bus.setup()
        tasks = [asyncio.create_task(insist(bus, lost(number))) for number in range(10)]
        os.kill(nats_server.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(2.0)
        finally:
            os.kill(nats_server.pid, signal.SIGCONT)
        async with asyncio.timeout(30):
            await asyncio.gather(*tasks)
        assert await bus.event_count("demo") == 10
