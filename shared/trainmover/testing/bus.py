"""Helpers for tests that talk over a bus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar
from urllib.parse import unquote

from nats.aio.msg import Msg

from trainmover import subjects
from trainmover.bus.embedded import EmbeddedServer
from trainmover.bus.memory.broker import MemoryBroker
from trainmover.bus.memory.bus import MemoryBus
from trainmover.bus.nats.bus import NatsBus
from trainmover.bus.protocol import Bus

__all__ = ["BusBench", "collect", "memory_bench", "nats_bench", "running_server"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BusBench:
    """A transport to test against, whatever it is.

    Attributes:
        connect: Makes another client of the same transport: ``async with bench.connect() as bus``.
        inject: Puts a raw message (subject, headers, body) where facts or commands are stored.
        dead_letters: (subject, reason) of every message that landed on the dead-letter subject.
        dead_kinds: Why each of them is dead, in a word.
    """

    connect: Callable[[], AbstractAsyncContextManager[Bus]]
    inject: Callable[[str, dict[str, str], bytes], Awaitable[None]]
    dead_letters: Callable[[], list[tuple[str, str]]]
    dead_kinds: Callable[[], list[str]]


@contextlib.contextmanager
def running_server(*, extra_config: str = "") -> Iterator[EmbeddedServer]:
    """A fresh NATS server with its own store; gone afterwards, whatever happens.

    Args:
        extra_config: Appended to the server's configuration.
    """
    with EmbeddedServer(extra_config=extra_config) as server:
        yield server


async def collect(
    source: AsyncIterator[T], count: int, *, within: timedelta = timedelta(seconds=10)
) -> list[T]:
    """The next ``count`` items of ``source``, which is left where it then is.

    Raises:
        TimeoutError: They did not come in time.
    """
    found: list[T] = []
    async with asyncio.timeout(within.total_seconds()):
        while len(found) < count:
            found.append(await anext(source))
    return found


@contextlib.asynccontextmanager
async def memory_bench(*, ack_wait_s: float = 10.0) -> AsyncIterator[BusBench]:
    """A bench over ``MemoryBus``; streams and buckets exist."""
    broker = MemoryBroker(ack_wait_s=ack_wait_s)

    async def inject(subject: str, headers: dict[str, str], data: bytes) -> None:
        broker.inject(subject, headers, data)

    async with MemoryBus(broker) as bus:
        await bus.setup()
        yield BusBench(
            connect=lambda: MemoryBus(broker),
            inject=inject,
            dead_letters=lambda: [(each.subject, each.reason) for each in broker.dead_letters],
            dead_kinds=lambda: [each.kind for each in broker.dead_letters],
        )


@contextlib.asynccontextmanager
async def nats_bench(url: str, *, ack_wait_s: float = 10.0) -> AsyncIterator[BusBench]:
    """A bench over ``NatsBus`` at ``url``; streams and buckets exist."""
    letters: list[tuple[str, str]] = []
    kinds: list[str] = []
    async with NatsBus(url, name="bench") as bus:
        await bus.setup()

        async def note(message: Msg) -> None:
            headers = message.headers or {}
            letters.append((headers["tm-subject"], unquote(headers["tm-reason"])))
            kinds.append(headers["tm-kind"])

        await bus.client.subscribe(subjects.DEAD_LETTER, cb=note)

        async def inject(subject: str, headers: dict[str, str], data: bytes) -> None:
            await bus.client.jetstream().publish(subject, data, headers=headers)

        yield BusBench(
            connect=lambda: NatsBus(url, name="bench", ack_wait_s=ack_wait_s),
            inject=inject,
            dead_letters=lambda: list(letters),
            dead_kinds=lambda: list(kinds),
        )
