"""What a replacement cost, from what ranks said of their steps."""

from __future__ import annotations

import pytest
from benchmarks.peers.measure import Held, Said, held, step_s, whole

RANKS = {0: 100, 1: 101, 2: 102}


def step(number: int, t: float, ranks: dict[int, int], *, world: int | None = None) -> list[Said]:
    """All of ``ranks`` complete a step, a millisecond after each other."""
    return [
        Said(t + at / 1000, pid, rank, number, len(ranks) if world is None else world)
        for at, (rank, pid) in enumerate(ranks.items())
    ]


def steady(until: int, ranks: dict[int, int] = RANKS) -> list[Said]:
    return [one for number in range(1, until + 1) for one in step(number, 0.1 * number, ranks)]


def cost(said: list[Said], *, at: float, leaver: int = 102) -> Held | None:
    return held(sorted(said, key=lambda one: one.t), world=3, at=at, leaver=leaver)


def test_a_step_is_whole_when_all_have_completed_it() -> None:
    said = [*steady(3), *step(4, 0.4, {0: 100, 1: 101}, world=3)]
    assert [number for _, number, _ in whole(said, world=3)] == [1, 2, 3]
    assert step_s(said, world=3, before=9.0) == pytest.approx(0.1)


def test_nothing_is_known_before_the_world_is_whole_again() -> None:
    assert cost(steady(10), at=1.05) is None


def test_a_restart_does_steps_again() -> None:
    others = {0: 200, 1: 201, 2: 202}
    said = steady(25)
    for number in range(21, 27):
        said += step(number, 7.5 + 0.1 * (number - 21), others)
    found = cost(said, at=2.55)
    assert found is not None
    assert found.redone == 5
    assert found.pause_s == pytest.approx(7.5 - 2.5 - 0.1, abs=0.01)
    assert found.stall_s == pytest.approx(found.pause_s, abs=0.01)


def test_a_step_that_only_some_completed_is_not_whole_with_those_who_redo_it() -> None:
    joined = {**RANKS, 2: 302}
    said = [*steady(25), *step(26, 2.6, {0: 100, 1: 101}, world=3)]
    said += step(26, 4.6, {2: 302}, world=3) + step(26, 4.7, {0: 100, 1: 101}, world=3)
    said += step(27, 4.8, joined)
    found = cost(said, at=2.55)
    assert found is not None
    assert found.pause_s == pytest.approx(4.7 - 2.5 - 0.1, abs=0.01)
    assert found.redone == 0


def test_who_goes_on_with_fewer_ranks_is_not_whole_but_does_not_stall() -> None:
    said, left = steady(25), {0: 100, 1: 101}
    for number in range(26, 40):
        said += step(number, 3.6 + 0.1 * (number - 26), left)
    said += step(40, 5.0, {**left, 3: 303})
    found = cost(said, at=2.55)
    assert found is not None
    assert found.pause_s == pytest.approx(5.0 - 2.5 - 0.1, abs=0.01)
    assert found.stall_s == pytest.approx(1.0, abs=0.01)


def test_the_longest_of_two_pauses_counts_where_a_rank_joins_before_another_leaves() -> None:
    said, more = steady(25), {**RANKS, 3: 303}
    for number in range(26, 30):
        said += step(number, 2.9 + 0.1 * (number - 26), more)
    said += step(30, 4.4, {0: 100, 1: 101, 3: 303})
    found = cost(said, at=2.55)
    assert found is not None
    assert found.pause_s == pytest.approx(4.4 - 3.2 - 0.1, abs=0.01)
