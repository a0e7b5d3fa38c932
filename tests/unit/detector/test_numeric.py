"""Whose NaN it is, whatever batches are lost."""

from __future__ import annotations

import pytest

from trainmover.detection import Finding
from trainmover.detection.evaluation.replay import Player
from trainmover.testing.simulated_jobs import Injection, Shape, SimulatedJob
from trainmover_detector.detectors.numeric import NumericDetector

FIRST = 20
CULPRIT = "w-2"


class Lossy(SimulatedJob):
    """Loses batches of some machines, so many in a row from the one with the first NaN on."""

    lost: dict[str, int]

    def _arrives(self, machine: str) -> bool:
        if self._step <= FIRST or not self.lost.get(machine):
            return True
        self.lost[machine] -= 1
        return False


def said(lost: dict[str, int], *, factor: float = 1.0) -> list[Finding]:
    job = Lossy(Shape(6), injections=[Injection("nan", FIRST, (2,), factor)], seed=3, step_s=0.45)
    job.lost = dict(lost)
    player = Player({"numeric": NumericDetector()})
    for frame in job.frames(steps=FIRST + 20):
        job.tell(player, frame)
    assert not player.errors
    assert not any(job.lost.values()), "they were lost"
    return [one.finding for one in player.findings]


@pytest.mark.parametrize("factor", [1.0, 2.0], ids=["in the loss", "in gradients alone"])
@pytest.mark.parametrize(
    "lost",
    [
        {},
        {"w-4": 1},
        {"w-0": 1, "w-1": 2, "w-5": 3},
        {CULPRIT: 1},
        {CULPRIT: 4},
        {CULPRIT: 2, "w-4": 3},
    ],
    ids=str,
)
def test_the_culprit_is_known_whatever_batch_is_lost(lost, factor) -> None:
    (finding,) = said(lost, factor=factor)
    assert (finding.machine, finding.rank) == (CULPRIT, 2)
    assert finding.evidence["step"] == FIRST


def test_ranks_that_were_not_heard_are_counted() -> None:
    (finding,) = said({"w-0": 1, "w-5": 1})
    assert finding.evidence["ranks_not_heard"] == 2
    assert "2 ranks were not heard" in finding.summary


def test_nobody_is_named_when_all_that_the_culprit_said_is_lost() -> None:
    (finding,) = said({CULPRIT: 8})
    assert (finding.machine, finding.rank) == (None, None)
    assert "5 ranks at once" in finding.summary
