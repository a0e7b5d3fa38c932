"""The slowest machine of an interval is named where a policy rebalances, and only then."""

from __future__ import annotations

import functools
import json

import pytest

from trainmover.detection import Evidence
from trainmover.events.operator import PolicyChanged
from trainmover.policy import Policy, Rebalance
from trainmover_detector.detectors.straggler import StragglerDetector

EVERY_S = 20.0
SLOW = 1.1
"""A tenth more work: too little for the straggler detector where it was so from the beginning."""


@pytest.fixture
def job_class(job_class):
    """Jobs whose collectives do not overlap with work: lateness is the share of work more."""
    return functools.partial(job_class, buckets=1)


def declare(detector, *, now_s: float = 0.0, rebalance: Rebalance | None) -> None:
    fact = PolicyChanged(policy=Policy(rebalance=rebalance), source="policy.yaml")
    assert not [*detector.notice(Evidence(fact, None, now_s))]


def fresh(membership, *, at_most: int = 1, least: float = 0.03) -> StragglerDetector:
    detector = StragglerDetector()
    detector.membership_changed(membership)
    declare(detector, rebalance=Rebalance(every_s=EVERY_S, at_most=at_most, least=least))
    return detector


def run(detector, job, seconds: float, *, since_s: float = 0.0) -> list:
    """(second, finding) of everything the detector says, ``since_s`` later than the job's time."""
    said = []
    until_s = job.now_s + seconds
    while job.now_s < until_s:
        for window in job.one_step():
            said += [(job.now_s, finding) for finding in detector.observe(window)]
        said += [(job.now_s, finding) for finding in detector.tick(since_s + job.now_s)]
    return said


def test_a_machine_that_was_slow_from_the_beginning_is_named_once_an_interval(
    membership_of, job_class
):
    job = job_class(membership_of(), slow={2: SLOW})
    said = run(fresh(job.membership), job, 3 * EVERY_S + 1)
    assert [(each.kind, each.machine, each.advice) for _, each in said] == [
        ("slowest", "w-2", "move")
    ] * 3
    assert [round(at_s / EVERY_S, 1) for at_s, _ in said] == [1.0, 2.0, 3.0]
    evidence = dict(said[0][1].evidence)
    assert 0.05 < evidence["lateness"] < 0.11
    assert evidence["lateness_of_next"] < 0.01
    assert evidence["steps"] > 50
    assert "w-2 is the slowest: rank 2 makes its peers wait" in said[0][1].summary
    json.dumps(evidence, allow_nan=False)


def test_nobody_asks_nobody_is_named(membership_of, job_class):
    job = job_class(membership_of(), slow={2: SLOW})
    detector = StragglerDetector()
    detector.membership_changed(job.membership)
    assert run(detector, job, 3 * EVERY_S) == []
    declare(detector, now_s=job.now_s, rebalance=None)
    assert run(detector, job, 3 * EVERY_S) == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3, 0.6])
def test_equal_machines_are_never_named(membership_of, job_class, seed, noise):
    job = job_class(membership_of(), seed=seed, noise=noise)
    assert run(fresh(job.membership), job, 4 * EVERY_S) == []


def test_who_is_slower_by_less_than_asked_is_not(membership_of, job_class):
    job = job_class(membership_of(), slow={2: SLOW})
    assert run(fresh(job.membership, least=0.2), job, 2 * EVERY_S) == []


def test_as_many_as_may_be_exchanged_the_slowest_first(membership_of, job_class):
    slow = {1: 1.08, 3: 1.12, 5: 1.1}
    for at_most, expected in ((1, ["w-3"]), (2, ["w-3", "w-5"]), (4, ["w-3", "w-5", "w-1"])):
        job = job_class(membership_of(8), slow=slow)
        said = run(fresh(job.membership, at_most=at_most), job, EVERY_S + 1)
        named = [each.machine for _, each in said if each.kind == "slowest"]
        assert named == expected


def test_a_machine_of_several_ranks_is_named_by_its_slowest(membership_of, job_class):
    job = job_class(membership_of(3, ranks=2), slow={2: 1.06, 3: SLOW})
    said = run(fresh(job.membership), job, EVERY_S + 1)
    assert [(each.machine, each.rank) for _, each in said] == [("w-1", 3)]


def test_who_was_slow_for_a_part_of_the_interval_is_not_slow(membership_of, job_class):
    job = job_class(membership_of(), slow={2: SLOW})
    detector = fresh(job.membership)
    said = run(detector, job, 0.7 * EVERY_S)
    job.slow = {}
    assert [each for _, each in said + run(detector, job, 0.4 * EVERY_S) if not each.closed] == []


def test_it_is_withdrawn_when_another_is_slower_or_nobody_is(membership_of, job_class):
    job = job_class(membership_of(), slow={2: SLOW})
    detector = fresh(job.membership)
    run(detector, job, EVERY_S + 1)
    job.slow = {}
    said = run(detector, job, EVERY_S)
    assert [(each.machine, each.closed) for _, each in said] == [("w-2", True)]
    job.slow = {2: SLOW}
    run(detector, job, EVERY_S)
    declare(detector, now_s=job.now_s, rebalance=None)
    (said,) = run(detector, job, EVERY_S)
    assert (said[1].machine, said[1].closed) == ("w-2", True)


def test_a_new_membership_is_measured_anew_and_the_looks_keep_their_times(membership_of, job_class):
    job = job_class(membership_of(), slow={2: SLOW})
    detector = fresh(job.membership)
    run(detector, job, 0.9 * EVERY_S)
    moved = job_class(membership_of(epoch=2, names=["w-0", "w-1", "w-9", "w-3"]), seed=1)
    moved.step, moved.now_s = job.step, job.now_s
    detector.membership_changed(moved.membership)
    assert run(detector, moved, 2.0 * EVERY_S) == []
    moved.slow = {0: SLOW}
    said = run(detector, moved, 2.0 * EVERY_S)
    assert {each.machine for _, each in said} == {"w-0"}


def test_a_look_waits_for_steps_enough(membership_of, job_class):
    job = job_class(membership_of(), slow={2: SLOW}, compute_s=2.0)
    said = run(fresh(job.membership), job, 3 * EVERY_S)
    (at_s, finding), *_ = said
    assert finding.evidence["steps"] >= 16
    assert at_s > 1.5 * EVERY_S


def test_of_many_steps_some_are_kept_from_all_of_the_interval(membership_of, job_class):
    job = job_class(membership_of(), slow={2: SLOW}, compute_s=0.02, comm_s=0.004)
    (_, finding), *_ = run(fresh(job.membership), job, EVERY_S + 1)
    assert finding.evidence["steps"] > 600
    assert finding.evidence["from_step"] < 60
    assert finding.evidence["to_step"] > 600
