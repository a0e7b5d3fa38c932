from __future__ import annotations

from dataclasses import replace

import pytest

from trainmover_simulator.failures import DAY_S, MODELS, Failure, evenly
from trainmover_simulator.replay import Job, Outcome, histories, replay
from trainmover_simulator.scenario import MEASURED, PAPER, Scenario
from trainmover_simulator.systems import SYSTEMS

QUIET = Scenario("quiet", ())
DAY = Job(gpus=80, days=1.0)
RESTART, MOVER, COLD = (SYSTEMS[name] for name in ("restart", "trainmover", "trainmover-cold"))


def stood_still_s(outcome: Outcome) -> float:
    return (1 - outcome.ettr) * outcome.days * DAY_S


def test_nothing_fails() -> None:
    outcome = replay(COLD, QUIET, DAY, ())
    assert (outcome.ettr, outcome.wasted_gpu_hours, outcome.interruptions) == (1.0, 0.0, 0)


def test_downtime_is_what_a_formula_says() -> None:
    failures = evenly(mttf_s=1_620, planned=0.0, days=1)
    outcome = replay(COLD, PAPER, DAY, failures)
    assert stood_still_s(outcome) == pytest.approx(len(failures) * 50)


def test_a_restart_loses_what_came_after_the_checkpoint() -> None:
    scenario = replace(QUIET, checkpoint_s=1_000.0, detect_s=20.0, infra_s=120.0)
    outcome = replay(RESTART, scenario, DAY, [Failure(3_300.0, (0,))])
    assert stood_still_s(outcome) == pytest.approx(300 + 20 + 120 + RESTART.crash_s)


def test_a_failure_during_a_recovery_starts_it_again() -> None:
    both = [Failure(1_000.0, (0,)), Failure(1_010.0, (1,))]
    assert stood_still_s(replay(COLD, QUIET, DAY, both)) == pytest.approx(10 + 50)
    assert stood_still_s(replay(COLD, PAPER, DAY, both)) == pytest.approx(2 * 50)


def test_what_goes_on_after_the_end_does_not_count() -> None:
    outcome = replay(COLD, QUIET, DAY, [Failure(DAY_S - 10, (0,))])
    assert stood_still_s(outcome) == pytest.approx(10)


def test_a_standby_saves_its_part_and_costs_all_day() -> None:
    job = replace(DAY, standbys=1)
    outcome = replay(MOVER, QUIET, job, [Failure(1_000.0, (0,))])
    assert stood_still_s(outcome) == pytest.approx(21.1)
    assert outcome.standbys_used == 1
    assert outcome.standby_gpu_hours == pytest.approx(8 * 24)
    assert outcome.wasted_gpu_hours == pytest.approx(8 * 24 + 80 * 21.1 / 3_600)


def test_a_used_standby_is_missed_until_another_is_warm() -> None:
    scenario = replace(QUIET, infra_s=120.0, refill_s=500.0, warm_s=100.0)
    job = replace(DAY, standbys=1)
    for second_s, still_s, short in ((1_599.0, 21.1 + 170, 1), (1_600.0, 2 * 21.1, 0)):
        failures = [Failure(1_000.0, (0,)), Failure(second_s, (1,))]
        outcome = replay(MOVER, scenario, job, failures)
        assert stood_still_s(outcome) == pytest.approx(still_s)
        assert outcome.standbys_short == short


def test_a_rack_needs_as_many_standbys_as_it_has_machines() -> None:
    rack = [Failure(1_000.0, (0, 1, 2), "rack")]
    for standbys, still_s in ((2, 50.0), (3, 21.1)):
        outcome = replay(MOVER, QUIET, replace(DAY, standbys=standbys), rack)
        assert stood_still_s(outcome) == pytest.approx(still_s)
        assert outcome.standbys_used == standbys


def test_a_standby_that_fails_is_not_there() -> None:
    scenario = replace(QUIET, refill_s=3_600.0)
    lost = [Failure(500.0, (0,))]
    job = replace(DAY, standbys=1)
    outcome = replay(MOVER, scenario, job, [Failure(1_000.0, (0,))], of_standbys=lost)
    assert (outcome.standbys_used, outcome.standbys_short) == (0, 1)


def test_parcae_shrinks_and_grows() -> None:
    scenario = replace(QUIET, infra_s=120.0)
    outcome = replay(SYSTEMS["parcae"], scenario, DAY, [Failure(1_000.0, (0,))])
    assert outcome.interruptions == 2
    assert outcome.wasted_gpu_hours * 3_600 == pytest.approx(80 * 221 + 8 * 120)


def test_a_group_of_torchft_waits_while_others_train() -> None:
    scenario = replace(QUIET, infra_s=120.0)
    job = Job(gpus=4_096, days=1.0)
    outcome = replay(SYSTEMS["torchft"], scenario, job, [Failure(1_000.0, (0, 1))])
    assert outcome.wasted_gpu_hours * 3_600 == pytest.approx(4_096 * 10 + 1_024 * 420)


def test_no_more_than_everything_is_wasted() -> None:
    job = Job(gpus=8_000_000, days=1.0, standbys=1)
    members, standbys = histories(MODELS["rsc"], MEASURED, job, seed=1)
    for system in SYSTEMS.values():
        outcome = replay(system, MEASURED, job, members, of_standbys=standbys)
        assert 0 <= outcome.ettr <= 1
        assert outcome.wasted_gpu_hours <= 24 * (job.gpus + 8) * 1.000001


def test_one_standby_more_leaves_the_jobs_failures_as_they_are() -> None:
    one, two = (
        histories(MODELS["rsc"], MEASURED, Job(65_536, 7, standbys=n), seed=5) for n in (1, 2)
    )
    assert one[0] == two[0]


def test_a_plot_grows_to_the_whole_waste() -> None:
    job = Job(65_536, 7, standbys=4)
    members, standbys = histories(MODELS["rsc"], MEASURED, job, seed=5)
    outcome = replay(MOVER, MEASURED, job, members, of_standbys=standbys)
    hours = [wasted for _, wasted in outcome.curve]
    assert hours == sorted(hours)
    assert hours[-1] == pytest.approx(outcome.wasted_gpu_hours)
    assert len(hours) <= 202
