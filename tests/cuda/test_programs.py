"""INV-SAME-BITS for programs that train on a GPU: three ranks, one GPU, a crash and a move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cuda.conftest import needs_a_gpu
from tests.programs.drive import Drive, Left, Rules, Spot, remembered
from tests.support.ranks import Nursery

pytestmark = [pytest.mark.job, pytest.mark.timeout(300), needs_a_gpu]

PROGRAMS = {
    ("everyday",): "step.taken",
    ("epochs",): "vote.passed",
    ("gan",): "optimizer.after",
    ("counter",): "vote.begin",
    ("looks",): "step.begin",
    ("generators",): "optimizer.before",
    ("autocast",): "step.taken",
    ("autocast", "float16"): "optimizer.after",
    ("sharded",): "vote.passed",
    ("graphs",): "step.taken",
    ("compiled",): "vote.passed",
}
"""Where a machine is killed in each."""


@pytest.fixture
def drive(nursery: Nursery, rules: Rules, tmp_path: Path, scripts: Path) -> Drive:
    return Drive(nursery, rules, tmp_path, scripts=scripts)


@pytest.fixture(scope="session")
def undisturbed(
    nursery: Nursery, rules: Rules, scripts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Left]:
    return remembered(nursery, rules, tmp_path_factory, scripts=scripts)


@pytest.mark.parametrize("program", PROGRAMS, ids="-".join)
def test_a_crash_and_a_move_change_no_bit(
    program: tuple[str, ...], drive: Drive, undisturbed: Callable[..., Left]
) -> None:
    spot = Spot(PROGRAMS[program], 14, 2, steps=12)
    left = drive.killed(*program, spots=[spot], then_moves=(1, 33))
    left.same_as(undisturbed(*program), killed=2)
