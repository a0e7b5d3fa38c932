"""INV-SAME-BITS for programs that people write: their losses, models and own variables."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.programs.catalogue import CATALOGUE, GAPS
from tests.programs.drive import Drive, Left, Spot

pytestmark = pytest.mark.job

Undisturbed = Callable[..., Left]


SURVIVES = [name for name, program in CATALOGUE.items() if not program.no_crash]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(name, marks=() if program.usual else pytest.mark.soak)
        for name, program in CATALOGUE.items()
    ],
)
def test_a_crash_and_a_move_change_no_bit(
    script: str, drive: Drive, undisturbed: Undisturbed
) -> None:
    program = CATALOGUE[script]
    chance = random.Random(script)
    slot, killed, _ = chance.sample(range(3), 3)
    spot = program.spot(chance.choice(program.all_points()), seed=script, rank=killed)
    if program.no_crash:
        drive.moved(script, slot=slot).same_as(undisturbed(script))
        return
    left = drive.killed(script, spots=[spot], then_moves=(slot, 33))
    left.same_as(undisturbed(script), killed=killed)


@pytest.mark.soak
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=CATALOGUE[name].no_crash))
        for name in GAPS
    ],
)
def test_a_crash_that_a_program_does_not_survive(
    script: str, drive: Drive, undisturbed: Undisturbed
) -> None:
    spot = GAPS[script]
    drive.killed(script, spots=[spot]).same_as(undisturbed(script), killed=spot.rank)


def test_an_early_crash_takes_from_a_replica_what_is_alike(
    drive: Drive, undisturbed: Undisturbed
) -> None:
    spots = [Spot("optimizer.before", 5, 1, steps=3)]
    drive.killed("array_memory", spots=spots).same_as(undisturbed("array_memory"), killed=1)


def test_a_crash_in_an_evaluation_keeps_accumulated_gradients(
    drive: Drive, undisturbed: Undisturbed
) -> None:
    left = drive.killed("accumulate", spots=[Spot("between.begin", 10, 1)])
    left.same_as(undisturbed("accumulate"), killed=1)


@pytest.mark.parametrize("point", ["between.begin", "between.cast"])
def test_a_crash_in_the_evaluation_behind_the_last_step(
    point: str, drive: Drive, undisturbed: Undisturbed
) -> None:
    left = drive.killed("epochs", spots=[Spot(point, 80, 1)])
    left.same_as(undisturbed("epochs"), killed=1)


@pytest.mark.soak
@pytest.mark.parametrize("script", CATALOGUE)
@pytest.mark.parametrize("at", [1, 17])
def test_a_planned_move_changes_no_bit(
    script: str, at: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    drive.moved(script, slot=at % 3, at=at).same_as(undisturbed(script))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("script", "point"),
    [(name, point) for name in SURVIVES for point in CATALOGUE[name].all_points()],
)
def test_a_crash_changes_no_bit(
    script: str, point: str, drive: Drive, undisturbed: Undisturbed
) -> None:
    spot = CATALOGUE[script].spot(point, seed=script)
    drive.killed(script, spots=[spot]).same_as(undisturbed(script), killed=spot.rank)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("script", "point", "step"),
    [
        (name, point, end)
        for name in SURVIVES
        for end in CATALOGUE[name].ends
        for point in ("step.next", "vote.passed", "step.taken")
    ],
)
def test_a_crash_at_the_end_of_a_call_changes_no_bit(
    script: str, point: str, step: int, drive: Drive, undisturbed: Undisturbed
) -> None:
    rank = step % 3
    left = drive.killed(script, spots=[Spot(point, step, rank)], warm_at=min(4, step - 1))
    left.same_as(undisturbed(script), killed=rank)


@pytest.mark.soak
@pytest.mark.parametrize("script", ["counter", "workers", "stateful"])
def test_a_crash_before_the_first_step_changes_no_bit(
    script: str, drive: Drive, undisturbed: Undisturbed
) -> None:
    left = drive.killed(script, spots=[Spot("step.begin", 0, 2)], warm_at=0)
    left.same_as(undisturbed(script), killed=2)


@pytest.mark.parametrize(
    "script", ["own_loader", "counts_elsewhere", "global_state", "snapshot_if_there"]
)
def test_a_standby_that_comes_in_the_middle_of_a_pass_begins_it_as_the_job_did(
    script: str, drive: Drive, undisturbed: Undisturbed
) -> None:
    left = drive.replaced_late(script, spot=Spot("step.taken", 24, 1))
    left.same_as(undisturbed(script), killed=1)


@pytest.mark.soak
@pytest.mark.parametrize("script", ["counter", "epochs", "ppo"])
def test_a_standby_that_comes_to_a_job_without_a_step_changes_no_bit(
    script: str, drive: Drive, undisturbed: Undisturbed
) -> None:
    left = drive.replaced_late(script, spot=Spot("step.begin", 0, 2))
    left.same_as(undisturbed(script), killed=2)
