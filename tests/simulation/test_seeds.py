"""Thousands of jobs in virtual time, each with its own faults: the invariants hold in all."""

from __future__ import annotations

import time

import pytest
from tests.simulation.__main__ import many
from tests.simulation.world import play

SEED = 7
REPLAY = "python -m tests.simulation --seed {seed}"


def explained(wrong: list[tuple[int, str]]) -> str:
    lines = [f"{REPLAY.format(seed=seed)}   # {error[:300]}" for seed, error in wrong]
    return "\n".join(["replay with its trace:", *lines[:20]])


def test_a_hundred_seeds():
    _, wrong = many(range(100), workers=2)
    assert not wrong, explained(wrong)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_thousand_seeds(record_property):
    """Ten minutes on two idle cores is the target; the time is printed, not asserted."""
    started = time.monotonic()
    ends, wrong = many(range(10_000), workers=2)
    took_s = time.monotonic() - started
    record_property("took_s", took_s)
    print(f"10000 seeds in {took_s:.0f} s: {dict(ends.most_common(5))}")
    assert not wrong, explained(wrong)


def test_a_seed_replays_exactly():
    first, one = play(SEED, tracing=True)
    second, other = play(SEED, tracing=True)
    assert one == other
    assert one.end == "finished"
    assert len(one.faults) >= 2
    assert first.sim.trace() == second.sim.trace()
    assert f"JobFinished epoch={one.epoch} step={one.steps}" in first.sim.trace()
