"""Every fact of a job, once each, whatever happens to the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from trainmover.bus.protocol import Bus
from trainmover.errors import BusUnavailableError
from trainmover.events.envelope import Envelope

__all__ = ["RETRY_S", "every_fact"]

RETRY_S: Final = 0.5
"""Between two attempts to reach a bus that cannot be reached."""


async def every_fact(
    bus: Bus, job: str, *, unavailable: Callable[[BusUnavailableError], None]
) -> AsyncGenerator[Envelope, None]:
    """The facts of ``job`` from the first that is stored, in order, endlessly.

    Args:
        bus: A connected bus; it may go away and come back.
        job: Job name.
        unavailable: Called before each further attempt.
    """
    latest = 0
    while True:
        try:
            async for delivery in bus.events(job):
                if (
                    delivery.stream_sequence > latest
                ):  # a bus that came back begins with the first again
                    latest = delivery.stream_sequence
                    yield delivery.payload
        except BusUnavailableError as error:
            unavailable(error)
        await asyncio.sleep(RETRY_S)
