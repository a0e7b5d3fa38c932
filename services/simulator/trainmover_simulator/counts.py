"""How many events are to be expected, after so many were seen: limits of a Poisson mean."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["lower_count", "upper_count"]


def upper_count(seen: int, *, confidence: float = 0.95) -> float:
    """The mean that is not above this: were it larger, no more than ``seen`` would be a surprise.

    It is one-sided: a surprise has a probability of less than ``1 - confidence``.
    """
    low, high = max(float(seen), 1e-9), seen + 10.0 * math.sqrt(seen + 1.0)
    return _where(low, high, lambda mean: _at_most(seen, mean) > 1 - confidence)


def lower_count(seen: int, *, confidence: float = 0.95) -> float:
    """The mean that is not below this: were it smaller, ``seen`` or more would be a surprise."""
    if seen == 0:
        return 0.0
    return _where(1e-9, float(seen), lambda mean: 1 - _at_most(seen - 1, mean) < 1 - confidence)


def _at_most(count: int, mean: float) -> float:
    """Probability of no more than ``count`` events."""
    logs = (n * math.log(mean) - mean - math.lgamma(n + 1) for n in range(count + 1))
    return math.fsum(math.exp(one) for one in logs)


def _where(low: float, high: float, is_above: Callable[[float], bool]) -> float:
    """The number between ``low`` and ``high`` from which on ``is_above`` does not hold."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_above(middle) else (low, middle)
    return high
