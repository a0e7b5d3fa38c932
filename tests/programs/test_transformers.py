"""INV-SAME-BITS for the Trainer of Hugging Face transformers, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
from tests.programs.catalogue import Program
from tests.programs.drive import Drive, Left, Rules, Spot
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
    known: dict[tuple[str, ...], Left] = {}

    def run(*command: str) -> Left:
        if command not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            known[command] = Drive(nursery, rules, folder).undisturbed(*command)
        return known[command]

    return run


PROGRAMS = {
    "trained": Program(90, ends=(30, 60), between=True),
    "trained_masked": Program(60, ends=(23, 46), between=True),
    "trained_custom": Program(72, ends=(36,), between=True),
}
EVALUATION, CHECKPOINT = 10, 20
"""Steps after which there is one, and each time after so many more; logs are written after 5."""


def test_a_crash_in_an_evaluation_and_a_move_change_no_bit(
    drive: Drive, undisturbed: Undisturbed
) -> None:
    spot = Spot("between.begin", EVALUATION, 0)
    left = drive.killed("trained", spots=[spot], then_moves=(1, 33))
    left.same_as(undisturbed("trained"), killed=0)


@pytest.mark.soak
@pytest.mark.parametrize("script", PROGRAMS)
@pytest.mark.parametrize(
    "at", [1, EVALUATION - 1, EVALUATION, EVALUATION + 1, CHECKPOINT, 29, 30, 31, 77]
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
@pytest.mark.parametrize(
    ("rank", "step"), [(0, CHECKPOINT - 1), (0, CHECKPOINT), (1, CHECKPOINT + 1)]
)
def test_a_crash_changes_no_bit(  # noqa: PLR0917 - parameters and fixtures
    script: str, point: str, rank: int, step: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    steps = EVALUATION if point == "between.begin" else 1
    left = drive.killed(script, spots=[Spot(point, step, rank, steps=steps)])
    left.same_as(undisturbed(script), killed=rank)
