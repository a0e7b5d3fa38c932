"""The formula for the number of standbys, against drawn histories and against textbooks."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmover.errors import ConfigError
from trainmover_simulator.failures import DAY_S, FailureModel
from trainmover_simulator.replay import Job, histories, replay
from trainmover_simulator.scenario import Scenario
from trainmover_simulator.sizing.formula import (
    Demand,
    Target,
    advised,
    cheapest,
    figures,
    needed,
    reserve_for,
)
from trainmover_simulator.sizing.history import Repair, Share, simulate
from trainmover_simulator.systems import SYSTEMS

ALONE = Demand(machines=64, failure_s=50 * DAY_S, repair_s=DAY_S)
GROUPS = replace(ALONE, group=8, group_share=0.05)
MOVES = replace(ALONE, move_s=DAY_S)
SMALL = Demand(machines=8, failure_s=8 * DAY_S, repair_s=DAY_S / 4)


def agrees(formula: float, drawn: Share, *, within: float = 0.0) -> bool:
    """Whether a history allows the figure: twice the interval that has 95 of 100."""
    return abs(formula - drawn.mean) <= 2 * drawn.error + within


# -- against histories ----------------------------------------------------------------------------


@pytest.mark.parametrize("repair", ["exponential", "constant"])
@pytest.mark.parametrize(
    ("demand", "standbys", "reserve"),
    [
        pytest.param(ALONE, 0, 0, id="no standbys"),
        pytest.param(ALONE, 3, 0, id="short now and then"),
        pytest.param(ALONE, 5, 0, id="seldom short"),
        pytest.param(MOVES, 5, 3, id="moves and a reserve"),
        pytest.param(SMALL, 1, 0, id="a small job"),
    ],
)
def test_a_drawn_history_has_the_figures_of_the_formula(
    demand: Demand, standbys: int, reserve: int, repair: Repair
) -> None:
    found = figures(demand, standbys, reserve=reserve)
    drawn = simulate(demand, standbys, reserve=reserve, repair=repair, seed=49)
    assert agrees(found.failures_covered, drawn.failures_covered)
    assert agrees(found.machines_covered, drawn.machines_covered)
    assert agrees(found.time_filled, drawn.time_filled)
    assert agrees(found.wait_s, drawn.wait_s)
    every_s = drawn.days * DAY_S / drawn.shortages
    # The count of shortages is nearly a Poisson one.
    assert found.shortage_every_s == pytest.approx(every_s, rel=4 / math.sqrt(drawn.shortages))


@pytest.mark.parametrize("repair", ["exponential", "constant"])
@pytest.mark.parametrize("standbys", [6, 12, 16])
def test_groups_are_within_a_percent_of_a_drawn_history(standbys: int, repair: Repair) -> None:
    found = figures(GROUPS, standbys)
    drawn = simulate(GROUPS, standbys, repair=repair, failures=30_000, seed=1)
    assert agrees(found.failures_covered, drawn.failures_covered, within=0.002)
    assert agrees(found.machines_covered, drawn.machines_covered, within=0.005)
    assert agrees(found.time_filled, drawn.time_filled, within=0.002)


def test_the_formula_has_the_figures_of_the_replay_that_fetches_machines_elsewhere() -> None:
    model = FailureModel(name="test", source="", machine_day=1 / 50, racks=0.05)
    scenario = Scenario("test", (), infra_s=120.0, refill_s=DAY_S - 600, warm_s=600.0)
    # Neighbours that are lost together would end the job, which the formula knows nothing of.
    system = replace(SYSTEMS["trainmover"], restart_s=0.0)
    job = Job(gpus=64 * 8, days=4_000.0, standbys=6)
    members, standbys = histories(model, scenario, job, seed=3)
    outcome = replay(system, scenario, job, members, of_standbys=standbys)
    found = figures(replace(GROUPS, elsewhere_s=120.0), 6)
    covered = 1 - outcome.standbys_short / len(members)
    assert found.failures_covered == pytest.approx(covered, abs=0.02)
    assert found.shortage_s == pytest.approx(120.0)


# -- against textbooks ----------------------------------------------------------------------------


def test_one_machine_without_standbys_is_up_as_long_as_it_runs_of_a_round() -> None:
    found = figures(Demand(machines=1, failure_s=3.0, repair_s=1.0), 0)
    assert found.time_filled == pytest.approx(0.75)
    assert found.failures_covered == 0.0
    assert found.shortage_every_s == pytest.approx(4.0)
    assert found.shortage_s == pytest.approx(1.0)
    assert found.wait_s == pytest.approx(1.0)


def test_machines_without_standbys_are_away_independently_of_each_other() -> None:
    found = figures(Demand(machines=5, failure_s=9.0, repair_s=1.0), 0)
    assert found.time_filled == pytest.approx(0.9**5)


def test_with_machines_from_elsewhere_it_is_erlangs_loss_formula() -> None:
    # Standbys fail, too, so the load is only that of the slots where these are far more.
    many = Demand(machines=10**6, failure_s=1e6 / 2.0, repair_s=1.0, elsewhere_s=0.1)
    terms = [2.0**n / math.factorial(n) for n in range(5)]
    assert figures(many, 4).failures_covered == pytest.approx(1 - terms[4] / sum(terms), rel=1e-4)


def test_a_group_alone_is_a_pool_of_groups() -> None:
    """Kaufman and Roberts: where all that leaves is groups, they are counted by groups."""
    groups = Demand(
        machines=10**6,
        failure_s=1e6 / 2.0,
        repair_s=1.0,
        group=4,
        group_share=1.0,
        elsewhere_s=0.1,
    )
    terms = [2.0**n / math.factorial(n) for n in range(4)]
    assert figures(groups, 12).failures_covered == pytest.approx(
        1 - terms[3] / sum(terms), rel=1e-3
    )


def test_a_failure_finds_less_than_time_says() -> None:
    found = figures(ALONE, 4)
    assert found.failures_covered == pytest.approx(0.955, abs=0.001)
    assert found.time_filled == pytest.approx(0.989, abs=0.001)


# -- what is advised ------------------------------------------------------------------------------


DEMANDS = st.builds(
    lambda machines, days, hours, share: Demand(
        machines=machines,
        failure_s=days * DAY_S,
        repair_s=hours * 3_600,
        group=min(machines, 8),
        group_share=share,
    ),
    machines=st.integers(1, 500),
    days=st.floats(1, 400),
    hours=st.floats(0.1, 200),
    share=st.sampled_from([0.0, 0.02, 0.5]),
)


@given(
    demand=DEMANDS,
    target=st.sampled_from([0.5, 0.99, 0.99999]),
    of=st.sampled_from(get_args(Target)),
)
@settings(max_examples=60, deadline=None)
def test_what_is_advised_holds_the_target_and_one_fewer_does_not(
    demand: Demand, target: float, of: Target
) -> None:
    count = needed(demand, target, of=of)
    found = figures(demand, count)
    assert found.holds(target, of)
    assert count == 0 or not figures(demand, count - 1).holds(target, of)
    assert all(0 <= one <= 1 for one in (found.failures_covered, found.time_filled))


def test_more_standbys_cover_more_and_cost_more() -> None:
    rows = [figures(GROUPS, count) for count in range(30)]
    for fewer, more in pairwise(rows):
        assert more.failures_covered > fewer.failures_covered
        assert more.time_filled > fewer.time_filled
        assert more.lost_hours < fewer.lost_hours
        assert more.standby_hours == fewer.standby_hours + 168


def test_a_rack_that_fails_together_needs_far_more_than_its_machines_alone() -> None:
    as_many_alone = replace(ALONE, failure_s=ALONE.failure_s / GROUPS.lost_at_once)
    assert needed(GROUPS, 0.999) > 1.5 * needed(as_many_alone, 0.999)


def test_the_reserve_is_the_smallest_that_holds_the_target() -> None:
    count = needed(MOVES, 0.999)
    reserve = reserve_for(MOVES, count, 0.999)
    assert 0 < reserve < count
    assert figures(MOVES, count, reserve=reserve).failures_covered >= 0.999
    assert figures(MOVES, count, reserve=reserve - 1).failures_covered < 0.999
    assert reserve_for(MOVES, count - 1, 0.999) == count - 1, "all of them, where it is not held"


def test_more_of_a_reserve_holds_more_moves_and_covers_more_failures() -> None:
    rows = [figures(MOVES, 6, reserve=reserve) for reserve in range(7)]
    shares = [row.moves_at_once for row in rows]
    assert shares == sorted(shares, key=lambda one: -(one or 0))
    assert shares[-1] == 0
    assert [r.failures_covered for r in rows] == sorted(r.failures_covered for r in rows)


@pytest.mark.parametrize("demand", [ALONE, GROUPS, MOVES])
def test_the_cheapest_is_that_of_all(demand: Demand) -> None:
    every = [advised(demand, count, 0.99).hours for count in range(31)]
    assert cheapest(demand, 0.99, most=30) == every.index(min(every))


def test_where_there_are_many_the_cheapest_is_near_the_best_of_all() -> None:
    demand = Demand(machines=5_000, failure_s=100 * DAY_S, repair_s=4 * DAY_S)
    found = cheapest(demand, 0.999, most=400)
    best = min(figures(demand, count).hours for count in range(190, 260))
    assert figures(demand, found).hours == pytest.approx(best)


def test_thousands_away_are_summed_without_overflow() -> None:
    demand = Demand(machines=100_000, failure_s=100 * DAY_S, repair_s=5 * DAY_S)
    assert demand.load == pytest.approx(5_000)
    found = figures(demand, 5_500)
    assert 0.99 < found.failures_covered < 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"machines": 0}, "at least one machine"),
        ({"failure_s": 0.0}, "between failures is 0 s"),
        ({"repair_s": math.inf}, "of a repair is inf s"),
        ({"group": 65}, "a group of 1 to 64"),
        ({"group_share": 1.5}, "from 0 to 1"),
        ({"failure_s": 1.0}, "Look at the units"),
    ],
)
def test_a_demand_that_cannot_be_is_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(ALONE, **changes)  # type: ignore[arg-type]


def test_a_target_that_no_number_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="no share"):
        needed(ALONE, 1.0)
