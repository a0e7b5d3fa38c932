"""Publishes what a source says about machines when it changes, and takes it back when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from trainmover.bus.facts import history
from trainmover.bus.protocol import Bus
from trainmover.errors import BusUnavailableError, TrainMoverError
from trainmover.events.machine import MachineNoticed
from trainmover.tracing import observe

__all__ = ["Source", "changes", "publish", "watch"]

Source = Callable[[], Awaitable[Mapping[str, MachineNoticed]]]
"""Asks once: what is announced now, by machine.

Raises:
    TrainMoverError: The source cannot be asked; what was announced before stays.
"""

_log = observe.get_logger(__name__)
_RETRY_S: Final = 0.5


def changes(
    before: Mapping[str, MachineNoticed], now: Mapping[str, MachineNoticed]
) -> list[MachineNoticed]:
    """What has to be said so that readers who know ``before`` know ``now``."""
    said = []
    for machine, notice in sorted(now.items()):
        known = before.get(machine)
        # A remaining time that only runs down is no news.
        same = known is not None and (known.kind, known.reason) == (notice.kind, notice.reason)
        if not same:
            said.append(notice)
    for machine, notice in sorted(before.items()):
        if machine not in now:
            said.append(notice.model_copy(update={"cleared": True, "leaves_in_s": None}))
    return said


async def watch(bus: Bus, *, job: str, source: Source, every_s: float, name: str = "") -> None:
    """Ask a source again and again and publish what changed, until cancelled.

    Args:
        bus: A connected bus.
        job: Job name.
        source: Whom to ask.
        every_s: How often, in seconds.
        name: What the source calls itself in its notices. What it announced before this process
            began is taken back when it is over; without a name nothing is known of that.
    """
    known: Mapping[str, MachineNoticed] | None = None
    while True:
        try:
            now = await source()
            if known is None:
                known = await _said_before(bus, job, name)
        except TrainMoverError as error:
            _log.warning("notices.source_unavailable", reason=str(error))
        else:
            for notice in changes(known, now):
                await publish(bus, job=job, notice=notice)
            known = now
        await asyncio.sleep(every_s)


async def _said_before(bus: Bus, job: str, name: str) -> Mapping[str, MachineNoticed]:
    """What a source of that name announced and did not take back."""
    open_: dict[str, MachineNoticed] = {}
    if not name:
        return open_
    for fact in await history(bus, job):
        said = fact.payload
        if isinstance(said, MachineNoticed) and said.source == name and said.kind != "metrics":
            open_.pop(said.machine, None)
            if not said.cleared:
                open_[said.machine] = said
    return open_


async def publish(bus: Bus, *, job: str, notice: MachineNoticed) -> None:
    """Publish one announcement; comes back when it is stored."""
    event = observe.new_event(job=job, source=f"/notices/{notice.source or 'api'}", payload=notice)
    while True:
        try:
            await bus.publish(event)
        except BusUnavailableError as error:
            _log.warning("notices.bus_unavailable", reason=str(error))
            await asyncio.sleep(_RETRY_S)
        else:
            break
    _log.info("notices.published", machine=notice.machine, kind=notice.kind, reason=notice.reason)
