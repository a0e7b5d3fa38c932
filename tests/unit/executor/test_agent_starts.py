"""What an agent finds out before its first life: its address, and which life that is."""

from __future__ import annotations

import asyncio
import socket

import pytest

from trainmover.bus.memory import MemoryBroker, MemoryBus
from trainmover.bus.protocol import Entry
from trainmover.errors import BusUnavailableError, ConfigError, PermissionDeniedError
from trainmover_executor.agent.address import own_address
from trainmover_executor.agent.listeners import Listeners
from trainmover_executor.agent.starts import LIVES_PER_START, first_generation


async def test_each_start_begins_above_all_lives_of_the_one_before() -> None:
    async with MemoryBus() as bus:
        await bus.setup()
        lives = [await first_generation(bus, job="j", machine="w-1") for _ in range(3)]
        assert lives == [0, LIVES_PER_START, 2 * LIVES_PER_START]
        assert await first_generation(bus, job="j", machine="w-2") == 0
        assert await first_generation(bus, job="other", machine="w-1") == 0


async def test_two_starts_at_once_never_share_a_life() -> None:
    broker = MemoryBroker()
    async with MemoryBus(broker) as one, MemoryBus(broker) as two:
        await one.setup()
        lives = await asyncio.gather(
            *(first_generation(bus, job="j", machine="w") for bus in (one, two, one, two))
        )
    assert sorted(lives) == [count * LIVES_PER_START for count in range(4)]


class Away(MemoryBus):
    """A bus that is away for the first few calls, or forbids to write."""

    def __init__(self, *, outages: int = 0, forbidden: bool = False) -> None:
        super().__init__()
        self.outages = outages
        self.forbidden = forbidden

    async def put(self, bucket: str, key: str, value: bytes, *, revision: int | None) -> Entry:
        if self.forbidden:
            raise PermissionDeniedError("may not publish")
        if self.outages:
            self.outages -= 1
            raise BusUnavailableError("away")
        return await super().put(bucket, key, value, revision=revision)


async def test_an_outage_is_waited_for() -> None:
    async with Away(outages=1) as bus:
        await bus.setup()
        assert await first_generation(bus, job="j", machine="w") == 0
        assert await first_generation(bus, job="j", machine="w") == LIVES_PER_START


async def test_a_machine_that_may_not_count_trains_all_the_same() -> None:
    async with Away(forbidden=True) as bus:
        await bus.setup()
        assert await first_generation(bus, job="j", machine="w") == 0


@pytest.mark.parametrize(
    ("host", "towards", "address"),
    [
        ("10.1.2.3", "nats://elsewhere:4222", "10.1.2.3"),
        ("auto", "nats://127.0.0.1:4222", "127.0.0.1"),
        ("auto", "127.0.0.1", "127.0.0.1"),
        ("auto", "tls://localhost:4222, nats://unknown.invalid:1", "127.0.0.1"),
    ],
)
def test_the_address_is_the_one_that_leads_to_the_bus(
    host: str, towards: str, address: str
) -> None:
    assert own_address(host, towards=towards) == address


@pytest.mark.parametrize("towards", ["nats://unknown.invalid:4222", "nats://h:port", ""])
def test_no_way_to_the_bus_is_said_with_the_cure(towards: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        own_address("auto", towards=towards)


def test_listeners_announce_where_they_listen() -> None:
    listeners = Listeners(host="auto", ranks=2, towards="nats://127.0.0.1:4222")
    try:
        [*endpoints] = listeners.bind([None])[None]
        for endpoint in endpoints:
            host, _, port = endpoint.rpartition(":")
            assert host == "127.0.0.1"
            socket.create_connection((host, int(port)), timeout=1).close()
    finally:
        listeners.close()
