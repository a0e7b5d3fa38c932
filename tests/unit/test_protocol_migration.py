from __future__ import annotations

import pytest

from trainmover.errors import ProtocolError
from trainmover.events import executor
from trainmover.job.plan import Move, Plan
from trainmover.job.topology import Layout, Member, Membership
from trainmover.protocol.migration import (
    Abort,
    Approve,
    Begin,
    Fail,
    Migration,
    Publish,
    Reject,
    Report,
    Send,
    SwitchSeen,
    Tick,
    propose,
    release,
    standing_commands,
)
from trainmover.protocol.migration import (
    step as bare_step,
)
from trainmover.protocol.table import Deadlines


def membership_of(epoch, *names):
    return Membership(
        epoch=epoch,
        layout=Layout(slots=len(names)),
        members=tuple(Member(machine=n, generation=0, endpoints=(f"{n}:1",)) for n in names),
    )


LIMITS = Deadlines(prepare_s=60, ready_s=60, switch_s=30)


def step(state, event, now_s):
    return bare_step(state, event, now_s, deadlines=LIMITS)


BEFORE = membership_of(1, "a", "b", "c")


def plan(kind="planned", epoch=2):
    return Plan(
        id="m-1",
        job="demo",
        kind=kind,
        from_epoch=1,
        membership=membership_of(epoch, "a", "x", "c"),
        moves=(Move(slot=1, leaver="b", joiner="x"),),
        sources={1: 1 if kind == "planned" else 2},
    )


def begun(kind="planned"):
    fresh = Migration(id="m-1", job="demo", kind=kind, slot=1, leaver="b", cause="why")
    state, _ = propose(fresh, 0.0)
    state, _ = step(state, Approve(plan(kind), BEFORE), 1.0)
    return step(state, Begin(), 2.0)


def report(kind, machine, rank, **more):
    extra = {
        executor.PlanPrepared: {"prepare_s": 0.1},
        executor.PlanSwitched: {"step": 7, "phases_s": {"links": 0.1 * rank}},
        executor.PlanCommitted: {"step": 7},
        executor.PlanFailed: {"reason": "no route", "step_safe": True},
    }[kind]
    fields = {"migration": "m-1", "machine": machine, "rank": rank, "epoch": 2, **extra, **more}
    return Report(kind(**fields))


WHO = (("a", 0), ("x", 1), ("c", 2))
PREPARED = (*WHO, ("b", 1))  # the leaver, too: its joiner is up to date


def play(state, *events, now_s=3.0):
    """State, names of the facts, and machine:verb of the commands."""
    effects = []
    for event in events:
        state, more = step(state, event, now_s)
        effects += more
    facts = [type(e.payload).__name__ for e in effects if isinstance(e, Publish)]
    sent = [f"{e.machine}:{e.command.verb}" for e in effects if isinstance(e, Send)]
    return state, facts, sent


def test_golden_planned():
    state, effects = begun()
    sent = [e for e in effects if isinstance(e, Send)]
    assert [f"{e.machine}:{e.command.verb}" for e in sent] == [
        "a:prepare",
        "b:prepare",
        "c:prepare",
        "x:prepare",
    ]
    assert sent[0].id == "m-1:a:prepare"
    state, facts, sent = play(
        state,
        *(report(executor.PlanPrepared, *who) for who in PREPARED),
        *(report(executor.PlanSwitched, *who) for who in WHO),
        *(report(executor.PlanCommitted, *who) for who in WHO),
    )
    assert facts == ["MigrationReady", "MigrationSwitching", "MigrationCommitted"]
    assert sent == []
    assert [phase.value for phase, _ in state.history] == [
        "proposed",
        "approved",
        "preparing",
        "ready",
        "switching",
        "committed",
    ]
    assert state.phases_s == {"links": pytest.approx(0.2)}
    assert (state.step, state.joiner) == (7, "x")


