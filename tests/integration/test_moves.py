"""INV-SAME-BITS: after any change of machines the losses and the final state are the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.integration.conftest import Gate, KillAt, Run, outcome
from tests.support.ranks import Nursery, RanksJob

from trainmover.commands import AbortMigration, BreakStep, Prepare, Recover
from trainmover.events.executor import (
    PlanCommitted,
    PlanFailed,
    PlanPrepared,
    PlanSwitched,
    StepBroken,
    StepResumed,
)
from trainmover.events.machine import LinkLost
from trainmover_executor.messages.worker import Warmed

pytestmark = pytest.mark.job

Start = Callable[..., tuple[RanksJob, Gate]]
Undisturbed = Callable[..., Run]

LONG = ("--steps", "200")
"""Following a toy model takes some tens of its steps."""

SLOW_LONG = ("--steps", "60")
"""The same for workloads whose steps take ten times as long."""


@pytest.mark.parametrize(
    ("workload", "slot"),
    [
        pytest.param("ddp", 0, marks=pytest.mark.soak),  # as tests/programs do
        ("tp_fsdp2", 0),
        pytest.param("fsdp2", 2, marks=pytest.mark.soak),
        pytest.param("batchnorm", 2, marks=pytest.mark.soak),
    ],
)
def test_a_planned_move_changes_no_bit(
    workload: str, slot: int, start: Start, undisturbed: Undisturbed
) -> None:
    program = (workload, *(SLOW_LONG if "fsdp" in workload else LONG))
    job, gate = start(*program)
    standby, joiner = job.standby("spare", slot)
    standby.expect(Warmed)
    plan = job.move(slot, standby, joiner)
    gate.open()

    stayers = [rank for rank in job.ranks if rank.spec.rank != slot]
    assert standby.expect(PlanSwitched).copied_because == ""
    resumed = [rank.expect(StepResumed) for rank in stayers]
    job.ranks[slot].process.kill()  # what its agent does once the switch is committed
    job.took(plan, standby)

    assert outcome(job) == undisturbed(*program)
    assert [fact.steps_redone for fact in resumed] == [0, 0, 0]  # INV-NO-LOST-STEP
    assert {fact.epoch for fact in resumed} == {2}


RING = (2, 0, 3, 1)


def test_a_job_with_a_named_ring_keeps_its_bits(start: Start, undisturbed: Undisturbed) -> None:
    """Sums are taken in the order that the job was formed with, whoever joins."""
    program = ("fsdp2", *SLOW_LONG)
    job, gate = start(*program, ring=RING)
    standby, joiner = job.standby("spare", 2)
    standby.expect(Warmed)
    plan = job.move(2, standby, joiner)
    gate.open()
    for rank in job.ranks:
        if rank.spec.rank != 2:
            rank.expect(StepResumed)
    job.ranks[2].process.kill()
    job.took(plan, standby)

    moved = outcome(job)
    assert moved == undisturbed(*program, ring=RING)
    assert moved != undisturbed(*program), "the order of the ring decides about bits"


@pytest.mark.soak  # the normal run moves three of them in tests/paper
@pytest.mark.parametrize("slot", [0, 1, 3])
def test_every_stage_of_a_pipeline_can_move(
    slot: int, start: Start, undisturbed: Undisturbed
) -> None:
    """A standby learns from a recording which shapes its neighbours send."""
    job, gate = start("pp", *LONG)
    standby, joiner = job.standby("spare", slot)
    standby.expect(Warmed)
    gate.open()
    plan = job.move(slot, standby, joiner)
    assert standby.expect(PlanSwitched).copied_because == ""
    for rank in job.ranks:
        if rank.spec.rank != slot:
            rank.expect(PlanCommitted)
    job.ranks[slot].process.kill()
    job.took(plan, standby)
    assert outcome(job) == undisturbed("pp", *LONG)


def test_a_broken_step_of_a_pipeline_is_redone(start: Start, undisturbed: Undisturbed) -> None:
    """Messages of the void step never pair with the redo's."""
    job, gate = start("pp", *LONG, "--hold-rank", "3", gate_at=3)
    for rank in job.ranks:
        gate.wait_for(rank.spec.rank)  # in the same step: the last vote has reached everybody
    job.ranks[1].tell(BreakStep(epoch=1, reason="a test says so"))
    for rank in (0, 1, 2):
        job.ranks[rank].expect(StepBroken)
    gate.open()
    again = job.same_again()
    for rank in job.ranks:
        rank.tell(Recover(plan=again))
    resumed = [rank.expect(StepResumed) for rank in job.ranks]
    assert [fact.steps_redone for fact in resumed] == [1, 1, 1, 1]
    assert outcome(job) == undisturbed("pp", *LONG)


