"""INV-SAME-BITS for programs that train on a GPU: three ranks, one GPU, a crash and a move."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cuda.conftest import needs_a_gpu
from tests.programs.drive import Drive, Left, Spot

pytestmark = [pytest.mark.job, pytest.mark.timeout(300), needs_a_gpu]

PROGRAMS = {
    "cuda/everyday": "step.taken",
    "cuda/generators": "optimizer.before",
    "cuda/graphs": "step.taken",
    "cuda/compiled": "vote.passed",
    "epochs": "vote.passed",
    "gan": "optimizer.after",
    "counter": "vote.begin",
    "looks": "step.begin",
    "autocast": "step.taken",
    "scaler": "optimizer.after",
    "fsdp": "vote.passed",
}
"""Where a machine is killed in each."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_crash_and_a_move_change_no_bit(
    program: str, drive: Drive, undisturbed: Callable[..., Left]
) -> None:
    spot = Spot(PROGRAMS[program], 14, 2, steps=12)
    left = drive.killed(program, spots=[spot], then_moves=(1, 33))
    left.same_as(undisturbed(program), killed=2)
