"""Step records that come again: the first in which a rank's numbers are wrong."""

from __future__ import annotations

import numpy as np

from trainmover.telemetry.records import STEP, Flag
from trainmover.telemetry.repeats import FirstWildSteps


def rows(*said: tuple[int, int, float]) -> np.ndarray:
    """Step records from (rank, step, loss)."""
    steps = np.zeros(len(said), STEP)
    for index, (rank, step, loss) in enumerate(said):
        steps[index]["rank"], steps[index]["step"], steps[index]["loss"] = rank, step, loss
    steps["flags"] = Flag.LOSS
    return steps


def places(steps: np.ndarray) -> list[tuple[int, int]]:
    return [(int(one["rank"]), int(one["step"])) for one in steps]


NAN = float("nan")


def test_the_first_wild_step_of_each_rank_comes_again_in_the_next_four_batches() -> None:
    machine = FirstWildSteps()
    assert places(machine.apply(rows((0, 1, 1.0), (1, 1, NAN)), epoch=1)) == [(0, 1), (1, 1)]
    assert places(machine.apply(rows((0, 2, NAN), (1, 2, NAN)), epoch=1)) == [
        (1, 1),
        (0, 2),
        (1, 2),
    ]
    again = [places(machine.apply(rows(), epoch=1)) for _ in range(5)]
    assert again == [[(1, 1), (0, 2)]] * 3 + [[(0, 2)], []]


def test_samples_of_gradients_count_without_a_loss() -> None:
    machine, steps = FirstWildSteps(), rows((0, 1, NAN), (1, 1, NAN))
    steps["flags"] = 0  # the program logs none
    steps["nonfinite"] = (0, 5)
    machine.apply(steps, epoch=1)
    assert places(machine.apply(rows(), epoch=1)) == [(1, 1)]


def test_a_rank_that_got_well_may_fall_ill_again() -> None:
    machine = FirstWildSteps()
    for step, loss in enumerate((NAN, 1.0, NAN)):
        machine.apply(rows((0, step, loss)), epoch=1)
    assert places(machine.apply(rows(), epoch=1)) == [(0, 0), (0, 2)]


def test_nothing_comes_over_into_another_epoch() -> None:
    machine = FirstWildSteps()
    machine.apply(rows((0, 1, NAN)), epoch=1)
    assert places(machine.apply(rows((0, 2, 1.0)), epoch=2)) == [(0, 2)]
    late = rows((0, 1, NAN))
    assert places(machine.apply(late, epoch=1)) == [(0, 1)], "an old epoch's are passed on"
    assert places(machine.apply(rows(), epoch=2)) == []
