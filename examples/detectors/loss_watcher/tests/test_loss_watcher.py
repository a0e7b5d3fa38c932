"""The contract of TrainMover's SDK, and what this detector is for."""

from __future__ import annotations

import numpy as np
from trainmover_loss_watcher import LossWatcher, LossWatcherConfig

from trainmover.detection import CollectiveWindow, Finding
from trainmover.telemetry.records import RECORD, STEP, Flag, Sections
from trainmover.testing.contract import DetectorContract
from trainmover.testing.simulated_jobs import Shape


class TestContract(DetectorContract):
    detector = LossWatcher


def watch(losses: list[float]) -> list[Finding]:
    watcher, said = LossWatcher(LossWatcherConfig(steps=5)), []
    membership = Shape(2).membership()
    for number, loss in enumerate(losses):
        steps = np.zeros(1, STEP)
        steps["step"], steps["loss"], steps["flags"] = number, loss, Flag.LOSS
        more = Sections(steps=steps)
        said += watcher.observe(
            CollectiveWindow("w-0", 1, membership, np.zeros(0, RECORD), number, more)
        )
    return said


def test_a_loss_that_runs_away_is_told_once_and_taken_back() -> None:
    falling = [4.0 - 0.1 * step for step in range(20)]
    said = watch([*falling, *[9.0] * 10, *[2.0] * 10])
    assert [(one.kind, one.closed, one.machine) for one in said] == [
        ("loss", False, None),
        ("loss", True, None),
    ]
    assert watch(falling) == []
