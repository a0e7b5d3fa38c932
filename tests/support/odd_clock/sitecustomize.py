"""Python imports this when it starts: the clock is an hour off, steps, and differs by process.

Steady clocks are as they were. Used by ``tests.soak --harsh``.
"""

from __future__ import annotations

import datetime  # noqa: ICN001 - what others import is replaced
import os
import random
import time
from typing import Any

_SPAN_S = 20.0
_OFF_S = (-3600.0, -1.0, 0.0, 1.0, 3600.0)
_time, _time_ns, _Real = time.time, time.time_ns, datetime.datetime


def _off_s() -> float:
    span = int(time.monotonic() / _SPAN_S)
    return random.Random(f"{os.getpid()} {span}").choice(_OFF_S)


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Real)


class _Odd(_Real, metaclass=_Kind):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _Real.fromtimestamp(time.time(), tz)


time.time = lambda: _time() + _off_s()
time.time_ns = lambda: _time_ns() + int(_off_s() * 1e9)
datetime.datetime = _Odd  # type: ignore[misc]
