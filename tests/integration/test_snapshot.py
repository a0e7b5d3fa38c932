"""State that nobody can follow survives a machine: a snapshot, and the gradients since."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.conftest import Gate, Run, outcome
from tests.integration.test_follower import crash
from tests.support.ranks import RanksJob

from trainmover.events.executor import (
    JobLayoutKnown,
    PlanCommitted,
    PlanFailed,
    StateFollowed,
    StepResumed,
)
from trainmover_executor.messages.worker import Warmed

pytestmark = pytest.mark.job

Start = Callable[..., tuple[RanksJob, Gate]]
Undisturbed = Callable[..., Run]

STEPS = ("--steps", "25")


@pytest.mark.parametrize(
    ("workload", "asked_for", "slot", "gate_at"),
    [
        ("fsdp2", "snapshot", 2, 5),  # some steps after the first snapshot
        ("pp_adafactor", "auto", 3, 17),  # and after another one
        pytest.param("tp_fsdp2", "snapshot", 1, 5, marks=pytest.mark.soak),
        pytest.param("tp_fsdp2", "snapshot", 1, 17, marks=pytest.mark.soak),
        pytest.param("fsdp2", "snapshot", 2, 17, marks=pytest.mark.soak),
        pytest.param("pp_adafactor", "auto", 0, 5, marks=pytest.mark.soak),
    ],
)
def test_a_crash_changes_no_bit(
    start: Start,
    undisturbed: Undisturbed,
    *,
    workload: str,
    asked_for: str,
    slot: int,
    gate_at: int,
) -> None:
    job, gate = start(workload, *STEPS, gate_at=gate_at, redundancy=asked_for)
    assert job.ranks[slot].expect(JobLayoutKnown).redundancy == "snapshot"
    assert job.ranks[(slot + 1) % 4].expect(StateFollowed).rank == slot
    crash(job, slot, gate=gate)
    resumed = [rank.expect(StepResumed) for rank in job.ranks if rank.spec.rank != slot]
    assert outcome(job) == undisturbed(workload, *STEPS)
    assert all(fact.steps_redone <= 1 for fact in resumed)


def test_the_next_crash_may_take_the_same_slot(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A joiner begins with a snapshot of its own."""
    second = Gate(tmp_path / "second", 15)
    options = ["--then-hold-at", "15", "--then-gate", str(second.path)]
    job, first = start("pp_adafactor", *STEPS, *options)
    assert job.ranks[3].expect(StateFollowed).rank == 2
    crash(job, 2, gate=first)
    assert job.ranks[3].expect(StateFollowed).epoch == 2
    crash(job, 2, gate=second)
    assert outcome(job) == undisturbed("pp_adafactor", *STEPS)


def test_a_planned_move_is_no_obstacle(start: Start, undisturbed: Undisturbed) -> None:
    job, gate = start("pp_adafactor", "--steps", "60")
    standby, joiner = job.standby("spare", 1)
    standby.expect(Warmed)
    plan = job.move(1, standby, joiner)
    gate.open()
    for rank in (0, 2, 3):
        job.ranks[rank].expect(PlanCommitted)
    job.ranks[1].process.kill()
    job.took(plan, standby)
    assert outcome(job) == undisturbed("pp_adafactor", "--steps", "60")


def test_parameters_changed_behind_the_optimizers_back_end_it(start: Start) -> None:
    """No snapshot is better than one that leads elsewhere: its owner says so."""
    job, gate = start("fsdp2_clamped", *STEPS, redundancy="snapshot")
    rank = job.ranks[1]
    assert rank.expect(JobLayoutKnown).redundancy == "snapshot"
    given_up = rank.expect(JobLayoutKnown)
    assert given_up.redundancy == "checkpoint"
    assert "is changed outside of its optimizer" in given_up.obstacle
    standby, joiner = job.standby("spare", 1)
    standby.expect(Warmed)
    gate.wait_for(1)
    rank.process.kill()
    gate.open()
    job.recover(1, standby, joiner, source=2)
    refused = job.ranks[2].expect(PlanFailed)
    assert "the state of rank 1 is not here" in refused.reason
