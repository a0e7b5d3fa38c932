"""INV-SAME-BITS for fits of Lightning, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest
from tests.programs.catalogue import Program
from tests.programs.drive import Drive, Left, Spot

pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(
        find_spec("lightning") is None,
        reason="Lightning is not installed: pip install 'trainmover[lightning]'",
    ),
]

Undisturbed = Callable[..., Left]

PROGRAMS = {
    "lightened": Program(90, ends=(30, 60), between=True),
    "lightened_early": Program(72, ends=(12, 24), between=True),
    "lightened_gan": Program(100, ends=(25, 50), between=True),
    "lightened_board": Program(90, ends=(30, 60), between=True),
    "lightened_stateful": Program(90, ends=(30, 60), between=True),
    "lightened_tiny": Program(81, ends=(6, 12), between=True),
    "lightened_besides": Program(90, ends=(30, 60)),
}
VALIDATION, EPOCH = 15, 30
"""Steps after which there is a validation, where gradients of three batches are held, and another
one and the end of an epoch."""
IN_HOOKS = {
    "program.training": 11,
    "program.optimizer": 11,
    "program.batch_end": 11,
    "program.validating": VALIDATION,
    "program.validated": VALIDATION,
    "program.validation_end": VALIDATION,
    "program.saving": VALIDATION,
    "program.epoch_end": EPOCH,
}
"""Fail-points of the program's own, and the step from which on they are looked for."""
BY_RANK_0 = {"program.saved": VALIDATION, "program.removing": 2 * EPOCH}


def test_a_crash_and_a_move_change_no_bit(drive: Drive, undisturbed: Undisturbed) -> None:
    spot = Spot("program.validating", VALIDATION, 0)
    left = drive.killed("lightened", spots=[spot], then_moves=(2, 33))
    left.same_as(undisturbed("lightened"), killed=0)


@pytest.mark.soak
@pytest.mark.parametrize("script", PROGRAMS)
@pytest.mark.parametrize("at", [1, 14, VALIDATION, EPOCH - 1, EPOCH, EPOCH + 1, 36])
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


@pytest.mark.soak
@pytest.mark.parametrize("rank", [0, 1])
def test_values_of_tensorboard_go_on(rank: int, drive: Drive, undisturbed: Undisturbed) -> None:
    spot = Spot("program.validating", VALIDATION, rank, steps=12)
    left = drive.killed("lightened_board", spots=[spot], then_moves=(2, 44))
    left.same_as(undisturbed("lightened_board"), killed=rank)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("point", "step", "rank"),
    [
        *((point, step, rank) for point, step in IN_HOOKS.items() for rank in (0, 1)),
        *((point, step, 0) for point, step in BY_RANK_0.items()),
    ],
)
def test_a_crash_in_a_hook_changes_no_bit(
    point: str, step: int, rank: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    left = drive.killed("lightened", spots=[Spot(point, step, rank, steps=12)])
    left.same_as(undisturbed("lightened"), killed=rank)
