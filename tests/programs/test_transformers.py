"""INV-SAME-BITS for the Trainer of Hugging Face transformers, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.programs.catalogue import Program
from tests.programs.drive import Drive, Left, Rules, Spot, remembered
from tests.support.ranks import Nursery

from trainmover.runtime import failpoints

pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(
        find_spec("transformers") is None or find_spec("accelerate") is None,
        reason="Hugging Face transformers is not installed: pip install 'trainmover[transformers]'",
    ),
]

Undisturbed = Callable[..., Left]


@pytest.fixture(scope="module")
def nursery(rules: Rules) -> Iterator[Nursery]:
    environment = {failpoints.VARIABLE: str(rules.path), "OMP_NUM_THREADS": "1"}
    nursery = Nursery(environment=environment, preload=["transformers.trainer"])
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def undisturbed(
    nursery: Nursery, rules: Rules, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Left]:
    return remembered(nursery, rules, tmp_path_factory)


PROGRAMS = {
    "trained": Program(90, ends=(30, 60), between=True),
    "trained_masked": Program(60, ends=(23, 46), between=True),
    "trained_custom": Program(52, ends=(36,), between=True),
}
EVALUATION, CHECKPOINT = 10, 20
"""Steps after which ``trained`` has one, and each time after so many more."""


def test_a_crash_in_an_evaluation_and_a_move_change_no_bit(
    drive: Drive, undisturbed: Undisturbed
) -> None:
    spot = Spot("evaluating", EVALUATION, 0)
    left = drive.killed("trained", spots=[spot], then_moves=(1, 33))
    left.same_as(undisturbed("trained"), killed=0)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("script", "at"),
    [
        (name, at)
        for name, program in PROGRAMS.items()
        for at in (1, 9, 10, 11, 20, 29, 30, 31, 36, 49, 77)
        if at < program.steps
    ],
)
def test_a_planned_move_changes_no_bit(
    script: str, at: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    drive.moved(script, slot=at % 3, at=at).same_as(undisturbed(script))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("script", "point"),
    [(name, point) for name, program in PROGRAMS.items() for point in program.all_points()],
)
@pytest.mark.parametrize(("rank", "step"), [(0, 19), (0, 20), (1, 21)])
def test_a_crash_changes_no_bit(  # noqa: PLR0917 - parameters and fixtures
    script: str, point: str, rank: int, step: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    steps = 18 if point == "between.begin" else 1
    left = drive.killed(script, spots=[Spot(point, step, rank, steps=steps)])
    left.same_as(undisturbed(script), killed=rank)


@pytest.mark.soak
@pytest.mark.parametrize("point", ["evaluating", "saving"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_crash_in_work_between_steps_changes_no_bit(
    point: str, rank: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    spot = Spot(point, CHECKPOINT, rank)
    left = drive.killed("trained", spots=[spot], then_moves=(2, 61))
    left.same_as(undisturbed("trained"), killed=rank)


@pytest.mark.soak
def test_a_job_goes_on_from_a_checkpoint_and_is_moved(drive: Drive, tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    whole = drive.undisturbed("trained_resumed", str(folder), "none")
    checkpoint = folder / "checkpoint-25"
    moved = drive.moved("trained_resumed", str(tmp_path / "rest"), str(checkpoint), at=8)
    assert moved.results == whole.results
    for mine, all_of in zip(moved.losses, whole.losses, strict=True):
        assert mine == {step - 25: loss for step, loss in all_of.items() if step >= 25}
