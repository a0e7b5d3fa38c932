"""Robust statistics and change detection; pure.

A median and the median absolute deviation are not moved by a pause or two; a cumulative sum
(Page, "Continuous inspection schemes", 1954) notices a small lasting change that no single value
shows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["MEDIAN_ERROR", "Cusum", "Pace", "median_and_sigma", "successive_sigma"]

_MAD_TO_SIGMA: Final = 1.4826
MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median, as a multiple of sigma / sqrt(n)."""
_RECENT: Final = 128
_BLOCKS: Final = 16


def median_and_sigma(values: npt.ArrayLike) -> tuple[float, float]:
    """Median, and the standard deviation that the median absolute deviation stands for."""
    array = np.asarray(values, float)
    middle = float(np.median(array))
    return middle, _MAD_TO_SIGMA * float(np.median(np.abs(array - middle)))


def successive_sigma(rows: npt.NDArray[np.floating]) -> float:
    """Standard deviation from one row to the next: a lasting change does not count as noise.

    Args:
        rows: Rows in order of time; any number of columns.
    """
    if len(rows) < 2:
        return float("inf")
    return _MAD_TO_SIGMA * float(np.median(np.abs(np.diff(rows, axis=0)))) / 2**0.5


@dataclass(slots=True)
class Cusum:
    """One-sided cumulative sum of how far values lie above a level.

    Attributes:
        slack: What is subtracted from each deviation, in the values' unit: changes smaller than
            twice this are let pass.
        limit: The sum at which a change is reported.
        total: The sum so far.
        since: Number of values since the sum was last zero.
    """

    slack: float
    limit: float
    total: float = 0.0
    since: int = 0

    def add(self, deviation: float) -> bool:
        """Take in one deviation from the level; whether the change is beyond the limit."""
        # One wild value must not do it alone.
        bounded = min(deviation, self.limit / 3)
        self.total = max(0.0, self.total + bounded - self.slack)
        self.since = self.since + 1 if self.total > 0 else 0
        return self.total > self.limit

    def reset(self) -> None:
        """Forget."""
        self.total, self.since = 0.0, 0


class Pace:
    """How long a job's steps take: the usual ones of late, and the longest in some 2,000.

    Rare long steps (a compilation, an evaluation in the body) are no news when they come again,
    however far apart they are.

    Args:
        warm_up: The first so many steps count only until there are ``young`` steps: what they take
            is not taken again.
        young: Number of steps from which on the pace is settled.
    """

    def __init__(self, *, warm_up: int, young: int) -> None:
        self._warm_up = warm_up
        self._young = young
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._longest: deque[float] = deque(maxlen=_BLOCKS)
        self._count = 0

    @property
    def is_young(self) -> bool:
        """Whether it may still change much."""
        return self._count < self._young

    def __bool__(self) -> bool:
        return bool(self._recent)

    def add(self, duration_s: float) -> None:
        """Take in the next step, in seconds."""
        self._recent.append(duration_s)
        if self._count % _RECENT == 0:
            self._longest.append(duration_s)
        self._longest[-1] = max(self._longest[-1], duration_s)
        self._count += 1
        if self._count == self._young:
            for _ in range(min(self._warm_up, len(self._recent) - 1)):
                self._recent.popleft()
            self._longest[-1] = max(self._recent)

    def usual_s(self, share: float) -> float:
        """So large a share of the latest steps was no longer; there is at least one."""
        return float(np.quantile(self._recent, share))

    @property
    def longest_s(self) -> float:
        """The longest that is remembered; there is at least one."""
        return max(self._longest)
