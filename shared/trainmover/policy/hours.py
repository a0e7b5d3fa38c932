"""Times of the week in UTC, as a policy says them: ``mon-fri 22:00-06:00``. Pure."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

__all__ = ["DAYS", "Window", "window"]

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = 86_400
_WEEK: Final = 7 * _DAY
_THURSDAY: Final = 3 * _DAY
"""The first of January 1970, seconds into its week."""

_TIMES: Final = re.compile(r"(\d\d?):(\d\d)-(\d\d?):(\d\d)")
_CURE: Final = "write for instance 'mon-fri 22:00-06:00', '08:00-18:00' or 'sat,sun'"


@dataclass(frozen=True, slots=True)
class Window:
    """A time of the week that comes again.

    Attributes:
        starts_s: Seconds into the week, from Monday 00:00 UTC, at which it begins; one for each
            of its days.
        length_s: Seconds for which it lasts; it may reach into the next day.
    """

    starts_s: tuple[int, ...]
    length_s: int

    def holds(self, at_s: float) -> bool:
        """Whether ``at_s`` (seconds since 1970, UTC) is in it; its end is not."""
        now = _in_week(at_s)
        return any((now - start) % _WEEK < self.length_s for start in self.starts_s)

    def changes_s(self, at_s: float) -> float:
        """When it begins or ends next, in seconds since 1970; later than ``at_s``."""
        now = _in_week(at_s)
        edges = [edge for start in self.starts_s for edge in (start, start + self.length_s)]
        # Whole seconds: a time is due at the moment that is asked for, however large it is.
        return float(int(at_s) + min((edge - now) % _WEEK or _WEEK for edge in edges))


@functools.lru_cache(maxsize=256)
def window(text: str) -> Window:
    """The window that ``text`` says: days, times from and to, or both, in UTC.

    Raises:
        ValueError: It says none; the message has the cure.
    """
    parts = text.lower().replace(", ", ",").split()
    times = [part for part in parts if ":" in part]
    days = [part for part in parts if ":" not in part]
    if not parts or len(times) > 1 or len(days) > 1:
        raise ValueError(f"{text!r} is no time of the week: {_CURE}")
    start, length = _times(times[0], text) if times else (0, _DAY)
    chosen = _days(days[0], text) if days else range(7)
    return Window(tuple(day * _DAY + start for day in chosen), length)


def _in_week(at_s: float) -> int:
    return (int(at_s) + _THURSDAY) % _WEEK


def _times(part: str, text: str) -> tuple[int, int]:
    found = _TIMES.fullmatch(part)
    if found is None:
        raise ValueError(f"{text!r} is no time of the week: {_CURE}")
    ends = []
    for hour, minute in ((found[1], found[2]), (found[3], found[4])):
        seconds = 3600 * int(hour) + 60 * int(minute)
        if int(minute) > 59 or seconds > _DAY:
            raise ValueError(f"{hour}:{minute} in {text!r} is no time of a day: 00:00 to 24:00 are")
        ends.append(seconds)
    start, end = ends
    if start in (end, _DAY):
        raise ValueError(f"{text!r} begins when it ends: for whole days leave the times out")
    return start, (end - start) % _DAY or _DAY


def _days(part: str, text: str) -> list[int]:
    chosen: list[int] = []
    for one in part.split(","):
        first, dash, last = one.partition("-")
        for name in (first, last) if dash else (first,):
            if name not in DAYS:
                raise ValueError(f"{name!r} in {text!r} is no day of the week: {', '.join(DAYS)}")
        begin = DAYS.index(first)
        count = (DAYS.index(last) - begin) % 7 + 1 if dash else 1
        chosen += [(begin + n) % 7 for n in range(count)]
    return sorted(set(chosen))
