"""INV-SAME-BITS for the loops of training frameworks, where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
from tests.programs.catalogue import Program
from tests.programs.drive import Drive, Left, Spot

pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(
        find_spec("accelerate") is None,
        reason="Hugging Face Accelerate is not installed: pip install 'trainmover[accelerate]'",
    ),
]

Undisturbed = Callable[..., Left]

PROGRAMS = {
    "accelerated": Program(90, ends=(30, 60), between=True),
    "accelerated_scaler": Program(80, ends=(40,)),
    "accelerated_stateful": Program(80, ends=(40,), between=True),
    "accelerated_schedule": Program(90),
}
ACCUMULATING = 14
"""Steps after which gradients of two batches are held."""
EPOCH = PROGRAMS["accelerated"].ends[0]


@pytest.mark.parametrize("script", PROGRAMS)
def test_a_crash_and_a_move_change_no_bit(
    script: str, drive: Drive, undisturbed: Undisturbed
) -> None:
    spot = Spot("step.taken", ACCUMULATING, 0)
    left = drive.killed(script, spots=[spot], then_moves=(2, 33))
    left.same_as(undisturbed(script), killed=0)


@pytest.mark.parametrize("step", [20, 21])
def test_a_schedule_that_steps_in_the_body_goes_on(
    step: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    """Behind the vote of the batch with which the optimizer steps, and of the one before."""
    left = drive.killed("accelerated_schedule", spots=[Spot("step.next", step, 1)])
    left.same_as(undisturbed("accelerated_schedule"), killed=1)


def test_the_main_process_dies_in_an_evaluation(drive: Drive, undisturbed: Undisturbed) -> None:
    left = drive.killed("accelerated", spots=[Spot("between.begin", EPOCH, 0)])
    left.same_as(undisturbed("accelerated"), killed=0)


@pytest.mark.soak
@pytest.mark.parametrize("script", PROGRAMS)
@pytest.mark.parametrize("at", [1, 17, EPOCH - 1, EPOCH, EPOCH + 1])
def test_a_planned_move_changes_no_bit(
    script: str, at: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    drive.moved(script, slot=at % 3, at=at).same_as(undisturbed(script))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("script", "point"),
    [(name, point) for name, program in PROGRAMS.items() for point in program.all_points()],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_crash_changes_no_bit(
    script: str, point: str, rank: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    spot = PROGRAMS[script].spot(point, seed=script, rank=rank)
    left = drive.killed(script, spots=[spot])
    left.same_as(undisturbed(script), killed=rank)
