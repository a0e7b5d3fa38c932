from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainmover.detection import Finding
from trainmover.detection.guard import Guarded
from trainmover.events import executor, machine, migration
from trainmover.events.incident import (
    DetectorQuarantined,
    IncidentClosed,
    IncidentOpened,
    IncidentUpdated,
)
from trainmover.job.plan import Move, Plan
from trainmover.job.topology import Machine
from trainmover.telemetry.records import RECORD, STEP, Batch, Sections
from trainmover_detector.backlog import Backlog
from trainmover_detector.core import DetectorCore
from trainmover_detector.detectors.liveness import LivenessDetector


class Loud:
    """Finds what it is told to find, at every tick."""

    api_version = 1

    def __init__(self, *findings):
        self.findings = findings
        self.windows, self.epochs = [], []

    def observe(self, window):
        self.windows.append(window)
        return ()

    def notice(self, evidence):
        return ()

    def membership_changed(self, membership):
        self.epochs.append(membership.epoch)

    def tick(self, now_s):
        return self.findings


def slow(machine="w-1", **changes):
    fields = {"kind": "straggler", "machine": machine, "rank": 1, "confidence": 0.9}
    return Finding(**{**fields, "summary": "slow", "evidence": {"lateness": 0.4}, **changes})


def batch(machine="w-1", *, epoch=1, generation=0, count=2):
    records = np.zeros(count, RECORD)
    records["rank"] = int(machine[2:]) if machine.startswith("w-") else 0
    return Batch("demo", machine, generation, epoch, records)


def exited(machine_="w-1", generation=0):
    return machine.WorkerExited(
        machine=machine_, generation=generation, rank=1, epoch=1, exit_code=1, signal=None
    )


def plan(membership_of, kind, epoch=2):
    return Plan(
        id=f"m-{epoch}",
        job="demo",
        kind=kind,
        from_epoch=1,
        membership=membership_of(epoch=epoch, names=["w-0", "w-9", "w-2", "w-3"]),
        moves=(Move(slot=1, leaver="w-1", joiner="w-9"),),
        sources={1: 2},
    )


def approved(membership_of, kind, epoch=2):
    return migration.MigrationApproved(
        migration=f"m-{epoch}",
        kind=kind,
        slot=1,
        leaver="w-1",
        cause="",
        joiner="w-9",
        plan=plan(membership_of, kind, epoch),
    )


def committed(membership_of, kind="failure"):
    return migration.MigrationCommitted(
        migration="m-2",
        kind=kind,
        slot=1,
        leaver="w-1",
        cause="",
        joiner="w-9",
        epoch=2,
        step=5,
        membership=plan(membership_of, kind).membership,
    )


def formed(membership_of):
    return migration.JobFormed(membership=membership_of())


@pytest.fixture
def loud(membership_of):
    detector = Loud(slow())
    core = DetectorCore([Guarded("loud", detector, version="2.1")])
    core.on_fact(formed(membership_of), 0.0)
    return core, detector


def test_one_incident_however_often_it_is_found(loud):
    core, _ = loud
    (opened,) = core.tick(1.0)
    assert isinstance(opened, IncidentOpened)
    assert (opened.id, opened.machine, opened.slot, opened.epoch) == ("i-0001", "w-1", 1, 1)
    assert (opened.detector, opened.detector_version, opened.mode) == ("loud", "2.1", "active")
    assert core.tick(1.2) == []
    (updated,) = core.tick(6.1)
    assert isinstance(updated, IncidentUpdated)
    assert updated.id == "i-0001"


def test_it_closes_when_the_machine_left(loud, membership_of):
    core, detector = loud
    core.tick(1.0)
    detector.findings = ()
    assert core.on_fact(approved(membership_of, "failure"), 2.0) == []
    assert core.membership.epoch == 2, "a recovery counts from its approval"
    (closed,) = core.on_fact(committed(membership_of), 3.0)
    assert isinstance(closed, IncidentClosed)
    assert closed.id == "i-0001"


