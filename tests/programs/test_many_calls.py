"""A joiner passes every call of session.steps() that has ended, and there may be thousands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.programs.drive import Drive, Left, Spot

pytestmark = pytest.mark.job

SCRIPT = "many_calls"
LATE = 281
"""The rollouts of all rounds before take 90 MB."""
Undisturbed = Callable[..., Left]


@pytest.mark.soak
def test_a_standby_that_comes_late_passes_them_all(drive: Drive, undisturbed: Undisturbed) -> None:
    drive.moved(SCRIPT, slot=1, at=LATE, late=True).same_as(undisturbed(SCRIPT))


@pytest.mark.soak
def test_a_standby_that_came_early_has_followed(drive: Drive, undisturbed: Undisturbed) -> None:
    spot = Spot("vote.begin", LATE, 2)
    left = drive.killed(SCRIPT, spots=[spot], then_moves=(0, LATE + 20))
    left.same_as(undisturbed(SCRIPT), killed=spot.rank)


@pytest.mark.soak
def test_a_standby_of_a_crash_has_the_dead_ranks_rollout(
    drive: Drive, undisturbed: Undisturbed
) -> None:
    spot = Spot("vote.begin", LATE, 2)
    drive.replaced_late(SCRIPT, spot=spot).same_as(undisturbed(SCRIPT), killed=spot.rank)
