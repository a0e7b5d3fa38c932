"""A job as somebody who watches it sees it: the facts' view, who is late, and the pace.

``Watched`` is pure: facts, telemetry and the time are passed in. ``follow`` feeds it from a bus,
and keeps at it when the bus is away for a while. The terminal view, the dashboard and the metrics
are readers of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from trainmover.bus.facts import RETRY_S, every_fact
from trainmover.bus.protocol import Bus
from trainmover.errors import BusError, BusUnavailableError, MalformedEventError
from trainmover.events.envelope import Envelope
from trainmover.protocol.requests import JobStatus, StatusRequest
from trainmover.telemetry.lateness import LatenessTable
from trainmover.telemetry.records import Batch, decode_batch
from trainmover_console.view import JobView
from trainmover_console.view.summary import summarise, worth_showing

__all__ = ["Line", "Watched", "follow"]

LATE_STEPS: Final = 120
"""Steps of lateness that are kept."""

_RECENT: Final = 10
"""Steps whose mean lateness says who is behind now."""

_BEHIND: Final = 0.1
"""Part of a step: nobody who keeps the others waiting for less is called late."""

_LINES: Final = 200
_PACE_S: Final = 20.0
"""The step rate is that of the last so many seconds."""

_ASK_S: Final = 10.0
_WARNINGS: Final = (
    "job.held",
    "job.failed",
    "machine.data_differs",
    "machine.lost",
    "machine.warming_failed",
    "migration.failed",
    "worker.exited",
)


@dataclass(frozen=True, slots=True)
class Line:
    """One fact worth a line: when, what in words, and whether it is bad news."""

    time: datetime
    text: str
    bad: bool = False


@dataclass(slots=True)
class Watched:
    """One job while it goes on.

    Attributes:
        view: Everything the facts add up to.
        lateness: Who keeps the others waiting; None until the membership is known.
        lines: The latest facts worth showing, oldest first.
        current: Whether all stored facts have been read.
        connected: Whether the bus answered last.
        planner: Whether the planner answered last; None before anybody asked it.
        unprotected: Ranks whose state a crash would lose, as the planner said last; None where it
            does not know or does not answer.
    """

    job: str
    view: JobView = field(init=False)
    lateness: LatenessTable | None = None
    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=_LINES))
    current: bool = False
    connected: bool = True
    planner: bool | None = None
    unprotected: int | None = None
    told: int = 0
    _pace: deque[tuple[datetime, int]] = field(default_factory=lambda: deque(maxlen=4096))

    def __post_init__(self) -> None:
        """Begin with nothing known."""
        self.view = JobView(self.job)

    def apply(self, event: Envelope) -> None:
        """Take in one fact."""
        before = self.view.step
        self.view.apply(event)
        self.told += 1
        if self.view.step > before:
            self._pace.append((event.time, self.view.step))
        if worth_showing(event):
            name = event.type.removeprefix("dev.trainmover.").rsplit(".", 1)[0]
            self.lines.append(Line(event.time, summarise(event), bad=name in _WARNINGS))
        members = self.view.membership
        if members is not None and self.lateness is None:
            self.lateness = LatenessTable(members.layout.world_size, keep_steps=LATE_STEPS)

    def add(self, batch: Batch) -> None:
        """Take in one machine's telemetry."""
        if self.lateness is not None and len(batch.records):
            highest = int(batch.records["rank"].max())
            if highest < self.lateness.world_size:
                self.lateness.add(batch)

    def answered(self, status: JobStatus) -> None:
        """Take in what the planner itself says: how it was started is in no fact."""
        self.planner, self.unprotected = True, status.unprotected
        told = status.automation
        self.view.automation = told.mode
        if told.requested_by:
            self.view.automation_words = f"by {told.requested_by}: {told.reason}"

    def unanswered(self) -> None:
        """The planner gave no answer."""
        self.planner, self.unprotected = False, None

    def rate(self, now: datetime) -> float | None:
        """Steps per second of late; None where too little is known."""
        recent = [(at, step) for at, step in self._pace if (now - at).total_seconds() <= _PACE_S]
        if len(recent) < 2:
            return None
        (began, first), (_, last) = recent[0], recent[-1]
        # Up to now, not to the last report: a job that stands still slows down visibly.
        seconds = (now - began).total_seconds()
        return (last - first) / seconds if seconds > 0 else None

    def late_s(self, rank: int, count: int) -> list[float]:
        """Lateness of a rank in the latest ``count`` steps in seconds, oldest first."""
        return [] if self.lateness is None else self.lateness.latest(rank, count)

    def behind_s(self) -> dict[int, float]:
        """Ranks that stand out by coming late, and how late each came in the latest steps.

        Somebody is the last in every step: a rank stands out when it costs a good part of a step,
        and twice as much as most ranks do.
        """
        world = 0 if self.lateness is None else self.lateness.world_size
        recent = {rank: self.late_s(rank, _RECENT) for rank in range(world)}
        means = {rank: sum(late) / len(late) for rank, late in recent.items() if late}
        usual = sorted(means.values())[(len(means) - 1) // 2] if means else 0.0
        least = max(2 * usual, _BEHIND * (self.step_s() or 0.0))
        return {rank: late for rank, late in means.items() if late > least}

    def step_s(self) -> float | None:
        """The slowest machine's step time in seconds, as last reported."""
        members = self.view.membership
        members_now = set() if members is None else {one.machine for one in members.members}
        known = [
            one.step_s
            for one in self.view.machines.values()
            if one.step_s is not None and one.name in members_now
        ]
        return max(known, default=None)

    def as_data(self, now: datetime) -> dict[str, Any]:
        """JSON-ready: the view, and what only somebody who watches knows."""
        members = self.view.membership
        ranks: list[dict[str, Any]] = []
        behind = self.behind_s()
        if members is not None:
            for rank in range(members.layout.world_size):
                machine = members.machine_of(rank)
                late = [round(each, 5) for each in self.late_s(rank, LATE_STEPS)]
                now_s = round(behind.get(rank, 0.0), 5)
                ranks.append({"rank": rank, "machine": machine, "late_s": late, "behind_s": now_s})
        steps = [] if self.lateness is None else [step for step, _ in self.lateness.steps()]
        return {
            **self.view.as_data(),
            "now": now.isoformat(),
            "connected": self.connected,
            "rate": self.rate(now),
            "step_s": self.step_s(),
            "ranks": ranks,
            "late_steps": steps[-LATE_STEPS:],
            "lines": [
                {"time": line.time.isoformat(), "text": line.text, "bad": line.bad}
                for line in list(self.lines)[-40:]
            ],
        }


async def follow(bus: Bus, watched: Watched, *, changed: Callable[[], None] = lambda: None) -> None:
    """Feed ``watched`` from a bus until cancelled.

    Args:
        bus: A connected bus; it may go away and come back.
        watched: What to feed.
        changed: Called after each fact, and when the bus goes or comes.
    """
    current = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_facts(bus, watched, changed, current), name="watch-facts")
        group.create_task(_telemetry(bus, watched), name="watch-telemetry")
        group.create_task(_ask(bus, watched, changed, current), name="watch-status")


