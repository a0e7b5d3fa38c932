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
from trainmover_planner.migrations import drain, explaining, operating
from trainmover_planner.migrations.migrations import advance, forget, start
from trainmover_planner.recovery import deaths
from trainmover_planner.rules import declaring
from trainmover_planner.state.effects import Fact
from trainmover_planner.state.transition import Transition

__all__ = ["remember"]


def remember(transition: Transition, fact: Fact) -> None:
    """Take in one fact of an earlier planner; others' facts change nothing here."""
    if type_of(fact.payload).by != "planner":
        return
    _of_job(transition, fact.payload)
    _of_migration(transition, fact)
    transition.drop("unannounced", fact.id)  # last: taking it in may have announced it again


def _of_job(transition: Transition, payload: Frozen) -> None:
    state = transition.state
    match payload:
        case migration.JobFormed(membership=membership):
            formation.adopt(transition, membership)
        case migration.JobHeld(slots=slots, reason=reason):
            since_s = transition.now_s if state.held_s is None else state.held_s
            transition.set(phase="held", held=slots, reason=reason, held_s=since_s)
        case migration.JobFinished():
            transition.set(phase="finished")
        case migration.JobFailed(reason=reason):
            transition.set(phase="failed", reason=reason)
        case machine.MachineLost():
            _lost(transition, payload)
        case _:
            _of_operators(transition, payload)


def _of_operators(transition: Transition, payload: Frozen) -> None:
    """What operators asked for, and what was declared."""
    match payload:
        case machine.MachineQuarantined() | operator.MachineUnquarantined():
            operating.apply(transition, payload)
        case operator.AutomationChanged() | machine.MachineReleased():
            operating.apply(transition, payload)
        case operator.PolicyChanged() | operator.PolicyRefused():
            declaring.apply(transition, payload)
        case operator.DrainStarted() | operator.DrainChanged() | operator.DrainEnded():
            drain.apply(transition, payload)
        case operator.PolicyCompared():
            explaining.remember(transition, payload)
        case _:
            pass


def _lost(transition: Transition, fact: machine.MachineLost) -> None:
    if fact.generation is not None:
        deaths.remember(transition, (fact.machine, fact.generation), reason=fact.reason)
    state = transition.state
    host = state.inventory.get(fact.machine)
    if fact.generation is None:  # said before the fact named the incarnation
        incarnations = [
            incarnation for incarnation in state.deaths if incarnation[0] == fact.machine
        ]
    else:
        incarnations = [(fact.machine, fact.generation)]
    said, unsaid = state.said, state.unsaid
    for name, generation in incarnations:
        if (name, generation) in state.deaths:
            said = said.put((f"{name}.{generation}", "lost"), None)
            unsaid = tuple(
                incarnation for incarnation in unsaid if incarnation != (name, generation)
            )
    transition.set(said=said, unsaid=unsaid)
    if host is None or any(incarnation in state.deaths for incarnation in incarnations):
        return
    if fact.generation in (None, host.machine.generation):
        transition.set(inventory=state.inventory.refuse(host.incarnation))


def _of_migration(transition: Transition, fact: Fact) -> None:
    match fact.payload:
        case migration.MigrationProposed() as proposed:
            _proposed(transition, proposed, fact)
        case migration.MigrationApproved() as approved:
            _approved(transition, approved)
        case migration.MigrationSwitching(migration=id) if id in transition.state.migrations:
            advance(transition, id, protocol.SwitchSeen())
        case migration.MigrationRejected() as rejected:
            reject = protocol.Reject(rejected.code, rejected.reason, rejected.rejected_by)
            _decide(transition, rejected.migration, reject)
            one = transition.state.migrations.get(rejected.migration)
            if one is not None and one.incident is not None:
                transition.put("said", (one.incident, rejected.code), None)
        case migration.MigrationAborted() as aborted:
            abort = protocol.Abort(aborted.reason, aborted.aborted_by)
            _decide(transition, aborted.migration, abort)
        case migration.MigrationCommitted() as committed:
            _committed(transition, committed)
        case migration.MigrationFailed() as failed:
            _decide(transition, failed.migration, protocol.Fail(failed.reason))
        case _:
            pass


def _proposed(transition: Transition, payload: migration.MigrationProposed, fact: Fact) -> None:
    if payload.migration in transition.state.migrations:
        return
    one, _ = protocol.propose(
        Migration(
            id=payload.migration,
            job=transition.state.job,
            kind=payload.kind,
            slot=payload.slot,
            leaver=payload.leaver,
            cause=payload.cause,
            asked=payload.moves,
            incident=payload.incident,
            forecast=payload.forecast,
            requested_by=payload.requested_by,
            trace=fact.trace,
        ),
        transition.now_s,
    )
    forget(transition)
    transition.keep(one)
    number = int(one.id.rpartition("-")[2])
    transition.set(sequence=max(transition.state.sequence, number))


def _approved(transition: Transition, fact: migration.MigrationApproved) -> None:
    plan = fact.plan
    one = transition.state.migrations.get(plan.id)
    before = transition.state.memberships.get(plan.from_epoch)
    if one is None or before is None:
        return
    if not allows(kind=one.kind, phase=one.phase, signal=Signal.APPROVE):
        return
    start(transition, one.id, plan, before, by=fact.approved_by, why=fact.approval)
    if plan.kind == "failure":
        transition.set(
            phase="running", held=(), held_s=None, attempts=transition.state.attempts + 1
        )
    early = transition.state.early
    for key, report in early.items():
        if report.migration == one.id:
            early = early.drop(key)
            advance(transition, one.id, protocol.Report(report))
    transition.set(early=early)


def _committed(transition: Transition, fact: migration.MigrationCommitted) -> None:
    """A commit whose reports or plan are not stored any more: it was decided all the same."""
    after, before = fact.membership, transition.state.membership
    if before is not None and after.epoch <= before.epoch:
        return
    one = transition.state.migrations.get(fact.migration)
    if one is None or one.plan is None or not one.open:
        formation.adopt(transition, after)
        return
    for rank in range(after.layout.world_size):
        report = PlanCommitted(
            migration=one.id,
            machine=after.machine_of(rank),
            rank=rank,
            epoch=after.epoch,
            step=fact.step,
        )
        advance(transition, one.id, protocol.Report(report))


def _decide(
    transition: Transition, id: str, event: protocol.Reject | protocol.Abort | protocol.Fail
) -> None:
    one = transition.state.migrations.get(id)
    signal = {
        protocol.Reject: Signal.REJECT,
        protocol.Abort: Signal.ABORT,
        protocol.Fail: Signal.FAIL,
    }[type(event)]
    if one is None:
        return
    if isinstance(event, protocol.Fail) and one.phase in ("preparing", "ready"):
        # It was known to have switched by a broken step at its epoch, not by its own report.
        advance(transition, id, protocol.SwitchSeen())
        one = transition.state.migrations[id]
    if allows(kind=one.kind, phase=one.phase, signal=signal):
        advance(transition, id, event)
