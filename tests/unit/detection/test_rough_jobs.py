"""The second kind of simulated jobs: what its noise is like, and that detectors stand it."""

from __future__ import annotations

import numpy as np
import pytest

from trainmover.detection.evaluation.replay import Player
from trainmover.detection.evaluation.scoring import score
from trainmover.detection.registry import class_of, find, make
from trainmover.testing.rough_jobs import Rough, RoughJob, healthy_rough_job, troubled_rough_job
from trainmover.testing.rough_jobs.work import RoughWork
from trainmover.testing.simulated_jobs import Injection, Shape, label_of

DETECTORS = ("degraded", "external", "hang", "links", "liveness", "numeric", "straggler")
CALM = Rough(
    spread=0.002, stalls=0.0, wander=0.0, variation=0.01, log_every=0, refill_every=0, lost=0.0
)


def found(job: RoughJob, *, steps: int) -> list[tuple[str, str | None]]:
    points = find()
    player = Player({name: make(class_of(points[name])) for name in DETECTORS})
    for frame in job.frames(steps=steps):
        job.tell(player, frame)
    assert not player.errors, player.errors
    scores = score([label_of(truth) for truth in job.truths], player.findings)
    assert all(each.recall == each.culprit_accuracy == 1 for each in scores.values()), scores
    return [(one.finding.kind, one.finding.machine) for one in player.findings]


def computing(rough: Rough, steps: int = 2000) -> np.ndarray:
    work = RoughWork(
        Shape(4), rough, epochs_at=(), step_s=1.0, network=0.1, rng=np.random.default_rng(1)
    )
    return np.array([work.of_step(step, ()).compute_s for step in range(steps)])


def test_the_same_seed_makes_the_same_job_and_batches_come_in_order() -> None:
    def played() -> list[tuple[float, str, bytes]]:
        job, _ = troubled_rough_job("compute_2x", 3)
        return [
            (window.received_s, window.machine, window.more.pack())
            for frame in job.frames(steps=30)
            for window in frame.windows
        ]

    first = played()
    assert first == played()
    times = [at_s for at_s, *_ in first]
    assert times == sorted(times)


def test_its_noise_has_tails_that_a_normal_one_has_not() -> None:
    calm = Rough(stalls=0.0, wander=0.0, variation=0.0, swing=0.0, log_every=0, checkpoint_every=0)
    far = computing(calm)
    far = np.abs(far - np.median(far)) / np.median(np.abs(far - np.median(far)))
    assert (far > 6).mean() > 0.001, "of a normal one, 0.00005 are"
    stalled = computing(Rough(stalls=0.02, stall_tail=1.2))
    assert stalled.max() > 3 * np.median(stalled) / 2
    assert stalled.max() < 3 * np.median(stalled), "more than a step is a hang"


@pytest.mark.parametrize(
    ("trouble", "kind", "machine"),
    [
        (Injection("compute", 64, (2,), 1.3), "straggler", "w-2"),
        (Injection("loader", 64, (1,), 1.6), "straggler", "w-1"),
        (Injection("hang", 64, (3,)), "hang", "w-3"),
        (Injection("silence", 64, (2,)), "machine_failed", "w-2"),
        (Injection("nan", 64, (3,), 2.0), "numeric", "w-3"),
        (Injection("corruption", 64, (2,)), "numeric", "w-2"),
    ],
)
def test_a_culprit_is_named_and_nobody_else(trouble, kind, machine) -> None:
    job = RoughJob(Shape(4), injections=[trouble], seed=4)
    assert set(found(job, steps=120)) == {(kind, machine)}


def test_a_machine_that_uploads_after_each_checkpoint_is_no_straggler() -> None:
    noise = Rough(checkpoint_every=25, evaluate_every=40, afterwards=0.3, stalls=0.0)
    assert found(RoughJob(Shape(6), rough=noise, seed=2), steps=250) == []


def test_a_straggler_is_found_between_checkpoints() -> None:
    job = RoughJob(Shape(6), rough=CALM, injections=[Injection("compute", 70, (4,), 1.3)], seed=2)
    assert found(job, steps=110) == [("straggler", "w-4")]


def test_a_healthy_one_is_left_alone() -> None:
    assert found(healthy_rough_job(11), steps=150) == []
