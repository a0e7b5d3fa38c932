"""The same bench over every transport."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from trainmover.testing import BusBench, memory_bench, nats_bench, running_server

ACK_WAIT_S = 0.4


@pytest.fixture(params=["nats", "memory"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[BusBench]:
    if request.param == "memory":
        async with memory_bench(ack_wait_s=ACK_WAIT_S) as bench:
            yield bench
        return
    with running_server() as server:
        async with nats_bench(server.url, ack_wait_s=ACK_WAIT_S) as bench:
            yield bench