def test_golden_failure():
    state, effects = begun("failure")
    assert [f"{e.machine}:{e.command.verb}" for e in effects if isinstance(e, Send)] == [
        "a:recover",
        "x:recover",
        "c:recover",
    ]
    state, facts, _ = play(state, *(report(executor.PlanCommitted, *who) for who in WHO))
    assert facts == ["MigrationSwitching", "MigrationCommitted"]


def test_the_leavers_report_is_not_waited_for():
    state, _ = begun()
    _, facts, _ = play(state, report(executor.PlanPrepared, "b", 1))
    assert facts == []


def test_reports_of_other_epochs_and_repeated_ones_change_nothing():
    state, _ = begun()
    once, _ = step(state, report(executor.PlanSwitched, "a", 0), 3.0)
    twice, effects = step(once, report(executor.PlanSwitched, "a", 0), 4.0)
    assert (twice, effects) == (once, ())
    stale, effects = step(state, report(executor.PlanSwitched, "a", 0, epoch=9), 3.0)
    assert (stale, effects) == (state, ())


@pytest.mark.parametrize("event", [Abort("x"), Fail("x"), Begin(), Reject("c", "r")])
def test_decisions_after_the_end_are_refused(event):
    state, _ = begun()
    state, *_ = play(state, *(report(executor.PlanCommitted, *who) for who in WHO))
    with pytest.raises(ProtocolError, match="m-1 cannot go from committed to"):
        step(state, event, 5.0)


def test_abort_tells_everybody_and_a_late_switch_takes_it_back():
    state, _ = begun()
    state, facts, sent = play(state, Abort("operator"))
    assert facts == ["MigrationAborted"]
    assert sent == [f"{m}:abort_migration" for m in ("a", "b", "c", "x")]
    state, facts, _ = play(state, *(report(executor.PlanCommitted, *who) for who in WHO))
    assert facts == ["MigrationSwitching", "MigrationCommitted"]


def test_a_failed_rank_aborts_phase_one_but_not_the_switch():
    state, _ = begun()
    aborted, facts, _ = play(state, report(executor.PlanFailed, "x", 1))
    assert facts == ["MigrationAborted"]
    assert "rank 1 on x" in aborted.reason
    switching, facts, _ = play(state, SwitchSeen(), report(executor.PlanFailed, "x", 1))
    assert facts == ["MigrationSwitching"]
    assert len(switching.failures) == 1


def test_deadlines():
    state, _ = begun()
    assert state.deadline_s == 62.0
    assert play(state, Tick(), now_s=61.9)[1] == []
    late, facts, sent = play(state, Tick(), now_s=62.0)
    assert facts == ["MigrationAborted"]
    assert len(sent) == 4
    assert "still preparing after 60.0 s; waiting for ranks [0, 1, 2]" in late.reason
    switching, *_ = play(state, report(executor.PlanSwitched, "a", 0), now_s=50.0)
    _, facts, _ = play(switching, Tick(), now_s=80.0)
    assert facts == ["MigrationFailed"]


def test_a_recovery_has_one_deadline_for_all_its_phases():
    state, _ = begun("failure")
    assert state.deadline_s == 32.0
    state, *_ = play(state, report(executor.PlanSwitched, "a", 0), now_s=30.0)
    assert state.deadline_s == 32.0
    assert play(state, Tick(), now_s=32.0)[1] == ["MigrationFailed"]


def test_standing_commands_are_those_of_the_phase():
    state, effects = begun()
    assert standing_commands(state) == tuple(e for e in effects if isinstance(e, Send))
    committed, *_ = play(state, *(report(executor.PlanCommitted, *who) for who in WHO))
    assert standing_commands(committed) == ()
    fresh = Migration(id="m", job="demo", kind="planned", slot=0, leaver="a", cause="")
    assert standing_commands(fresh) == ()


def test_release():
    sent = release(plan(), "b", generation=3, stop=False)
    assert (sent.machine, sent.id) == ("b", "m-1:b:release")
    assert (sent.command.generation, sent.command.epoch, sent.command.then) == (3, 2, "standby")
    assert release(plan(), "b", generation=3, stop=True).command.then == "stop"