@pytest.mark.parametrize(("workload", "slot"), [("ddp", 3), ("batchnorm", 0)])
def test_a_crash_redoes_at_most_the_running_step_and_changes_no_bit(
    workload: str, slot: int, start: Start, undisturbed: Undisturbed
) -> None:
    job, gate = start(workload, "--steps", "15")
    standby, joiner = job.standby("spare", slot)
    standby.expect(Warmed)
    gate.wait_for(slot)
    job.ranks[slot].process.kill()
    gate.open()

    survivors = [rank for rank in job.ranks if rank.spec.rank != slot]
    blamed = survivors[0].expect(LinkLost) if slot != 2 else survivors[1].expect(LinkLost)
    assert blamed.peer_rank == slot
    plan = job.recover(slot, standby, joiner, source=(slot + 1) % 4)
    resumed = [rank.expect(StepResumed) for rank in survivors]
    job.took(plan, standby)

    assert outcome(job) == undisturbed(workload, "--steps", "15")
    assert all(fact.steps_redone <= 1 for fact in resumed)


def test_a_crash_in_the_first_step_recovers(start: Start, undisturbed: Undisturbed) -> None:
    """DDP has not rebuilt its buckets yet, the joiner has: the survivors must catch up."""
    job, gate = start("ddp", "--steps", "15", gate_at=0)
    standby, joiner = job.standby("spare", 1)
    for rank in range(4):
        gate.wait_for(rank)
    job.ranks[1].process.kill()
    standby.expect(Warmed)  # it waits for what the first steps return no longer
    assert job.ranks[2].expect(LinkLost).peer_rank == 1
    gate.open()
    plan = job.recover(1, standby, joiner, source=0)
    for rank in (0, 2, 3):
        job.ranks[rank].expect(PlanCommitted)
    job.took(plan, standby)
    assert outcome(job) == undisturbed("ddp", "--steps", "15")


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_plain_loader_is_resumed_by_position(
    workers: str, start: Start, undisturbed: Undisturbed, nursery: Nursery
) -> None:
    """Its worker processes outlive a killed rank for seconds, and must not hide its death."""
    program = ("loader", "--steps", "15", "--epochs", "4", "--loader-workers", workers)
    job, gate = start(*program, gate_at=8)
    standby, joiner = job.standby("spare", 2)
    standby.expect(Warmed)
    gate.wait_for(2)
    with nursery.asleep():
        job.ranks[2].process.kill()
        gate.open()
        assert job.ranks[1].expect(LinkLost, timeout_s=2).peer_rank == 2
    plan = job.recover(2, standby, joiner, source=3)
    for rank in (0, 1, 3):
        job.ranks[rank].expect(PlanCommitted)
    job.took(plan, standby)
    assert outcome(job) == undisturbed(*program)


@pytest.mark.parametrize("late", [pytest.param(False, marks=pytest.mark.soak), True])
def test_an_aborted_move_leaves_training_as_it_was(
    late: bool, start: Start, undisturbed: Undisturbed
) -> None:
    """INV-LEAVER-WHOLE, and the aborted epoch is never used again."""
    job, gate = start("ddp", *LONG)
    standby, joiner = job.standby("spare", 2)
    standby.expect(Warmed)
    plan = job.move(2, standby, joiner, without=0)
    gate.open()
    if late:
        job.ranks[2].expect(PlanPrepared)
    abort = AbortMigration(migration=plan.id, epoch=plan.epoch, reason="the operator said so")
    for rank in [*job.ranks, standby]:
        rank.tell(abort)
    assert outcome(job) == undisturbed("ddp", *LONG)
    facts = [fact for rank in job.ranks for fact in rank.seen]
    assert not any(isinstance(fact, PlanSwitched | StepBroken) for fact in facts)
    failed = [fact for fact in facts if isinstance(fact, PlanFailed)]
    assert all(fact.step_safe for fact in failed)  # the leaver may notice the joiner's end first


