"""A few injections of the chaos campaign; ``make chaos`` runs them all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.faults import EVERY, Injection, draw
from tests.chaos.run import Expected, perform, undisturbed

SHORT = Injection("planned", "stayer", "switch.done", "joiner", "kill")
LONGER = (
    Injection("steady", "stayer", "agree.half", "other", "kill"),
    Injection("recovery", "stayer", "recover.agreed", "other", "kill"),
)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return undisturbed(tmp_path_factory.mktemp("undisturbed") / "home")


@pytest.mark.job
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "one", [SHORT, *(pytest.param(each, marks=pytest.mark.soak) for each in LONGER)], ids=str
)
def test_a_fault_at_a_bad_moment_changes_no_bit(
    one: Injection, tmp_path: Path, expected: Expected
) -> None:
    outcome = perform(one, tmp_path / "home", expected=expected)
    assert not outcome.problem, outcome.problem
    assert outcome.ended[-1] == "committed"


def test_a_seed_draws_the_same_injections_again_and_none_twice() -> None:
    drawn = draw(5, len(EVERY))
    assert drawn == draw(5, len(EVERY))
    assert len(set(drawn)) == len(drawn)
    assert {one.scene for one in drawn[:40]} == {"planned", "recovery", "steady"}
