"""Files that a program writes itself, line by line: those of an undisturbed run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.programs.drive import Drive, Left, Spot

pytestmark = pytest.mark.job

SCRIPT = "own_files"
BLOCKS = "8192"


def test_a_leaver_and_its_joiner_write_one_file(
    drive: Drive, undisturbed: Callable[..., Left]
) -> None:
    """What the leaver holds back in memory included."""
    drive.moved(SCRIPT, BLOCKS, slot=1, at=7).same_as(undisturbed(SCRIPT))


def test_a_joiner_goes_on_in_the_files_of_a_dead_machine(
    drive: Drive, undisturbed: Callable[..., Left]
) -> None:
    left = drive.killed(SCRIPT, spots=[Spot("step.begin", 13, 1, steps=5)], then_moves=(2, 33))
    left.same_as(undisturbed(SCRIPT), killed=1)


def test_a_crash_may_cost_the_lines_of_one_step(
    drive: Drive, undisturbed: Callable[..., Left]
) -> None:
    """It died behind the vote, in front of what it would have written."""
    left = drive.killed(SCRIPT, spots=[Spot("vote.passed", 45, 2, steps=5)])
    mine, theirs = left.results.pop(), undisturbed(SCRIPT).results[-1]
    left.losses.pop()
    calm = undisturbed(SCRIPT)
    left.same_as(Left(calm.results[:-1], calm.losses[:-1]))
    for name in ("steps.csv", "train.log", "epochs.txt"):
        missing = set(_lines(theirs, name)) - set(_lines(mine, name))
        assert len(missing) <= 1
        assert _lines(mine, name) == [x for x in _lines(theirs, name) if x not in missing]
    assert mine["models"] == theirs["models"]


def _lines(result: dict[str, Any], name: str) -> list[str]:
    return list(result[name].split("\\n"))
