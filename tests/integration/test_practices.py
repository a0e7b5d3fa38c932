"""INV-SAME-BITS for what real scripts do beside forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.integration.conftest import Gate, KillAt, Run, outcome
from tests.jobs.practices import HABITS
from tests.support.ranks import RanksJob

from trainmover.events.executor import PlanCommitted, PlanSwitched, StepBroken
from trainmover.events.machine import LinkLost
from trainmover_executor.messages.worker import Warmed

pytestmark = pytest.mark.job

Start = Callable[..., tuple[RanksJob, Gate]]
Undisturbed = Callable[..., Run]
STEPS = ("--steps", "150")

ELSEWHERE = {
    "stateful",
    "accumulating",
    "scaling",
    "skipping",
    "bf16",
    "two_optimizers",
    "evaluating",
    "checkpointing",
    "sharded",
    "unused",
}
"""The normal run has programs of these shapes in tests/programs."""


@pytest.mark.parametrize(
    "habit",
    [pytest.param(one, marks=[pytest.mark.soak] * (one in ELSEWHERE)) for one in HABITS],
)
def test_a_move_and_a_crash_change_no_bit(
    habit: str, start: Start, undisturbed: Undisturbed
) -> None:
    job, gate = start(habit, *STEPS)
    moving, joiner = job.standby("mover", 1)
    rescuing, joiner_too = job.standby("rescuer", 3)
    moving.expect(Warmed)
    rescuing.expect(Warmed)
    gate.wait_for(3)
    job.ranks[3].process.kill()
    gate.open()
    assert job.ranks[2].expect(LinkLost).peer_rank == 3
    recovery = job.recover(3, rescuing, joiner_too, source=1)
    for rank in (0, 1, 2):
        job.ranks[rank].expect(PlanCommitted)
    job.took(recovery, rescuing)

    plan = job.move(1, moving, joiner)
    assert moving.expect(PlanSwitched).copied_because == ""
    for rank in (0, 2, 3):
        job.ranks[rank].expect(PlanCommitted)
    job.ranks[1].process.kill()
    job.took(plan, moving)
    assert outcome(job) == undisturbed(habit, *STEPS)


@pytest.mark.soak  # the normal run has one in tests/programs
@pytest.mark.parametrize("habit", ["evaluating", "sharded"])
def test_a_crash_in_an_evaluation_skips_it_everywhere_and_changes_no_bit(
    habit: str, start: Start, undisturbed: Undisturbed
) -> None:
    """The joiner goes on with the next step: nobody may wait for it in the evaluation."""
    job, gate = start(habit, *STEPS, "--hold-between", gate_at=8)
    standby, joiner = job.standby("spare", 2)
    standby.expect(Warmed)
    gate.wait_for(2)
    job.ranks[2].process.kill()
    gate.open()
    plan = job.recover(2, standby, joiner, source=0)
    for rank in (0, 1, 3):
        job.ranks[rank].expect(PlanCommitted)
    job.took(plan, standby)
    assert outcome(job) == undisturbed(habit, *STEPS)


def test_a_crash_that_leaves_the_vote_undecided_at_one_rank_changes_no_bit(
    start: Start, undisturbed: Undisturbed, kill_at: KillAt
) -> None:
    """It learns later that the step is committed; the evaluation after it is over by then.

    Ranks vote in pairs, (0, 1) and (2, 3), then (0, 2) and (1, 3): rank 2 dies in between.
    """
    job, gate = start("evaluating", *STEPS, gate_at=8)
    standby, joiner = job.standby("spare", 2)
    standby.expect(Warmed)
    gate.wait_for(2)
    kill_at("agree.half", machine="m2")
    gate.open()
    broken = {rank: job.ranks[rank].expect(StepBroken) for rank in (0, 1, 3)}
    assert {rank: said.committed_step for rank, said in broken.items()} == {0: 8, 1: 9, 3: 9}
    plan = job.recover(2, standby, joiner, source=3)
    for rank in (0, 1, 3):
        assert job.ranks[rank].expect(PlanSwitched).step == 9
        job.ranks[rank].expect(PlanCommitted)
    job.took(plan, standby)
    straight = undisturbed("evaluating", *STEPS)
    assert job.finish() == straight.finals
    for rank in broken:  # rank 2 died before it could log step 8
        assert job.losses(rank) == straight.losses[rank]
