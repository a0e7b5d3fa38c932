"""INV-SAME-BITS for programs that people write: their losses, models and own variables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.programs.drive import Drive, Left, Spot

pytestmark = pytest.mark.job

Undisturbed = Callable[..., Left]

PROGRAMS = ["counter", "epochs", "tracked"]


@pytest.mark.parametrize("script", PROGRAMS)
def test_a_planned_move_changes_no_bit(script: str, drive: Drive, undisturbed: Undisturbed) -> None:
    drive.moved(script).same_as(undisturbed(script))


@pytest.mark.parametrize("script", PROGRAMS)
@pytest.mark.parametrize(
    ("point", "step"), [("step.begin", 19), ("vote.passed", 23), ("step.taken", 29)]
)
def test_a_crash_changes_no_bit(
    script: str, point: str, step: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    left = drive.killed(script, spots=[Spot(point, step, 1)])
    left.same_as(undisturbed(script), killed=1)
