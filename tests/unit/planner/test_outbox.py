"""The planner's queues towards the bus: order, and what they keep."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from trainmover.bus.protocol import Entry
from trainmover.commands import Stop
from trainmover.errors import BusUnavailableError
from trainmover.protocol.migration import Migration
from trainmover_planner.outbox import Outbox
from trainmover_planner.state.effects import SaveMigration, SendCommand


class SlowBus:
    """Takes commands and values, each after a moment."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = defaultdict(list)
        self.most = self.under_way = 0
        self.outages = 0
        self.keys: dict[tuple[str, str], int] = {}

    async def send_command(self, job: str, machine: str, command: Any, *, id: str) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        if self.outages:
            self.outages -= 1
            raise BusUnavailableError("not now")
        self.sent[machine].append(command.reason)

    async def put(self, bucket: str, key: str, value: bytes, *, revision: int | None) -> Entry:
        self.keys[bucket, key] = (revision or 0) + 1
        return Entry(key, value, self.keys[bucket, key])


@pytest.fixture
async def bus() -> SlowBus:
    return SlowBus()


@pytest.fixture
async def outbox(bus: SlowBus) -> AsyncIterator[Outbox]:
    async with asyncio.TaskGroup() as group:
        made = Outbox(bus, "demo", group, status=lambda: Stop(reason=""))
        yield made
        for task in group._tasks:
            task.cancel()


def stop(machine: str, reason: str) -> SendCommand:
    return SendCommand(machine, Stop(reason=reason), f"{machine}.{reason}", urgent=True)


async def settled(outbox: Outbox) -> None:
    async with asyncio.timeout(20):
        while outbox._machines or outbox._mirror:  # noqa: ASYNC110 - a test looks, nobody tells
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.01)  # what has ended is taken out


async def test_commands_of_one_machine_keep_their_order_whenever_they_come(bus, outbox):
    bus.outages = 3
    for round_ in range(5):
        outbox.carry_out([stop("m", f"{round_}.{n}") for n in range(3)])
        await asyncio.sleep(0.004 * round_)
    await settled(outbox)
    assert bus.sent["m"] == [f"{round_}.{n}" for round_ in range(5) for n in range(3)]


async def test_of_thousands_of_commands_few_are_under_way(bus, outbox):
    outbox.carry_out([stop(f"m-{number}", "x") for number in range(2000)])
    await settled(outbox)
    assert len(bus.sent) == 2000
    assert bus.most <= 64


async def test_nothing_is_kept_of_machines_that_came_and_went(bus, outbox):
    outbox.carry_out([stop(f"m-{number}", "x") for number in range(100)])
    await settled(outbox)
    assert not outbox._machines
    assert len(outbox._group._tasks) <= 2


async def test_few_revisions_are_kept_of_migrations_that_ended(bus, outbox):
    for number in range(600):
        one = Migration(
            id=f"m-{number:04d}", job="demo", kind="planned", slot=0, leaver="a", cause=""
        )
        outbox.carry_out([SaveMigration(one), SaveMigration(one)])
    await settled(outbox)
    await asyncio.sleep(0.05)
    assert len(bus.keys) == 600
    assert len(outbox._revisions) <= 256
