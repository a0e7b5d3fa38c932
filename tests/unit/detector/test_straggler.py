from __future__ import annotations

import json

import numpy as np
import pytest

from trainmover_detector.detectors.straggler import StragglerDetector
from trainmover_detector.measures.timing import StepTable


def run(detector, job, steps):
    """(step, finding) of everything the detector says."""
    said = []
    for _ in range(steps):
        for window in job.one_step():
            said += [(job.step, finding) for finding in detector.observe(window)]
    return said


def fresh(membership):
    detector = StragglerDetector()
    detector.membership_changed(membership)
    return detector


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3, 0.6])
def test_healthy_ranks_are_left_alone_however_noisy(membership_of, job_class, seed, noise):
    job = job_class(membership_of(), seed=seed, noise=noise)
    assert run(fresh(job.membership), job, 200) == []


@pytest.mark.parametrize("slots", [2, 4, 8])
@pytest.mark.parametrize("noise", [0.02, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_a_rank_twice_as_slow_is_named_within_ten_steps(
    membership_of, job_class, slots, noise, seed
):
    job = job_class(membership_of(slots), seed=seed, noise=noise)
    detector = fresh(job.membership)
    assert run(detector, job, 20) == []
    job.slow = {1: 2.0}
    said = run(detector, job, 12)
    assert said, "not named within 12 steps"
    step, finding = said[0]
    assert step - 20 <= 10
    assert (finding.kind, finding.machine, finding.rank) == ("straggler", "w-1", 1)
    assert {finding.machine for _, finding in said} == {"w-1"}
    assert finding.evidence["lateness"] > 0.25
    assert 0.15 < finding.evidence["step_s"] < 0.9
    assert "rank 1" in finding.summary
    json.dumps(dict(finding.evidence), allow_nan=False)


@pytest.mark.parametrize("seed", range(3))
def test_a_fifth_slower_needs_patience_and_a_quiet_job(membership_of, job_class, seed):
    job = job_class(membership_of(), seed=seed, noise=0.03, slow={2: 1.2})
    said = run(fresh(job.membership), job, 40)
    assert said[0][1].machine == "w-2"
    assert {finding.machine for _, finding in said} == {"w-2"}


def test_two_slow_machines_are_both_named(membership_of, job_class):
    job = job_class(membership_of(8), slow={1: 2.0, 5: 2.2})
    said = run(fresh(job.membership), job, 30)
    assert {finding.machine for _, finding in said} == {"w-1", "w-5"}


def test_everybody_slow_alike_names_nobody(membership_of, job_class):
    job = job_class(membership_of())
    detector = fresh(job.membership)
    run(detector, job, 20)
    job.slow = dict.fromkeys(range(4), 2.0)
    assert run(detector, job, 60) == []


def test_one_slow_rank_of_several_names_its_machine_and_it(membership_of, job_class):
    job = job_class(membership_of(2, ranks=4), slow={6: 2.0})
    said = run(fresh(job.membership), job, 30)
    assert {(v.machine, v.rank) for _, v in said} == {("w-1", 6)}


def test_a_whole_slow_machine_of_eight_ranks(membership_of, job_class):
    job = job_class(membership_of(2, ranks=8), slow=dict.fromkeys(range(8, 16), 2.0))
    said = run(fresh(job.membership), job, 30)
    assert {v.machine for _, v in said} == {"w-1"}


def test_quiet_after_a_membership_change(membership_of, job_class):
    job = job_class(membership_of(), slow={1: 3.0})
    detector = fresh(job.membership)
    assert run(detector, job, 11) == []
    assert run(detector, job, 9) != []
    moved = job_class(membership_of(epoch=2, names=["w-0", "w-9", "w-2", "w-3"]), seed=1)
    moved.step = job.step
    detector.membership_changed(moved.membership)
    assert run(detector, moved, 60) == []


def test_a_pause_and_a_single_late_step_are_not_a_straggler(membership_of, job_class):
    job = job_class(membership_of())
    detector = fresh(job.membership)
    run(detector, job, 20)
    for _ in range(10):
        job.slow = {1: 6.0}
        assert run(detector, job, 1) == []
        job.slow = {}
        assert run(detector, job, 4) == []


def test_it_is_taken_back_when_the_rank_keeps_up_again(membership_of, job_class):
    job = job_class(membership_of(), slow={1: 2.0})
    detector = fresh(job.membership)
    assert run(detector, job, 30)
    job.slow = {}
    said = run(detector, job, 60)
    assert [v.machine for _, v in said if v.closed] == ["w-1"]


def test_lost_and_repeated_batches_do_no_harm(membership_of, job_class):
    rng = np.random.default_rng(5)
    job = job_class(membership_of(), slow={1: 2.0})
    detector, said = fresh(job.membership), []
    for _ in range(60):
        windows = [w for w in job.one_step() if rng.random() > 0.05]
        for window in windows + windows[:1]:
            said += detector.observe(window)
    assert {v.machine for v in said} == {"w-1"}


def test_very_short_steps_are_not_judged_by_a_blink(membership_of, job_class):
    job = job_class(membership_of(), compute_s=0.002, comm_s=0.0005, slow={1: 2.0})
    said = run(fresh(job.membership), job, 60)
    assert said == [], "60 steps are 0.3 s"
    assert {v.machine for _, v in run(fresh(job.membership), job, 400)} == {"w-1"}


def test_old_epochs_are_not_looked_at(membership_of, job_class):
    job = job_class(membership_of(), slow={1: 2.0})
    detector = StragglerDetector()
    detector.membership_changed(membership_of(epoch=2))
    assert run(detector, job, 60) == []


def test_overlapping_collectives_are_counted_once(membership_of, job_class):
    job = job_class(membership_of(2), noise=0.0, buckets=8)
    table, rows = StepTable(2), []
    for _ in range(3):
        for window in job.one_step():
            rows += table.add(window.records)
    assert [row.step for row in rows] == [1, 2]
    for row in rows:
        assert (row.wait_s < row.step_s).all()


def test_memory_is_bounded_when_a_rank_never_reports(membership_of, job_class):
    job = job_class(membership_of())
    detector = fresh(job.membership)
    for _ in range(300):
        for window in list(job.one_step())[:3]:
            detector.observe(window)
    assert len(detector._table._cells) <= 65
