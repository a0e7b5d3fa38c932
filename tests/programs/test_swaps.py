"""Weights that plain code swaps for an evaluation: no wrong ones are ever taken for the trained."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.programs.drive import Drive, Left, Spot

pytestmark = pytest.mark.job


def test_a_crash_elsewhere_changes_no_bit(drive: Drive, undisturbed: Callable[..., Left]) -> None:
    left = drive.killed("swaps_weights", spots=[Spot("step.begin", 30, 1)])
    left.same_as(undisturbed("swaps_weights"), killed=1)


def test_a_crash_in_the_evaluation_ends_the_job(drive: Drive) -> None:
    with drive.job("swaps_weights") as job:
        drive.kills(job, Spot("between.begin", 24, 1))
        for rank in (job.ranks[0], job.ranks[2]):
            assert rank.process.wait(timeout_s=60).exit_code == 1
            path = job.folder / f"error-{rank.spec.rank}.json"
            kind, words = json.loads(path.read_text())
            assert kind == "StepLostError"
            assert "put the evaluation into session.between_steps" in words
            assert "nobody holds the trained ones" in words
