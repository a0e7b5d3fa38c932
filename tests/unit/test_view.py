"""A job folded from its facts."""

from __future__ import annotations

import pytest
from tests.unit import factories as make

from trainmover.events.executor import StepBroken
from trainmover.events.machine import MachineLost, MachineQuarantined, MachineWarming
from trainmover.events.migration import JobFailed, JobFinished, JobFormed, JobHeld
from trainmover.job.topology import Frozen
from trainmover_console.view import JobView
from trainmover_console.view.summary import summarise, worth_showing


def view_of(*facts: Frozen) -> JobView:
    view = JobView("j")
    for number, fact in enumerate(facts):
        view.apply(make.said(fact, at_s=number, trace=make.TRACE))
    return view


FORMED = (
    *(make.registered(f"node-{number}") for number in range(3)),
    JobFormed(membership=make.membership_of("node-0", "node-1"), standbys=("node-2",)),
)
MOVE = make.Move(
    "m-1",
    slot=1,
    leaver="node-1",
    joiner="node-2",
    after=make.membership_of("node-0", "node-2", epoch=2),
)


def roles(view: JobView) -> dict[str, str]:
    return {name: one.role for name, one in view.machines.items()}


def test_formed_job() -> None:
    view = view_of(*FORMED, make.ready("node-2", 0), make.progress("node-0", 0, 12))
    assert roles(view) == {"node-0": "active", "node-1": "active", "node-2": "standby"}
    assert view.state == "running"
    assert view.step == 12
    assert [(one.name, one.ready_slots) for one in view.standbys] == [("node-2", {0})]


def test_a_migration_from_incident_to_pause() -> None:
    view = view_of(
        *FORMED,
        make.straggler("node-1", 1),
        MOVE.proposed(),
        MOVE.preparing(),
        MOVE.committed(),
        MOVE.resumed("node-0", 0, 0.02),
        MOVE.resumed("node-2", 1, 0.05),
    )
    move = view.migrations["m-1"]
    assert move.state == "committed"
    assert not move.open
    assert move.pause_s == 0.05
    assert move.trace_id == "ab" * 16
    assert move.incident == "i-1"
    assert move.spans_s() == {"proposed": 1.0, "preparing": 1.0}
    assert move.as_data()["phases_s"] == {"proposed": 1.0, "preparing": 1.0, "switch": 0.01}
    assert roles(view) == {"node-0": "active", "node-1": "released", "node-2": "active"}
    assert view.membership is not None
    assert view.membership.epoch == 2


def test_a_released_machine_that_registers_again_is_a_standby() -> None:
    view = view_of(*FORMED, MOVE.committed(), make.registered("node-1", generation=1))
    assert roles(view)["node-1"] == "standby"
    assert view.machines["node-1"].ready_slots == set()


def test_a_quarantined_machine_stays_out() -> None:
    view = view_of(
        *FORMED,
        MOVE.committed(),
        MachineQuarantined(machine="node-1", reason="slow"),
        make.registered("node-1", generation=1),
    )
    assert roles(view)["node-1"] == "quarantined"
    assert view.standbys == []


def test_a_slot_with_a_new_process_is_not_ready_again_yet() -> None:
    def listens(**ports: str) -> MachineWarming:
        endpoints = {int(slot[1:]): (f"h:{port}",) for slot, port in ports.items()}
        return MachineWarming(machine="node-2", generation=0, endpoints=endpoints)

    warm = (make.ready("node-2", 0), make.ready("node-2", 1))
    for later, ready in (
        (listens(s0="10", s1="11"), {0, 1}),
        (listens(s0="10", s1="12"), {0}),
        (listens(s1="11"), {1}),
    ):
        view = view_of(*FORMED, listens(s0="10", s1="11"), *warm, later)
        assert view.machines["node-2"].ready_slots == ready


def test_a_lost_machine() -> None:
    view = view_of(*FORMED, MachineLost(machine="node-0", reason="killed"))
    assert roles(view)["node-0"] == "lost"
    assert view.machines["node-0"].note == "killed"


def test_an_aborted_migration_changes_no_slot() -> None:
    view = view_of(*FORMED, MOVE.proposed(), MOVE.preparing(), MOVE.aborted("no longer needed"))
    assert view.migrations["m-1"].state == "aborted"
    assert view.migrations["m-1"].reason == "no longer needed"
    assert roles(view)["node-1"] == "active"


@pytest.mark.parametrize(
    ("fact", "state"),
    [
        (JobHeld(slots=(0,), reason="no standby"), "held"),
        (JobFinished(epoch=1, step=99), "finished"),
        (JobFailed(reason="x", next_step="y"), "failed"),
    ],
)
def test_the_life_of_a_job(fact: Frozen, state: str) -> None:
    assert view_of(*FORMED, fact).state == state


def test_a_held_job_runs_again_when_a_rank_progresses() -> None:
    held = JobHeld(slots=(0,), reason="no standby")
    assert view_of(*FORMED, held, make.progress("node-0", 0, 3)).state == "running"


def test_what_is_kept_for_good_tells_the_step_as_well() -> None:
    """Progress is forgotten after a minute: a job that is held makes none."""
    formed = next(fact for fact in FORMED if isinstance(fact, JobFormed))
    broken = StepBroken(machine="node-0", rank=0, epoch=1, committed_step=7, reason="reset")
    assert view_of(formed, broken).step == 7
    assert view_of(formed, broken, MOVE.committed()).step == 40


def test_every_fact_has_words() -> None:
    lines = [summarise(make.said(fact)) for fact in (*FORMED, MOVE.committed())]
    assert lines[-1] == ("migration.committed   node-1 -> node-2 in slot 1, epoch 2 after step 40")
    assert lines[-2] == "job.formed            node-0, node-1; standbys: node-2"
    assert not worth_showing(make.said(make.progress("node-0", 0, 1)))
    assert worth_showing(make.said(MOVE.committed()))
