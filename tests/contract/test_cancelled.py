"""Whoever is cancelled ends, at whatever moment: Ctrl-C of a command comes as a cancellation."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit import factories as make

from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.nats.bus import NatsBus
from trainmover.events.migration import JobFinished
from trainmover.tracing.observe import new_event

_FACTS = 3
_LIMIT_S = 20.0


async def _follow(url: str) -> None:
    async with NatsBus(url) as bus:
        async for _ in bus.events("cancelled", from_start=True):
            pass


async def _work(url: str) -> None:
    async with NatsBus(url) as bus:
        async for delivery in bus.events("cancelled", durable="worker", from_start=True):
            await delivery.ack()


@pytest.mark.parametrize("reads", [_follow, _work])
async def test_a_reader_ends_whenever_it_is_cancelled(
    reads: object, shared_server: EmbeddedServer
) -> None:
    """nats-py drops cancellations, in one of some hundred moments that Ctrl-C may come at."""
    url = shared_server.url
    async with NatsBus(url) as bus:
        await bus.setup()
        for step in range(_FACTS):
            fact = JobFinished(epoch=1, step=step)
            source = make.source_of(fact)
            await bus.publish(new_event(job="cancelled", source=source, payload=fact))
    for turns in range(0, 240, 2):
        task = asyncio.ensure_future(reads(url))  # type: ignore[operator]
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        _, left = await asyncio.wait([task], timeout=_LIMIT_S)
        assert not left, f"it goes on, cancelled after {turns} turns of the loop"
        assert task.cancelled()
