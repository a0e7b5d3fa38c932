"""The model and the planner's real core decide the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from trainmover_simulator.failures import Failure, FailureModel, draw
from trainmover_simulator.planner_run import Decisions, decide
from trainmover_simulator.replay import Job, Outcome, replay
from trainmover_simulator.scenario import MEASURED
from trainmover_simulator.systems import SYSTEMS

ROUGH = FailureModel("rough", "for tests", 0.5, planned=0.2, racks=0.05)
SURROUNDINGS = replace(MEASURED, step_s=0.0, checkpoint_s=0.0)
"""The core knows nothing of steps that are done again, nor of checkpoints."""
MOVER = SYSTEMS["trainmover"]


def both(
    failures: list[Failure] | tuple[Failure, ...], standbys: int, machines: int = 16
) -> tuple[Decisions, Outcome]:
    job = Job(8 * machines, 7, standbys=standbys)
    return decide(MOVER, SURROUNDINGS, job, failures), replay(MOVER, SURROUNDINGS, job, failures)


def still_s(outcome: Outcome) -> float:
    return (1 - outcome.ettr) * outcome.days * 86_400


def apart(failures: tuple[Failure, ...], by_s: float) -> list[Failure]:
    kept: list[Failure] = []
    for one in failures:
        if not kept or one.at_s - kept[-1].at_s >= by_s:
            kept.append(one)
    return kept


@pytest.mark.parametrize("standbys", [1, 2, 4, 8, 12])
@pytest.mark.parametrize("seed", range(3))
def test_apart_failures_are_decided_alike(standbys: int, seed: int) -> None:
    """Apart by more than a standby's refill: the same, to the second."""
    history = apart(draw(ROUGH, machines=16, days=6, seed=seed), 4_000)
    assert len(history) > 20
    assert {one.kind for one in history} >= {"machine", "planned"}
    decisions, outcome = both(history, standbys)
    taken = decisions.recoveries + decisions.moves
    assert taken + decisions.restarts == outcome.interruptions
    assert decisions.restarts == outcome.restarts == sum(one.kind == "rack" for one in history)
    assert decisions.moves == sum(one.kind == "planned" for one in history)
    assert decisions.standbys_used == outcome.standbys_used
    assert decisions.fetched == outcome.standbys_short
    assert decisions.still_s == pytest.approx(still_s(outcome), rel=1e-3)


@pytest.mark.parametrize("standbys", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_failures_at_any_distance_are_decided_nearly_alike(standbys: int, seed: int) -> None:
    """The core takes a standby that is still warming; the model waits for the scheduler."""
    history = draw(replace(ROUGH, racks=0.0), machines=16, days=6.5, seed=seed)
    decisions, outcome = both(history, standbys)
    taken = decisions.recoveries + decisions.moves
    assert taken == pytest.approx(outcome.interruptions, abs=2)
    assert decisions.standbys_used == pytest.approx(outcome.standbys_used, abs=2)
    assert decisions.still_s == pytest.approx(still_s(outcome), rel=0.1)


@pytest.mark.parametrize("standbys", [0, 1, 3])
def test_several_machines_are_announced_together(standbys: int) -> None:
    decisions, outcome = both([Failure(1_000.0, (3, 4, 9), "planned")], standbys=standbys)
    assert (decisions.moves, outcome.interruptions) == (1, 1)
    assert decisions.standbys_used == outcome.standbys_used == standbys
    assert decisions.still_s == pytest.approx(16.6, abs=0.01)


def test_machines_that_die_together_are_one_recovery() -> None:
    rack = [Failure(1_000.0, (0, 1, 2, 3), "rack")]
    decisions, outcome = both(rack, standbys=8)
    assert (decisions.recoveries, decisions.standbys_used) == (1, 4)
    assert (outcome.interruptions, outcome.standbys_used) == (1, 4)
    assert decisions.still_s == pytest.approx(41.1, abs=0.01)


@pytest.mark.parametrize(
    ("slots", "restarts"),
    [(range(4), 0), (range(5), 1), (range(0, 16, 2), 0), (range(8), 1), ((0, 1, 13, 14, 15), 1)],
)
def test_neighbours_that_keep_each_others_state_end_the_job(
    slots: Sequence[int], restarts: int
) -> None:
    decisions, outcome = both([Failure(1_000.0, tuple(slots), "rack")], standbys=8)
    assert decisions.restarts == outcome.restarts == restarts
    assert decisions.still_s == pytest.approx(still_s(outcome), abs=0.01)
