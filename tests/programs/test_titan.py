"""INV-SAME-BITS for a trainer of torchtitan's shape, whose state is sharded and followed."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.programs.catalogue import Program
from tests.programs.drive import Drive, Left, Spot

pytestmark = pytest.mark.job

Undisturbed = Callable[..., Left]

SCRIPT = "titan"
PROGRAM = Program(60, between=True)
VALIDATION, CHECKPOINT = 12, 20
"""Steps after which there is one, and each time after so many more."""
POINTS = ("program.saving", "program.saved", "program.validating", "program.validated")


def _same(left: Left, calm: Left, *, killed: int | None = None) -> None:
    """Equal, but for the line of a step that rank 0 may take along when it dies."""
    mine, theirs = (ast.literal_eval(each.results[0]["lines"]) for each in (left, calm))
    missing = [line for line in theirs if line not in mine]
    assert len(missing) <= (killed == 0)
    assert mine == [line for line in theirs if line not in missing]
    left.results[0]["lines"] = calm.results[0]["lines"]
    left.same_as(calm, killed=killed)


def test_rank_0_dies_in_a_checkpoint_and_a_machine_is_moved(
    drive: Drive, undisturbed: Undisturbed
) -> None:
    spots = [Spot("program.saved", CHECKPOINT, 0)]
    left = drive.killed(SCRIPT, spots=spots, then_moves=(2, 2 * CHECKPOINT), redundancy="follower")
    _same(left, undisturbed(SCRIPT), killed=0)


@pytest.mark.soak
@pytest.mark.parametrize("at", [1, 11, 12, 13, 19, 20, 21, 48])
def test_a_planned_move_changes_no_bit(at: int, drive: Drive, undisturbed: Undisturbed) -> None:
    _same(drive.moved(SCRIPT, slot=at % 3, at=at), undisturbed(SCRIPT))


@pytest.mark.soak
@pytest.mark.parametrize("point", PROGRAM.all_points())
@pytest.mark.parametrize(("rank", "step"), [(0, 19), (0, 20), (1, 21), (2, 11), (1, 12)])
def test_a_crash_changes_no_bit(
    point: str, rank: int, step: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    left = drive.killed(SCRIPT, spots=[Spot(point, step, rank)], redundancy="follower")
    _same(left, undisturbed(SCRIPT), killed=rank)


@pytest.mark.soak
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_crash_in_work_between_steps_changes_no_bit(
    point: str, rank: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    step = CHECKPOINT if "sav" in point else VALIDATION
    left = drive.killed(SCRIPT, spots=[Spot(point, step, rank)], redundancy="follower")
    _same(left, undisturbed(SCRIPT), killed=rank)


@pytest.mark.soak
def test_a_job_goes_on_from_a_checkpoint_and_is_moved(
    drive: Drive, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    whole = drive.undisturbed(SCRIPT, str(tmp_path / "whole"))
    folder = tmp_path / "rest"
    shutil.copytree(tmp_path / "whole" / "step-20", folder / "step-20")
    # The standby comes when there is a newer checkpoint than the one that the job began with.
    moved = drive.moved(SCRIPT, str(folder), slot=1, at=45, late=True)
    for mine, theirs in zip(moved.results, whole.results, strict=True):
        assert (mine["models"], mine["seen"]) == (theirs["models"], theirs["seen"])
    for losses, all_of in zip(moved.losses, whole.losses, strict=True):
        assert losses == {step: loss for step, loss in all_of.items() if step >= 20}
    lines, all_lines = (ast.literal_eval(each.results[0]["lines"]) for each in (moved, whole))
    assert lines == all_lines[20:]
