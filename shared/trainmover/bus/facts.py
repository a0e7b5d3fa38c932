"""The facts of a job: all that are stored and all that come, whatever the connection does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from trainmover.bus.protocol import Bus, Delivery
from trainmover.errors import BusUnavailableError
from trainmover.events.envelope import Envelope

__all__ = ["PATIENCE_S", "RETRY_S", "every_fact", "history"]

RETRY_S: Final = 0.5
"""Between two attempts to reach a bus that cannot be reached."""

PATIENCE_S: Final = 10.0
"""A person who asks is told after so long without a fact that the bus does not get on."""


async def every_fact(
    bus: Bus,
    job: str,
    *,
    unavailable: Callable[[BusUnavailableError], None],
    caught_up: Callable[[], None] | None = None,
    entity: str = "*",
    fact: str = "*",
) -> AsyncGenerator[Delivery[Envelope], None]:
    """The facts of ``job`` from the first that is stored, in order, endlessly.

    Args:
        bus: A connected bus; it may go away and come back.
        job: Job name.
        unavailable: Called before each further attempt.
        caught_up: Called once when everything was read that was stored at the beginning.
        entity: Only this entity.
        fact: Only this fact.
    """
    latest = 0
    level = False

    def reached() -> None:
        nonlocal level
        if not level and caught_up is not None:
            caught_up()
        level = True

    while True:
        try:
            reading = bus.events(job, entity=entity, fact=fact, caught_up=reached)
            async with aclosing(reading) as facts:
                async for delivery in facts:
                    # A bus that came back begins with the first again.
                    if delivery.stream_sequence > latest:
                        latest = delivery.stream_sequence
                        yield delivery
        except BusUnavailableError as error:
            unavailable(error)
        await asyncio.sleep(RETRY_S)


async def history(bus: Bus, job: str, *, patience_s: float = PATIENCE_S) -> list[Envelope]:
    """Every fact stored about ``job`` until now: all of them, or an error.

    Args:
        bus: A connected bus.
        job: Job name.
        patience_s: How long to wait for the next one, in seconds.

    Raises:
        BusUnavailableError: Some did not come.
    """
    found: list[Envelope] = []
    level = asyncio.Event()

    async def read() -> None:
        async with aclosing(bus.events(job, caught_up=level.set)) as facts:
            async for delivery in facts:
                found.append(delivery.payload)  # noqa: PERF401 - somebody counts them meanwhile

    reading = asyncio.create_task(read())
    reached = asyncio.create_task(level.wait())
    try:
        before = -1
        while not level.is_set() and not reading.done() and before < len(found):
            before = len(found)
            await asyncio.wait(
                {reading, reached}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        for task in (reading, reached):
            task.cancel()
        (ended, _) = await asyncio.gather(reading, reached, return_exceptions=True)
    if not level.is_set():
        if isinstance(ended, Exception):
            raise ended
        raise BusUnavailableError(
            f"{len(found)} facts of job {job!r} came, then none for {patience_s:g} s, and there "
            "are more: what is known would be old. Is the server's disk full or stalled?"
        )
    return found
