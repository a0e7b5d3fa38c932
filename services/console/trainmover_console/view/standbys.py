"""Why a standby is not ready for a slot. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any

from trainmover.events.machine import MachineWarmingFailed

__all__ = ["NotReady", "grouped", "problem_words"]


@dataclass(frozen=True, slots=True)
class NotReady:
    """Slots that a standby could not get warm for, all for the same reason.

    Attributes:
        slots: In their order.
        rank: One of the ranks whose processes failed.
        error: The last line of what was raised, or how the process ended.
        where: ``file:line`` in the user's program; empty where nobody knows.
        attempts: How often it was tried, for the slot where that was most often.
        next_try: When the first of these slots is tried again.
    """

    slots: tuple[int, ...]
    rank: int
    error: str
    where: str
    attempts: int
    next_try: datetime

    @staticmethod
    def of(fact: MachineWarmingFailed, *, said: datetime) -> NotReady:
        """What a fact says that was published at ``said``."""
        return NotReady(
            slots=(fact.slot,),
            rank=fact.rank,
            error=fact.error,
            where=fact.where,
            attempts=fact.attempts,
            next_try=said + timedelta(seconds=fact.retry_in_s),
        )

    def words(self, now: datetime) -> str:
        """``AssertionError at train.py:19, tried 3 times, next try in 40 s``."""
        tried = "once" if self.attempts == 1 else f"{self.attempts} times"
        left_s = (self.next_try - now).total_seconds()
        again = f"next try in {left_s:.0f} s" if left_s >= 0.5 else "tried again now"
        return f"{problem_words(self.error, self.where)}, tried {tried}, {again}"

    @property
    def slot_words(self) -> str:
        """``slot 1``, or ``slots 0, 2``."""
        return f"slot{'s' * (len(self.slots) > 1)} {', '.join(map(str, self.slots))}"

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "slots": list(self.slots),
            "rank": self.rank,
            "error": self.error,
            "where": self.where,
            "attempts": self.attempts,
            "next_try": self.next_try.isoformat(),
        }


def grouped(failures: Iterable[NotReady]) -> list[NotReady]:
    """The same error at the same place is told once, with all its slots."""
    groups: dict[tuple[str, str], NotReady] = {}
    for one in sorted(failures, key=lambda failure: failure.slots):
        key = one.error, one.where
        first = groups.get(key, one)
        groups[key] = NotReady(
            slots=tuple(sorted({*first.slots, *one.slots})),
            rank=first.rank,
            error=one.error,
            where=one.where,
            attempts=max(first.attempts, one.attempts),
            next_try=min(first.next_try, one.next_try),
        )
    return list(groups.values())


def problem_words(error: str, where: str) -> str:
    """``AssertionError at train.py:19``."""
    return f"{error} at {PurePath(where).name}" if where else error
