"""The planner's own facts, read again by a planner that starts over.

They are decisions that were taken: nothing is decided again.
"""

from __future__ import annotations

from trainmover.events import machine, migration, operator, type_of
from trainmover.events.executor import PlanCommitted
from trainmover.job.topology import Frozen
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import Migration
from trainmover.protocol.table import Signal, allows
from trainmover_planner.machines import formation
from trainmover_planner.migrations import steering
from trainmover_planner.migrations.migrations import advance, forget, start
from trainmover_planner.state.effects import Fact
from trainmover_planner.state.turn import Turn

__all__ = ["remember"]


def remember(turn: Turn, fact: Fact) -> None:
    """Take in one fact of an earlier planner; others' facts change nothing here."""
    if type_of(fact.payload).by != "planner":
        return
    _of_job(turn, fact.payload)
    _of_migration(turn, fact)
    turn.drop("unannounced", fact.id)  # last: taking it in may have announced it again


def _of_job(turn: Turn, payload: Frozen) -> None:
    state = turn.state
    match payload:
        case migration.JobFormed(membership=membership):
            formation.adopt(turn, membership)
        case migration.JobHeld(slots=slots, reason=reason):
            since_s = turn.now_s if state.held_s is None else state.held_s
            turn.set(phase="held", held=slots, reason=reason, held_s=since_s)
        case migration.JobFinished():
            turn.set(phase="finished")
        case migration.JobFailed(reason=reason):
            turn.set(phase="failed", reason=reason)
        case machine.MachineLost():
            _lost(turn, payload)
        case machine.MachineQuarantined() | operator.MachineReleased():
            steering.apply(turn, payload)
        case operator.AutomationChanged():
            steering.apply(turn, payload)
        case _:
            pass


def _lost(turn: Turn, fact: machine.MachineLost) -> None:
    state = turn.state
    host = state.inventory.get(fact.machine)
    if fact.generation is None:  # said before the fact named the life
        lives = [life for life in state.deaths if life[0] == fact.machine]
    else:
        lives = [(fact.machine, fact.generation)]
    said, unsaid = state.said, state.unsaid
    for name, generation in lives:
        if (name, generation) in state.deaths:
            said = said.put((f"{name}.{generation}", "lost"), None)
            unsaid = tuple(life for life in unsaid if life != (name, generation))
    turn.set(said=said, unsaid=unsaid)
    if host is None or any(life in state.deaths for life in lives):
        return
    if fact.generation in (None, host.machine.generation):
        turn.set(inventory=state.inventory.refuse(host.life))


def _of_migration(turn: Turn, fact: Fact) -> None:
    match fact.payload:
        case migration.MigrationProposed() as proposed:
            _proposed(turn, proposed, fact)
        case migration.MigrationApproved() as approved:
            _approved(turn, approved)
        case migration.MigrationSwitching(migration=id) if id in turn.state.migrations:
            advance(turn, id, protocol.SwitchSeen())
        case migration.MigrationRejected() as rejected:
            reject = protocol.Reject(rejected.code, rejected.reason, rejected.rejected_by)
            _decide(turn, rejected.migration, reject)
            one = turn.state.migrations.get(rejected.migration)
            if one is not None and one.incident is not None:
                turn.put("said", (one.incident, rejected.code), None)
        case migration.MigrationAborted() as aborted:
            abort = protocol.Abort(aborted.reason, aborted.aborted_by)
            _decide(turn, aborted.migration, abort)
        case migration.MigrationCommitted() as committed:
            _committed(turn, committed)
        case migration.MigrationFailed() as failed:
            _decide(turn, failed.migration, protocol.Fail(failed.reason))
        case _:
            pass


def _proposed(turn: Turn, payload: migration.MigrationProposed, fact: Fact) -> None:
    if payload.migration in turn.state.migrations:
        return
    one, _ = protocol.propose(
        Migration(
            id=payload.migration,
            job=turn.state.job,
            kind=payload.kind,
            slot=payload.slot,
            leaver=payload.leaver,
            cause=payload.cause,
            asked=payload.moves,
            incident=payload.incident,
            requested_by=payload.requested_by,
            trace=fact.trace,
        ),
        turn.now_s,
    )
    forget(turn)
    turn.keep(one)
    number = int(one.id.rpartition("-")[2])
    turn.set(sequence=max(turn.state.sequence, number))


def _approved(turn: Turn, fact: migration.MigrationApproved) -> None:
    plan = fact.plan
    one = turn.state.migrations.get(plan.id)
    before = turn.state.memberships.get(plan.from_epoch)
    if one is None or before is None:
        return
    if not allows(kind=one.kind, phase=one.phase, signal=Signal.APPROVE):
        return
    start(turn, one.id, plan, before, by=fact.approved_by, why=fact.approval)
    if plan.kind == "failure":
        turn.set(phase="running", held=(), held_s=None, attempts=turn.state.attempts + 1)
    early = turn.state.early
    for key, report in early.items():
        if report.migration == one.id:
            early = early.drop(key)
            advance(turn, one.id, protocol.Report(report))
    turn.set(early=early)


def _committed(turn: Turn, fact: migration.MigrationCommitted) -> None:
    """A commit whose reports or plan are not stored any more: it was decided all the same."""
    after, before = fact.membership, turn.state.membership
    if before is not None and after.epoch <= before.epoch:
        return
    one = turn.state.migrations.get(fact.migration)
    if one is None or one.plan is None or not one.open:
        formation.adopt(turn, after)
        return
    for rank in range(after.layout.world_size):
        report = PlanCommitted(
            migration=one.id,
            machine=after.machine_of(rank),
            rank=rank,
            epoch=after.epoch,
            step=fact.step,
        )
        advance(turn, one.id, protocol.Report(report))


def _decide(turn: Turn, id: str, event: protocol.Reject | protocol.Abort | protocol.Fail) -> None:
    one = turn.state.migrations.get(id)
    signal = {
        protocol.Reject: Signal.REJECT,
        protocol.Abort: Signal.ABORT,
        protocol.Fail: Signal.FAIL,
    }[type(event)]
    if one is None:
        return
    if isinstance(event, protocol.Fail) and one.phase in ("preparing", "ready"):
        # It was known to have switched by a broken step at its epoch, not by its own report.
        advance(turn, id, protocol.SwitchSeen())
        one = turn.state.migrations[id]
    if allows(kind=one.kind, phase=one.phase, signal=signal):
        advance(turn, id, event)
