"""Warnings about what others send: told a few times, then counted, so that no log fills a disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Seldom"]

_WINDOW_S: Final = 10.0
_EACH: Final = 20


class Seldom:
    """Passes on at most ``each`` lines in ``window_s`` seconds.

    Args:
        say: Where lines go: a logger's ``warning``.
        each: Lines in each span.
        window_s: Its length in seconds.
        clock: Seconds, steady.
    """

    def __init__(
        self,
        say: Callable[..., Any],
        *,
        each: int = _EACH,
        window_s: float = _WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._each = each
        self._window_s = window_s
        self._clock = clock
        self._began_s = -float("inf")
        self._said = 0
        self._kept_back = 0

    def __call__(self, event: str, **values: object) -> None:
        """Say it, or count it; the next line that is said tells how many were not."""
        now_s = self._clock()
        if now_s - self._began_s >= self._window_s:
            self._began_s, self._said = now_s, 0
        if self._said >= self._each:
            self._kept_back += 1
            return
        self._said += 1
        if self._kept_back:
            values["kept_back"], self._kept_back = self._kept_back, 0
        self._say(event, **values)
