"""Waiting until a job is as a test wants it, by its facts alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from trainmover.bus.protocol import Bus
from trainmover_console.view import JobView


async def view_when(bus: Bus, view: JobView, reached: Callable[[JobView], bool]) -> None:
    """Bring an empty ``view`` up to date, and return as soon as ``reached`` holds for it."""
    async with aclosing(bus.events(view.job)) as facts:
        stored = await bus.event_count(view.job)
        async for delivery in facts:
            view.apply(delivery.payload)
            stored -= 1
            if stored <= 0 and reached(view):  # it is about now, not about some time ago
                return
    raise AssertionError("the facts ended")


def warm(view: JobView, *, slots: int) -> int:
    """How many standbys could take any of so many slots at once."""
    return sum(one.ready_slots == set(range(slots)) for one in view.standbys)
