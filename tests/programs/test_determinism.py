"""A program that does not compute the same bits twice is found, and only such a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.programs.drive import WORLD, Drive, Left, Rules, Spot
from tests.support.ranks import Nursery

from trainmover.runtime import failpoints
from trainmover_executor.checks.determinism import DETERMINISM_VARIABLE

pytestmark = pytest.mark.job


@pytest.fixture(scope="module")
def checked(rules: Rules) -> Iterator[Nursery]:
    nursery = Nursery(environment={failpoints.VARIABLE: str(rules.path), DETERMINISM_VARIABLE: "1"})
    yield nursery
    nursery.close()


@pytest.fixture
def check(checked: Nursery, rules: Rules, tmp_path: Path) -> Drive:
    return Drive(checked, rules, tmp_path)


@pytest.mark.parametrize("weight", ["system", "clock", "one rank"])
def test_a_loss_that_is_another_one_each_time_is_found(weight: str, check: Drive) -> None:
    with check.job("twice_alike", weight) as job:
        for rank in job.ranks:
            assert rank.process.wait(timeout_s=60).exit_code == 1
        for rank in range(WORLD):
            kind, words = json.loads((job.folder / f"error-{rank}.json").read_text())
            assert kind == "NotDeterministicError"
            assert "step 1 was done twice" in words
            assert "the gradient of module.0.weight" in words
            assert "torch.use_deterministic_algorithms(True)" in words


_SOAKED = (
    *("fsdp", "accumulate", "no_sync", "scaler"),
    *("own_generators", "hand_decay", "sam", "several_steps", "gan", "lbfgs"),
)


@pytest.mark.parametrize(
    "program",
    [
        ("twice_alike", "generator"),
        *(pytest.param((name,), marks=pytest.mark.soak) for name in _SOAKED),
    ],
    ids=lambda program: program[-1],
)
def test_a_deterministic_program_is_left_alone(
    program: tuple[str, ...], check: Drive, undisturbed: Callable[..., Left]
) -> None:
    check.undisturbed(*program).same_as(undisturbed(*program))


@pytest.mark.parametrize("step", [1, 2])
def test_a_crash_meanwhile_changes_no_bit(
    step: int, check: Drive, undisturbed: Callable[..., Left]
) -> None:
    program = ("twice_alike", "generator")
    left = check.killed(*program, spots=[Spot("step.begin", step, 2)], warm_at=1)
    left.same_as(undisturbed(*program), killed=2)
