"""What work between steps returns and leaves behind may be each rank's own; see ADR 54."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.programs.drive import Drive, Left, Spot

pytestmark = pytest.mark.job

SCRIPT = "own_work"
Undisturbed = Callable[..., Left]


@pytest.mark.parametrize(
    "spot",
    [
        pytest.param(Spot("step.begin", 12, 2), id="behind the work of a new call"),
        pytest.param(
            Spot("vote.begin", 13, 1),
            id="behind work that came behind the draw",
            marks=pytest.mark.soak,
        ),
        pytest.param(Spot("vote.begin", 0, 2), id="no vote yet, but work"),
    ],
)
def test_a_standby_that_comes_late_has_the_results_of_the_dead_rank(
    spot: Spot, drive: Drive, undisturbed: Undisturbed
) -> None:
    drive.replaced_late(SCRIPT, spot=spot).same_as(undisturbed(SCRIPT), killed=spot.rank)


@pytest.mark.parametrize("at", [3, pytest.param(12, marks=pytest.mark.soak)])
def test_a_joiner_has_the_results_of_the_leaver(
    at: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    drive.moved(SCRIPT, slot=1, at=at).same_as(undisturbed(SCRIPT))
