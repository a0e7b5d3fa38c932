"""Programs of ``tests/programs`` on a GPU; see ``on_device`` for how they get there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from tests.cuda.conftest import needs_a_gpu, nursery_with
from tests.programs.catalogue import CATALOGUE
from tests.programs.drive import Drive, Left, Rules
from tests.support.ranks import Nursery

pytestmark = [pytest.mark.job, pytest.mark.timeout(300), needs_a_gpu]

USUAL = [name for name, program in CATALOGUE.items() if program.usual and not program.no_crash]


@pytest.fixture(scope="session")
def nursery(rules: Rules) -> Iterator[Nursery]:
    yield from nursery_with(rules, preload=("tests.cuda.on_device",))


@pytest.mark.parametrize("script", USUAL)
def test_a_crash_and_a_move_change_no_bit(
    script: str, drive: Drive, undisturbed: Callable[..., Left]
) -> None:
    try:
        calm = undisturbed(script)
    except AssertionError as error:
        pytest.skip(f"it mixes in tensors of the host: {str(error)[:100]}")
    chance = random.Random(script)
    slot, killed, _ = chance.sample(range(3), 3)
    program = CATALOGUE[script]
    spot = program.spot(chance.choice(program.all_points()), seed=script, rank=killed)
    drive.killed(script, spots=[spot], then_moves=(slot, 33)).same_as(calm, killed=killed)
