"""Robust statistics and change detection; pure.

A median and the median absolute deviation are not moved by a pause or two; a cumulative sum
(Page, "Continuous inspection schemes", 1954) notices a small lasting change that no single value
shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["MEDIAN_ERROR", "Cusum", "median_and_sigma", "successive_sigma"]

_MAD_TO_SIGMA: Final = 1.4826
MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median, as a multiple of sigma / sqrt(n)."""


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
