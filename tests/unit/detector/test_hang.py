"""How long a job may stand still, and what it learns that from."""

from __future__ import annotations

import numpy as np
import pytest

from trainmover.detection import CollectiveWindow, Finding
from trainmover.detection.evaluation.replay import Player
from trainmover.job.topology import Membership
from trainmover.telemetry.records import PULSE, RECORD, STEP, Phase, Sections
from trainmover.testing.rough_jobs import Rough, RoughJob
from trainmover.testing.simulated_jobs import Healthy, Injection, Shape, SimulatedJob
from trainmover_detector.detectors.hang import HangDetector
from trainmover_detector.measures.steps import Pace


class Job:
    """Machines of one rank each, which say one after the other what they did."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.detector = HangDetector()
        self.detector.membership_changed(membership)
        self.now_s, self.step = 0.0, 0
        self.world = membership.layout.world_size

    def steps(self, count: int, duration_s: float, *, outside_s: dict[int, float] | None = None):
        """Steps of which every machine speaks, the last one first."""
        for _ in range(count):
            self.now_s += duration_s
            for rank in reversed(range(self.world)):
                row = np.zeros(1, STEP)
                row["rank"], row["step"] = rank, self.step
                row["duration_ns"] = int(duration_s * 1e9)
                row["outside_ns"] = int((outside_s or {}).get(rank, 0.0) * 1e9)
                self.say(rank, steps=row, pulses=self.pulse(rank, self.step + 1))
            self.step += 1

    def pulse(self, rank: int, step: int, *, age_s: float = 0.0) -> np.ndarray:
        row = np.zeros(1, PULSE)
        row["rank"], row["step"], row["phase"] = rank, step, Phase.BODY
        row["age_ns"], row["state"] = int(age_s * 1e9), ord("T") if age_s else 0
        return row

    def say(self, rank: int, **sections: np.ndarray) -> list[Finding]:
        window = CollectiveWindow(
            machine=f"w-{rank}",
            epoch=self.membership.epoch,
            membership=self.membership,
            records=np.zeros(0, RECORD),
            received_s=self.now_s,
            more=Sections(**sections),
            groups={1: (range(self.world),)},
        )
        return list(self.detector.observe(window))

    def freeze(self, frozen: int, seconds: float) -> list[Finding]:
        """Nobody moves: one process is stopped, the others wait for it."""
        found, began_s = [], self.now_s
        while self.now_s < began_s + seconds:
            self.now_s += 0.25
            for rank in range(self.world):
                there = np.zeros(int(rank != frozen), RECORD)
                there["rank"], there["group"], there["peer"] = rank, 1, -1
                there["duration_ns"] = int((self.now_s - began_s) * 1e9)
                age_s = self.now_s - began_s if rank == frozen else 0.0
                self.say(rank, open=there, pulses=self.pulse(rank, self.step, age_s=age_s))
            found += self.detector.tick(self.now_s)
        return found


@pytest.fixture
def job(membership_of) -> Job:
    one = Job(membership_of())
    one.steps(60, 0.2)
    return one


def test_a_step_with_a_frozen_process_does_not_make_the_next_hang_late(job) -> None:
    patience_s = job.detector.patience_s(alive=True)
    found = job.freeze(2, 4.0)
    assert {one.machine for one in found} == {"w-2"}
    job.steps(1, 4.2)  # it goes on: every machine says how long that step took
    job.steps(20, 0.2)
    assert job.detector.patience_s(alive=True) == patience_s


def test_one_rank_that_writes_a_checkpoint_does_not_make_steps_long(job) -> None:
    patience_s = job.detector.patience_s()
    job.steps(1, 40.0, outside_s={1: 39.8})
    job.steps(20, 0.2)
    assert job.detector.patience_s() == pytest.approx(patience_s)


def test_a_long_step_is_no_news_when_it_comes_again_a_thousand_steps_later(job) -> None:
    job.steps(1, 3.0)
    job.steps(1000, 0.2)
    assert job.detector.patience_s() >= 3.0


def test_what_the_first_steps_take_is_forgotten_once_there_are_enough() -> None:
    pace = Pace(warm_up=3, young=24)
    for step in range(24):
        assert pace.is_young
        pace.add(30.0 if step < 3 else 0.2)
    assert not pace.is_young
    assert pace.longest_s == 0.2
    assert pace.usual_s(0.9) == pytest.approx(0.2)


def latency_s(job: SimulatedJob) -> float:
    """From the step in which a process hangs until it is named."""
    player = Player({"hang": HangDetector()})
    for frame in job.frames(steps=200):
        job.tell(player, frame)
    (found, *_) = player.findings
    (truth,) = job.truths
    assert found.finding.machine == truth.machine
    return found.at_s - truth.since_s


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_lives_and_hangs_is_named_within_two_seconds(seed) -> None:
    hang = Injection("hang", 64, (seed,))
    noise = Healthy(jitter=0.02, lost=0.02)
    assert latency_s(SimulatedJob(step_s=0.2, healthy=noise, injections=[hang], seed=seed)) <= 2.0


def test_long_checkpoints_of_unequal_length_do_not_make_it_later() -> None:
    noise = Rough(checkpoint_every=20, checkpoint_s=30.0, stalls=0.0, log_every=0, refill_every=0)
    hang = Injection("hang", 64, (2,))
    assert latency_s(RoughJob(Shape(4), step_s=1.0, rough=noise, injections=[hang], seed=1)) <= 3.5
