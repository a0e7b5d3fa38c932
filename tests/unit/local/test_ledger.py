"""When a local job is over, from facts and exit codes alone."""

from __future__ import annotations

import pytest
from tests.unit.factories import membership_of as membership
from tests.unit.factories import registered, said

from trainmover.events.machine import MachineLost, WorkerExited
from trainmover.events.migration import (
    JobFailed,
    JobFinished,
    JobFormed,
    MigrationApproved,
    MigrationCommitted,
)
from trainmover.job.plan import Move, Plan
from trainmover.job.topology import Membership
from trainmover_launcher.ledger import Ending, Ledger

NAMES = ("node-0", "node-1", "node-2")


def committed(leaver: str, joiner: str, after: Membership) -> MigrationCommitted:
    return MigrationCommitted(
        migration="m-1",
        kind="planned",
        slot=0,
        leaver=leaver,
        cause="test",
        joiner=joiner,
        epoch=after.epoch,
        step=5,
        membership=after,
    )


def ended(ledger: Ledger) -> Ending:
    ending = ledger.ending()
    assert ending is not None
    return ending


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(nnodes_min=2, running=set(NAMES))
    ledger.learn(said(JobFormed(membership=membership("node-0", "node-1"))))
    return ledger


def test_goes_on_while_an_active_machine_runs(ledger: Ledger) -> None:
    ledger.agent_exited("node-0", 0)
    assert ledger.ending() is None


def test_finished_when_every_active_machine_exited_normally(ledger: Ledger) -> None:
    ledger.service_died("bus")
    ledger.agent_exited("node-0", 0)
    ledger.agent_exited("node-1", 0)
    assert ended(ledger).ok


def test_a_released_leaver_does_not_count_as_finished(ledger: Ledger) -> None:
    after = membership("node-2", "node-1", epoch=2)
    ledger.learn(said(committed("node-0", "node-2", after)))
    ledger.agent_exited("node-0", 0)
    ledger.agent_exited("node-1", 0)
    assert ledger.ending() is None
    ledger.agent_exited("node-2", 0)
    assert ended(ledger).ok


def test_counts_finishers_when_a_switch_went_unseen_after_the_bus_died(ledger: Ledger) -> None:
    ledger.service_died("bus")
    ledger.agent_exited("node-1", 0)
    ledger.agent_exited("node-2", 0)
    assert ended(ledger).ok


@pytest.mark.parametrize("ok", [True, False])
def test_believes_what_the_planner_says(ledger: Ledger, ok: bool) -> None:
    fact = JobFinished(epoch=1, step=9) if ok else JobFailed(reason="no more", next_step="Rest.")
    ledger.learn(said(fact))
    ending = ended(ledger)
    assert ending.ok is ok


def test_fails_when_too_few_machines_are_left_to_form() -> None:
    ledger = Ledger(nnodes_min=2, running={"node-0", "node-1"})
    ledger.agent_exited("node-1", 2)
    ending = ended(ledger)
    assert not ending.ok
    assert "node-1: 2" in ending.reason


def raised(rank: int) -> WorkerExited:
    return WorkerExited(
        machine=f"node-{rank}",
        generation=0,
        rank=rank,
        epoch=1,
        exit_code=1,
        signal=None,
        last_words="Traceback ...\nValueError: no such file\n",
    )


def test_fails_when_the_program_fails_on_every_rank(ledger: Ledger) -> None:
    for rank in range(2):
        assert ledger.ending() is None
        ledger.learn(said(raised(rank)))
    ending = ended(ledger)
    assert ending.reason.endswith("exit code 1: ValueError: no such file")


def test_a_program_that_raised_is_named_as_the_reason_of_a_failed_job(ledger: Ledger) -> None:
    ledger.learn(said(raised(1)))
    ledger.learn(said(JobFailed(reason="machine node-1 failed", next_step="Add machines.")))
    ending = ended(ledger)
    assert "program of rank 1" in ending.reason
    assert "Fix the program" in ending.next_step


def test_a_dead_machine_alone_is_the_planners_business(ledger: Ledger) -> None:
    ledger.agent_exited("node-0", -9)
    assert ledger.ending() is None
    assert ledger.stranded() is None


def test_stranded_when_a_machine_dies_and_nobody_can_choose_a_standby(ledger: Ledger) -> None:
    ledger.service_died("planner")
    assert ledger.stranded() is None
    ledger.agent_exited("node-0", -9)
    ending = ledger.stranded()
    assert ending is not None
    assert "node-0" in ending.reason
    assert "planner" in ending.reason


def test_not_stranded_while_a_recovery_that_covers_the_machine_is_under_way(
    ledger: Ledger,
) -> None:
    after = membership("node-2", "node-1", epoch=2)
    plan = Plan(
        id="m-1",
        job="j",
        kind="failure",
        from_epoch=1,
        membership=after,
        moves=(Move(slot=0, leaver="node-0", joiner="node-2"),),
        sources={0: 1},
    )
    approved = MigrationApproved(
        migration="m-1",
        kind="failure",
        slot=0,
        leaver="node-0",
        cause="machine_failed",
        joiner="node-2",
        plan=plan,
    )
    ledger.agent_exited("node-0", -9)
    ledger.learn(said(approved))
    ledger.service_died("planner")
    assert ledger.stranded() is None


class TestMachinesThatOthersStarted:
    """``trainmover agent`` from another terminal, for the job of this launcher."""

    @pytest.fixture
    def ledger(self, ledger: Ledger) -> Ledger:
        """One of two slots is held by such a machine."""
        ledger.learn(said(registered("guest")))
        after = membership("node-0", "guest", epoch=2)
        ledger.learn(said(committed("node-1", "guest", after)))
        return ledger

    def test_they_carry_the_job_when_the_launchers_own_are_gone(self, ledger: Ledger) -> None:
        for name in NAMES:
            ledger.agent_exited(name, -9)
        assert ledger.ending() is None
        ledger.learn(said(MachineLost(machine="guest", reason="killed")))
        ending = ended(ledger)
        assert "every machine ended" in ending.reason

    @pytest.mark.parametrize("service", ["bus", "planner"])
    def test_nobody_says_what_becomes_of_them(self, ledger: Ledger, service: str) -> None:
        ledger.service_died(service)
        assert ledger.stranded() is None
        ledger.agent_exited("node-1", 0)
        ledger.agent_exited("node-2", 0)
        assert ledger.ending() is None
        ledger.agent_exited("node-0", 0)
        assert ended(ledger).ok

    def test_they_help_to_form_a_job(self) -> None:
        ledger = Ledger(nnodes_min=2, running={"node-0"})
        assert ledger.ending() is not None
        ledger.learn(said(registered("guest")))
        assert ledger.ending() is None