def test_a_detector_takes_it_back(loud):
    core, detector = loud
    core.tick(1.0)
    detector.findings = (slow(closed=True, summary="fine again"),)
    (closed,) = core.tick(2.0)
    assert closed == IncidentClosed(id="i-0001", reason="fine again")
    assert core.tick(3.0) == []


def test_found_again_at_a_later_epoch(loud, membership_of):
    core, detector = loud
    detector.findings = (slow("w-2"),)
    core.tick(1.0)
    core.on_fact(approved(membership_of, "failure"), 2.0)
    closed, opened = core.tick(3.0)
    assert (closed.id, opened.id, opened.epoch) == ("i-0001", "i-0002", 2)


def test_a_planned_move_counts_when_the_first_rank_switched(loud, membership_of):
    core, detector = loud
    core.on_fact(approved(membership_of, "planned"), 1.0)
    assert core.membership.epoch == 1
    switched = executor.PlanSwitched(
        migration="m-2", machine="w-0", rank=0, epoch=2, step=4, phases_s={}
    )
    core.on_fact(switched, 2.0)
    assert core.membership.epoch == 2
    core.on_fact(committed(membership_of, "planned"), 3.0)
    assert detector.epochs == [1, 2]


def test_records_count_only_from_whom_and_when_they_should(loud):
    core, detector = loud
    core.on_batch(batch(), 1.0)
    core.on_batch(batch(epoch=9), 1.0)
    core.on_batch(batch("standby"), 1.0)
    core.on_batch(batch(generation=7), 1.0)
    assert [(w.machine, len(w.records)) for w in detector.windows] == [
        ("w-1", 2),
        ("w-1", 0),
        ("standby", 0),
    ]


def test_nobody_is_asked_before_the_job_formed():
    detector = Loud(slow())
    core = DetectorCore([Guarded("loud", detector)])
    assert core.tick(1.0) == []
    assert core.on_batch(batch(), 1.0) == []
    assert detector.windows == []


def test_the_end_of_the_job_closes_everything(loud):
    core, _ = loud
    core.tick(1.0)
    (closed,) = core.on_fact(migration.JobFinished(epoch=1, step=9), 2.0)
    assert closed.id == "i-0001"
    assert core.tick(3.0) == []


def test_a_shadow_finding_does_not_hide_an_active_one(membership_of):
    core = DetectorCore([Guarded("new", Loud(slow()), mode="shadow"), Guarded("old", Loud(slow()))])
    core.on_fact(formed(membership_of), 0.0)
    assert [(o.detector, o.mode) for o in core.tick(1.0)] == [
        ("new", "shadow"),
        ("old", "active"),
    ]


def test_a_broken_detector_is_named_once_and_the_others_go_on(membership_of):
    class Broken(Loud):
        def tick(self, now_s):
            raise ZeroDivisionError("oops")

    core = DetectorCore([Guarded("broken", Broken()), Guarded("loud", Loud(slow()))])
    core.on_fact(formed(membership_of), 0.0)
    first, second = core.tick(1.0)
    assert isinstance(first, IncidentOpened)
    assert second == DetectorQuarantined(detector="broken", reason="ZeroDivisionError: oops")
    assert core.tick(2.0) == []


def test_an_incident_about_a_standby_closes_when_it_starts_over(membership_of):
    core = DetectorCore([Guarded("loud", Loud(slow("w-7", kind="machine_failed")))])
    core.on_fact(formed(membership_of), 0.0)
    (opened,) = core.tick(1.0)
    assert opened.slot is None
    again = Machine(name="w-7", generation=1, endpoints=("a:1",))
    (closed,) = core.on_fact(
        machine.MachineRegistered(machine=again, nnodes_min=4, nnodes_max=5, pid=1, host="h"), 2.0
    )
    assert closed.id == opened.id


# -- starting over ---------------------------------------------------------------------------------


def replay(*facts):
    core = DetectorCore([Guarded("liveness", LivenessDetector())])
    backlog = Backlog(core)
    for fact in facts:
        backlog.take(fact, 50.0)
    return core, backlog.rest()