async def _facts(
    bus: Bus, watched: Watched, changed: Callable[[], None], current: asyncio.Event
) -> None:
    def away(_: BusUnavailableError) -> None:
        watched.connected = False
        changed()

    def caught_up() -> None:
        watched.connected = watched.current = True
        current.set()
        changed()

    while True:
        facts = every_fact(bus, watched.job, unavailable=away, caught_up=caught_up)
        with contextlib.suppress(BusError):
            async with contextlib.aclosing(facts):
                async for delivery in facts:
                    watched.connected = True
                    watched.apply(delivery.payload)
                    changed()
        watched.connected = False
        changed()
        await asyncio.sleep(RETRY_S)


async def _telemetry(bus: Bus, watched: Watched) -> None:
    while True:
        with contextlib.suppress(BusError):
            async for machine, data in bus.telemetry(watched.job):
                with contextlib.suppress(MalformedEventError):
                    batch = decode_batch(data)
                    if batch.machine == machine:
                        watched.add(batch)
        await asyncio.sleep(RETRY_S)


async def _ask(
    bus: Bus, watched: Watched, changed: Callable[[], None], current: asyncio.Event
) -> None:
    """What only the planner knows: how it was started is in no fact."""
    await current.wait()
    while True:
        try:
            reply = await bus.request(watched.job, "status", StatusRequest(), timeout_s=2)
            watched.answered(JobStatus.model_validate_json(reply))
        except (BusError, ValueError):
            watched.unanswered()
        changed()
        await asyncio.sleep(_ASK_S)