def test_a_joiner_that_dies_while_it_follows_disturbs_nobody(
    start: Start, undisturbed: Undisturbed
) -> None:
    job, gate = start("ddp", *LONG)
    standby, joiner = job.standby("spare", 2)
    standby.expect(Warmed)
    job.move(2, standby, joiner, without=0)
    standby.expect(PlanPrepared)
    gate.open()
    standby.process.kill()
    assert job.ranks[2].expect(PlanFailed).step_safe
    assert outcome(job) == undisturbed("ddp", *LONG)


def test_what_cannot_be_followed_is_copied_at_the_switch(
    start: Start, undisturbed: Undisturbed
) -> None:
    job, gate = start("adafactor", *LONG)
    standby, joiner = job.standby("spare", 1)
    standby.expect(Warmed)
    plan = job.move(1, standby, joiner)
    gate.open()
    assert "Adafactor" in job.ranks[1].expect(PlanSwitched).copied_because
    assert standby.expect(PlanSwitched).copied_because
    for rank in (0, 2, 3):
        job.ranks[rank].expect(PlanCommitted)
    job.ranks[1].process.kill()
    job.took(plan, standby)
    assert outcome(job) == undisturbed("adafactor", *LONG)


def test_parameters_changed_behind_the_optimizers_back_are_noticed(
    start: Start, undisturbed: Undisturbed
) -> None:
    """The joiner knows nothing of them: state is copied."""
    job, gate = start("clamped", *LONG)
    standby, joiner = job.standby("spare", 3)
    standby.expect(Warmed)
    plan = job.move(3, standby, joiner)
    gate.open()
    copied_because = job.ranks[3].expect(PlanSwitched).copied_because
    assert "is written to outside of its optimizer's step" in copied_because
    for rank in (0, 1, 2):
        job.ranks[rank].expect(PlanCommitted)
    job.ranks[3].process.kill()
    job.took(plan, standby)
    assert outcome(job) == undisturbed("clamped", *LONG)


def test_a_joiner_that_dies_in_phase_one_disturbs_nobody(
    start: Start, undisturbed: Undisturbed
) -> None:
    job, gate = start("ddp", "--steps", "15")
    standby, joiner = job.standby("spare", 2)
    standby.expect(Warmed)
    standby.process.kill()
    standby.process.wait(timeout_s=10)
    plan = job.plan("planned", 2, joiner)
    for rank in job.ranks:
        rank.tell(Prepare(plan=plan))
    failed = job.ranks[2].expect(PlanFailed)
    gate.open()
    assert failed.step_safe
    assert outcome(job) == undisturbed("ddp", "--steps", "15")


def test_a_joiner_that_dies_in_the_switch_gives_the_slot_back_to_the_leaver(
    start: Start, undisturbed: Undisturbed, kill_at: KillAt
) -> None:
    """The way back stays open until the first vote of the new epoch has passed."""
    job, gate = start("ddp", *LONG)
    standby, joiner = job.standby("spare", 2)
    standby.expect(Warmed)
    kill_at("join.state", machine="spare")
    plan = job.move(2, standby, joiner)
    gate.open()
    broken = job.ranks[1].expect(StepBroken)
    back = job.give_back(plan)
    for rank in job.ranks:
        rank.tell(Recover(plan=back))
    assert outcome(job) == undisturbed("ddp", *LONG)
    assert broken.epoch == plan.epoch


def test_losing_a_second_machine_in_recovery_is_recovered_by_a_newer_plan(
    start: Start, undisturbed: Undisturbed
) -> None:
    job, gate = start("ddp", "--steps", "15")
    first, joiner = job.standby("spare-1", 2)
    second, joiner_too = job.standby("spare-2", 2)
    first.expect(Warmed)
    second.expect(Warmed)
    gate.wait_for(2)
    job.ranks[2].process.kill()
    gate.open()
    job.ranks[1].expect(LinkLost)
    first.process.kill()
    first.process.wait(timeout_s=10)
    survivors = [job.ranks[rank] for rank in (0, 1, 3)]
    failing = job.plan("failure", 2, joiner, source=3)
    for rank in survivors:
        rank.tell(Recover(plan=failing))
    newer = job.plan("failure", 2, joiner_too, source=3, epoch=failing.epoch + 1)
    for rank in [*survivors, second]:
        rank.tell(Recover(plan=newer))
    for rank in survivors:
        rank.expect(PlanCommitted)
    job.took(newer, second)
    assert outcome(job) == undisturbed("ddp", "--steps", "15")