def opened(id="i-0004", epoch=1):
    return IncidentOpened(
        id=id,
        kind="machine_failed",
        machine="w-1",
        epoch=epoch,
        confidence=1,
        summary="",
        detector="liveness",
    )


def test_evidence_that_nobody_saw_is_judged(membership_of):
    _, rest = replay(formed(membership_of), exited())
    (incident,) = rest
    assert (incident.kind, incident.machine) == ("machine_failed", "w-1")


def test_what_was_said_is_not_said_again(membership_of):
    core, rest = replay(formed(membership_of), exited(), opened())
    assert rest == []
    assert [o.id for o in core.incidents] == ["i-0004"]


def test_what_is_over_is_not_said_at_all(membership_of):
    history = [
        formed(membership_of),
        exited(),
        approved(membership_of, "failure"),
        committed(membership_of),
    ]
    _, rest = replay(*history)
    assert rest == []
    _, rest = replay(*history[:2], opened(), *history[2:])
    assert rest == [IncidentClosed(id="i-0004", reason="w-1 holds no slot since epoch 2")]
    _, rest = replay(*history[:2], opened(), *history[2:], rest[0])
    assert rest == []


def test_ids_go_on_where_they_ended(membership_of):
    core, _ = replay(formed(membership_of), exited(), opened("i-0041"))
    said = core.on_fact(
        machine.WorkerExited(
            machine="w-2", generation=0, rank=2, epoch=1, exit_code=1, signal=None
        ),
        60.0,
    )
    assert [o.id for o in said] == ["i-0042"]


def test_nobody_speaks_for_the_ranks_of_others(membership_of):
    """A machine that lies about others is not heard; about its own ranks it is."""
    steps = np.zeros(3, STEP)
    steps["rank"], steps["wait_ns"] = [0, 1, -1], [5, 6, 7]
    told = replace(batch("w-0", count=2), more=Sections(steps=steps))
    told.records["rank"] = [0, 1]
    listener = Loud()
    core = DetectorCore([Guarded("listener", listener)])
    core.on_fact(migration.JobFormed(membership=membership_of()), 0.0)
    core.on_batch(told, 1.0)
    (window,) = listener.windows
    assert window.records["rank"].tolist() == [0]
    assert window.steps["wait_ns"].tolist() == [5]
    assert len(window.more.records) == 1


def test_the_death_of_a_machine_that_is_back_is_closed(membership_of):
    """Restarted in place, it takes its own slot again; findings about others stay."""
    dead = [slow(kind="machine_failed", advice="recover"), slow("w-2")]
    detector = Loud(*dead)
    core = DetectorCore([Guarded("loud", detector)])
    core.on_fact(formed(membership_of), 0.0)
    first, _ = core.tick(1.0)
    detector.findings = ()
    back = committed(membership_of).model_copy(
        update={
            "membership": membership_of(epoch=2),
            "moves": (Move(slot=1, leaver="w-1", joiner="w-1"),),
        }
    )
    (closed,) = core.on_fact(back, 2.0)
    assert isinstance(closed, IncidentClosed)
    assert closed.id == first.id


@pytest.mark.parametrize("after", ["tick", "fact", "many"])
def test_batches_of_a_large_job_are_shown_together_and_in_their_order(membership_of, after):
    watcher = Loud()
    core = DetectorCore([Guarded("loud", watcher)])
    core.on_fact(migration.JobFormed(membership=membership_of(1024)), 0.0)

    machines = [f"w-{slot}" for slot in range(64 if after == "many" else 63)]
    for number, name in enumerate(machines, 1):
        assert not watcher.windows
        core.on_batch(batch(name), number / 1000)
    if after == "tick":
        core.tick(1.0)
    if after == "fact":
        core.on_fact(exited("w-3"), 1.0)

    assert [window.machine for window in watcher.windows] == machines
    assert [window.received_s for window in watcher.windows] == [
        number / 1000 for number in range(1, len(machines) + 1)
    ]
