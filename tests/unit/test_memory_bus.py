"""What the in-process bus offers beyond the contract: outages on demand."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from trainmover.bus import Bus
from trainmover.bus.memory.broker import MemoryBroker
from trainmover.bus.memory.bus import MemoryBus
from trainmover.errors import BusError, BusUnavailableError
from trainmover.events.machine import MachineLost
from trainmover.testing import collect
from trainmover.tracing.observe import new_event


def lost(machine: str):
    payload = MachineLost(machine=machine, reason="test")
    return new_event(job="demo", source="/planner", payload=payload)


async def test_an_outage_on_demand():
    broker = MemoryBroker()
    async with MemoryBus(broker) as bus, MemoryBus(broker) as reader:
        await bus.setup()
        await bus.publish(lost("before"))
        facts = reader.events("demo")
        await collect(facts, 1)
        waiting = asyncio.ensure_future(anext(facts))
        broker.reachable = False
        assert not bus.connected
        with pytest.raises(BusUnavailableError):
            await bus.publish(lost("during"))
        with pytest.raises(BusUnavailableError):
            await bus.get("tm_jobs", "demo")
        with pytest.raises(BusUnavailableError):
            async with MemoryBus(broker):
                pass
        await bus.send_telemetry("demo", "w", b"dropped")
        broker.reachable = True
        await bus.publish(lost("after"))
        assert (await asyncio.wait_for(waiting, 5)).payload.payload.machine == "after"


async def test_buckets_need_setup_as_on_a_server():
    async with MemoryBus() as bus:
        with pytest.raises(BusError, match="setup"):
            await bus.get("tm_jobs", "demo")


async def test_a_busy_writer_leaves_turns_to_others():
    async with MemoryBus() as bus:
        await bus.setup()
        reading = asyncio.ensure_future(collect(bus.events("demo"), 5, within=timedelta(seconds=5)))
        while not reading.done():
            await bus.publish(lost("m"))
        assert len(reading.result()) == 5


def test_it_is_a_bus():
    bus: Bus = MemoryBus()
    for name in (name for name in vars(Bus) if not name.startswith("_")):
        assert hasattr(type(bus), name), name
