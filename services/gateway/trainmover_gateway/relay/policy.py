"""What to do after an attempt. Pure: from the answer to a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from trainmover.job.numbers import decimal

__all__ = ["ATTEMPTS", "Answer", "Decision", "Deliver", "GiveUp", "Retry", "decide"]

ATTEMPTS: Final = 8
"""So often an event is offered to a receiver that says the event itself is at fault."""

_FIRST_S: Final = 0.5
_DIGITS: Final = 9
_LONGEST_S: Final = 60.0
_ABOUT_THE_EVENT: Final = frozenset({400, 413, 415, 422})


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one attempt.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        reason: For people.
        headers: Of the answer, names in lower case.
    """

    status: int
    reason: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Deliver:
    """The receiver has it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Offer it again after ``delay_s`` seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This event will never be taken, and others wait behind it."""

    reason: str


Decision = Deliver | Retry | GiveUp


def decide(answer: Answer, *, attempt: int, chance: float, now: datetime) -> Decision:
    """What becomes of an event.

    Nothing is given up for a receiver that is down, overloaded or wrongly configured: that is about
    the receiver and passes. Only an answer about the event itself ends its attempts.

    Args:
        answer: What the receiver said.
        attempt: 1 for the first.
        chance: 0 to 1, spreads the retries of many relays.
        now: For a ``Retry-After`` that is a date.
    """
    if 200 <= answer.status < 300:
        return Deliver()
    if answer.status in _ABOUT_THE_EVENT and attempt >= ATTEMPTS:
        return GiveUp(f"refused {attempt} times: {answer.reason}")
    backoff_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt - 1, 30)) * (0.5 + chance / 2)
    return Retry(max(backoff_s, _asked_for_s(answer, now)))


def _asked_for_s(answer: Answer, now: datetime) -> float:
    """Seconds that a ``Retry-After`` asks for, within reason."""
    text = answer.headers.get("retry-after", "").strip()
    if (seconds := decimal(text, digits=_DIGITS)) is not None:
        return min(float(seconds), 10 * _LONGEST_S)
    try:
        date = parsedate_to_datetime(text)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        asked_s = (date - now).total_seconds()
    except (ValueError, OverflowError, TypeError):  # no date, or one beyond the calendar
        return 0.0
    return min(max(asked_s, 0.0), 10 * _LONGEST_S)
