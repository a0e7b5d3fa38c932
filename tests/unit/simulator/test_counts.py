"""Limits of a Poisson mean, held to the tables (Garwood 1936), and to what they say."""

from __future__ import annotations

import pytest

from trainmover_simulator.counts import lower_count, upper_count


@pytest.mark.parametrize(("seen", "limit"), [(0, 2.996), (1, 4.744), (5, 10.513), (100, 118.08)])
def test_the_upper_limit(seen: int, limit: float) -> None:
    assert upper_count(seen) == pytest.approx(limit, abs=0.001)


@pytest.mark.parametrize(("seen", "limit"), [(0, 0.0), (1, 0.0513), (5, 1.970), (10, 5.425)])
def test_the_lower_limit(seen: int, limit: float) -> None:
    assert lower_count(seen) == pytest.approx(limit, abs=0.001)
