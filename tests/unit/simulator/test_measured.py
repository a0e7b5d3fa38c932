"""A job's facts give the times that it had, and the model goes on with them."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from tests.unit.factories import membership_of
from tests.unit.simulator.own_times import (
    DAY,
    MOVER,
    SLOTS,
    TIMES,
    broken,
    facts_of,
    history,
    step,
)

from trainmover.errors import ConfigError
from trainmover.events import migration
from trainmover_simulator.failures import Failure, FailureModel
from trainmover_simulator.jobs.measured import Model, model
from trainmover_simulator.jobs.observed import Run, observe
from trainmover_simulator.replay import Job, replay
from trainmover_simulator.systems import SYSTEMS


def observed(failures: list[Failure], *, standbys: int = 2) -> Run:
    """A day of it: the last thing that is said is a step."""
    facts = facts_of(replace(DAY, standbys=standbys), failures)
    return observe([*facts, step(facts[0][0] + 86_400, 1)])


def test_a_run_gives_the_times_that_it_had() -> None:
    failures = history()
    run = observed(failures)
    assert len(run.interruptions) == len(failures) > 30
    assert [one.planned for one in run.interruptions] == [one.kind == "planned" for one in failures]
    assert [one.slots for one in run.interruptions] == [one.slots for one in failures]
    assert (run.layout.slots, run.standbys) == (SLOTS, 2)
    found = model(run)
    assert found.scenario.detect_s == pytest.approx(TIMES.detect_s)
    assert found.scenario.warm_s == pytest.approx(TIMES.warm_s)
    assert found.scenario.refill_s == pytest.approx(TIMES.refill_s, abs=TIMES.detect_s + 3.1)
    for system in found.systems.values():
        assert system.planned_s == pytest.approx(MOVER.planned_s)
    assert found.systems["trainmover"].standby_s == pytest.approx(MOVER.standby_s)
    assert found.systems["trainmover-cold"].standby_s is None


def test_a_wait_for_a_machine_is_no_part_of_the_switch() -> None:
    run = observed([Failure(1_000.0, (1,)), Failure(1_100.0, (2,))], standbys=1)
    assert [one.warm for one in run.interruptions] == [True, False]
    assert [one.waited_s for one in run.interruptions] == [0.0, pytest.approx(90.0)]
    found = model(run)
    assert found.scenario.infra_s == pytest.approx(TIMES.infra_s)
    assert found.systems["trainmover"].crash_s == pytest.approx(MOVER.crash_s)
    assert found.systems["trainmover"].standby_s == pytest.approx(MOVER.standby_s)


def test_half_a_run_foretells_the_other_half() -> None:
    failures = history(apart_s=100.0)  # now and then no standby is warm
    run = observed(failures)
    middle = (run.begin_s + run.end_s) / 2
    found = model(run.between(0.0, middle))
    later = run.between(middle, math.inf)
    job = Job(DAY.gpus, later.seconds / 86_400, standbys=2)
    ahead = [
        Failure(one.at_s - middle, one.slots, "planned" if one.planned else "machine")
        for one in later.interruptions
    ]
    outcome = replay(found.systems["trainmover"], found.scenario, job, ahead)
    assert outcome.interruptions == len(later.interruptions) > 20
    real = [one.pause_s for one in later.interruptions]
    assert statistics.median(outcome.pauses_s) == pytest.approx(statistics.median(real), rel=0.05)
    assert 1 - outcome.ettr == pytest.approx(sum(real) / later.seconds, rel=0.2)


def rates(run: Run) -> FailureModel:
    found: Model = model(run)
    assert found.failures is not None
    return found.failures


def test_few_failures_say_how_little_they_say() -> None:
    run = observed([Failure(3_600.0 * hour, (hour,)) for hour in range(1, 6)])
    assert rates(run).machine_day == pytest.approx(5 / SLOTS, rel=0.01)
    # Exact bounds of the mean of a Poisson variable that was 5: 1.970 and 10.513.
    assert "(90 %: 0.25 to 1.3, if they come by chance)" in rates(run).source
    assert rates(run).planned == 0.0


def test_what_was_not_seen_is_said_to_be_taken_from_elsewhere() -> None:
    found = model(observed([]))
    assert found.failures is None
    assert found.systems["trainmover"].standby_s == SYSTEMS["trainmover"].standby_s
    assert sum("not seen, taken as" in line for line in found.scenario.about) == 6


def test_steps_that_took_longer_are_lost_time() -> None:
    formed = (0.0, migration.JobFormed(membership=membership_of("node-0")))
    run = observe([formed, step(10.0, 10), step(10.1, 10), step(30.0, 20)])
    assert run.ettr == pytest.approx(0.5)
    assert run.between(0.0, 20.0).ettr is None
    assert observe([formed]).ettr is None


def test_a_job_that_has_not_formed_is_none() -> None:
    with pytest.raises(ConfigError, match="has not formed"):
        observe([(0.0, broken(epoch=1))])
