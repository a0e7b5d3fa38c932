"""What ``Connection`` adds to nats-py, without a server where none is needed."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from nats.aio.client import Client

from trainmover.bus.nats.connection import Connection
from trainmover.errors import BusUnavailableError, ConflictError
from trainmover.testing import running_server


@pytest.mark.parametrize("error", [None, ConflictError("b/k", revision=3), TimeoutError()])
async def test_a_cancellation_that_meets_the_answer_is_not_lost(error):
    """``asyncio.wait_for`` of Python 3.11 returns the answer and forgets the cancellation."""
    with running_server() as server:
        connection = Connection(server.url, name="t", timeout_s=1.0, connect_timeout_s=2.0)
        await connection.open()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        went_on = False

        async def call() -> None:
            nonlocal went_on
            async with connection.calling("wait"):
                await asyncio.wait_for(answer, 1.0)
            went_on = True

        task = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not went_on
        await connection.close()


async def test_an_attempt_that_overhears_its_end_gives_up_all_the_same(monkeypatch):
    """The limit may hit nats-py in the moment in which an attempt fails: it tries again."""

    async def connect(client, *, error_cb, **options):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        while True:
            await asyncio.sleep(0)
            await error_cb(OSError("refused"))

    async def close(client):
        pass

    monkeypatch.setattr(Client, "connect", connect)
    monkeypatch.setattr(Client, "close", close)
    connection = Connection("nats://x:1", name="t", timeout_s=1.0, connect_timeout_s=0.01)
    with pytest.raises(BusUnavailableError):
        await connection.open()
