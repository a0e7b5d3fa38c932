"""Sharded state without replicas survives a machine: the next slot follows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.conftest import Gate, Run, outcome
from tests.support.ranks import RanksJob

from trainmover.events.executor import (
    JobLayoutKnown,
    PlanCommitted,
    PlanFailed,
    PlanSwitched,
    StateFollowed,
    StepResumed,
)
from trainmover_executor.messages.worker import Warmed

pytestmark = pytest.mark.job

Start = Callable[..., tuple[RanksJob, Gate]]
Undisturbed = Callable[..., Run]

STEPS = ("--steps", "15")
LONG = ("--steps", "200")


@pytest.mark.parametrize(
    ("workload", "slot", "ring"),
    [
        ("fsdp2", 0, ()),
        pytest.param("fsdp2", 2, (), marks=pytest.mark.soak),
        ("fsdp2", 2, (2, 0, 3, 1)),
        ("tp_fsdp2", 1, ()),
        pytest.param("pp", 0, (), marks=pytest.mark.soak),
        ("pp", 1, ()),
        pytest.param("pp", 3, (), marks=pytest.mark.soak),
    ],
)
def test_a_crash_of_a_sharded_rank_changes_no_bit(
    workload: str, slot: int, ring: tuple[int, ...], start: Start, undisturbed: Undisturbed
) -> None:
    job, gate = start(workload, *STEPS, ring=ring)
    follower = job.ranks[(slot + 1) % 4]
    standby, joiner = job.standby("spare", slot)
    assert job.ranks[slot].expect(JobLayoutKnown).redundancy == "follower"
    standby.expect(Warmed)
    assert follower.expect(StateFollowed).rank == slot
    gate.wait_for(slot)
    job.ranks[slot].process.kill()
    gate.open()
    plan = job.recover(slot, standby, joiner, source=(slot + 1) % 4)
    resumed = [rank.expect(StepResumed) for rank in job.ranks if rank.spec.rank != slot]
    job.took(plan, standby)
    assert outcome(job) == undisturbed(workload, *STEPS, ring=ring)
    assert all(fact.steps_redone <= 1 for fact in resumed)


def crash(job: RanksJob, slot: int, *, gate: Gate) -> None:
    """Kill the rank of ``slot`` at the gate, and have the next slot hand its state to a joiner."""
    standby, joiner = job.standby(f"spare-{slot}-{job.membership.epoch}", slot)
    standby.expect(Warmed)
    gate.wait_for(slot)
    job.ranks[slot].process.kill()
    gate.open()
    plan = job.recover(slot, standby, joiner, source=(slot + 1) % 4)
    for rank in job.ranks:
        if rank.spec.rank != slot:
            rank.expect(PlanCommitted)
    job.took(plan, standby)


def test_the_next_crash_may_take_the_follower(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A joiner in the follower's slot is told everything anew, and then stands in for it."""
    second = Gate(tmp_path / "second", 10)
    options = ["--then-hold-at", "10", "--then-gate", str(second.path)]
    job, first = start("fsdp2", *STEPS, *options)
    assert job.ranks[3].expect(StateFollowed).rank == 2
    crash(job, 2, gate=first)
    followed = job.ranks[2].expect(StateFollowed)
    assert (followed.rank, followed.follower, followed.epoch) == (1, 2, 2)
    crash(job, 1, gate=second)
    assert outcome(job) == undisturbed("fsdp2", *STEPS)


@pytest.mark.parametrize("workload", ["fsdp2", pytest.param("pp", marks=pytest.mark.soak)])
def test_a_joiner_is_followed_where_its_leaver_was(
    workload: str, start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """After a planned move the follower's copy goes on: the very next step may crash."""
    second = Gate(tmp_path / "second", 190)
    options = ["--then-hold-at", "190", "--then-gate", str(second.path)]
    job, first = start(workload, *LONG, *options)
    first.open()
    standby, joiner = job.standby("spare", 1)
    standby.expect(Warmed)
    plan = job.move(1, standby, joiner)
    for rank in (0, 2, 3):
        job.ranks[rank].expect(PlanCommitted)
    job.ranks[1].process.kill()
    job.took(plan, standby)
    standby.expect(PlanSwitched)
    crash(job, 1, gate=second)
    assert outcome(job) == undisturbed(workload, *LONG)


def test_a_crash_while_units_still_go_over_loses_what_is_not_followed(start: Start) -> None:
    """The follower says so instead of handing over what it does not have."""
    job, gate = start("fsdp2", *STEPS, gate_at=1)
    standby, joiner = job.standby("spare", 1)
    standby.expect(Warmed)
    gate.wait_for(1)
    job.ranks[1].process.kill()
    gate.open()
    job.recover(1, standby, joiner, source=2)
    refused = job.ranks[2].expect(PlanFailed)
    assert "the state of rank 1 is not here" in refused.reason


def test_parameters_changed_behind_the_optimizers_back_go_over_again(
    start: Start, undisturbed: Undisturbed
) -> None:
    job, gate = start("fsdp2_clamped", *STEPS)
    crash(job, 2, gate=gate)
    assert outcome(job) == undisturbed("fsdp2_clamped", *STEPS)
