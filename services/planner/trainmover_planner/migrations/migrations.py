"""Drives migrations through the protocol and does what each of their ends implies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from trainmover.commands import Prepare
from trainmover.events.machine import MachineQuarantined
from trainmover.job.plan import Forecast, MigrationKind, Move, Plan
from trainmover.job.topology import Membership
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import Migration, MigrationEvent
from trainmover.protocol.table import Deadlines, Phase, Signal, allows
from trainmover_planner.machines.forgetting import bury
from trainmover_planner.rules.budget import note_moved
from trainmover_planner.rules.rebalance import is_rebalance, note_exchange
from trainmover_planner.state.effects import SaveMigration
from trainmover_planner.state.inventory import Incarnation, incarnation_of
from trainmover_planner.state.state import Crashes, State, slot_of
from trainmover_planner.state.transition import Transition

__all__ = [
    "advance",
    "base_of",
    "deadlines",
    "forget",
    "give_up",
    "propose",
    "resend",
    "spend_failed_joiners",
    "start",
]

POLICY: Final = "policy"
"""Who decided, where nobody else did."""

_REMEMBERED: Final = 32
"""So many closed migrations and memberships are known; facts tell of all."""

_STEPS: Final = 4
"""So many steps, as long as they usually are, each phase may take at least."""


def propose(
    transition: Transition,
    *,
    kind: MigrationKind,
    moves: Sequence[Move],
    cause: str,
    incident: str | None = None,
    requested_by: str = POLICY,
    trace: Mapping[str, str] | None = None,
    forecast: Forecast | None = None,
) -> Migration:
    """Give a migration its id and say that it was proposed.

    Args:
        transition: The step under construction.
        kind: Planned or after a failure.
        moves: Who is to leave which slot; none when only the links are formed again.
        cause: One sentence for people.
        incident: The incident behind it, if any.
        requested_by: Who asked.
        trace: W3C trace headers; the incident's when omitted.
        forecast: What it is expected to cost and to save, where policy weighs that.
    """
    number = transition.state.sequence + 1
    fresh = Migration(
        id=f"m-{number:04d}",
        job=transition.state.job,
        kind=kind,
        slot=moves[0].slot if moves else 0,
        leaver=moves[0].leaver if moves else "",
        asked=tuple(move.model_copy(update={"joiner": ""}) for move in moves),
        cause=cause,
        incident=incident,
        requested_by=requested_by,
        forecast=forecast,
        trace=trace or transition.state.traces.get(incident or "", {}),
    )
    transition.set(sequence=number)
    proposed, effects = protocol.propose(fresh, transition.now_s)
    forget(transition)
    transition.keep(proposed)
    _emit(transition, proposed, effects)
    return proposed


def forget(transition: Transition) -> None:
    """Drop closed migrations that are long over, so that a job may go on for ever."""
    state = transition.state
    if len(state.migrations) < 2 * _REMEMBERED:
        return
    every = list(state.migrations.values())
    kept = [one for one in every[:-_REMEMBERED] if one.open] + every[-_REMEMBERED:]
    transition.set(migrations=MappingProxyType({one.id: one for one in kept}))


def start(
    transition: Transition,
    id: str,
    plan: Plan,
    before: Membership,
    *,
    by: str = POLICY,
    why: str = "",
) -> None:
    """Approve a plan and send its commands; ``by`` agreed."""
    epochs = {**transition.state.memberships, plan.epoch: plan.membership}
    for epoch in sorted(epochs)[:-_REMEMBERED]:
        if transition.state.membership is None or epoch < transition.state.membership.epoch:
            del epochs[epoch]
    transition.set(
        issued=max(transition.state.issued, plan.epoch), memberships=MappingProxyType(epochs)
    )
    if plan.kind == "planned" and by == POLICY:
        note_moved(transition, plan)
    note_exchange(transition, transition.state.migrations[id])
    advance(transition, id, protocol.Approve(plan, before, by, why))
    advance(transition, id, protocol.Begin())


def advance(transition: Transition, id: str, event: MigrationEvent) -> None:
    """Give one migration one event.

    Raises:
        ProtocolError: The event is a decision that its phase does not allow.
    """
    old = transition.state.migrations[id]
    new, effects = protocol.step(
        old, event, transition.now_s, deadlines=deadlines(transition.state)
    )
    if new is old:
        return
    # One report among many decides nothing: the phases count them.
    transition.keep(new, looked_at=new.phase is not old.phase or new.failures != old.failures)
    _emit(transition, new, effects)
    if new.failures != old.failures and (new.kind == "failure" or new.phase is Phase.SWITCHING):
        spend_failed_joiners(transition, new)
    if new.phase is old.phase:
        return
    transition.touched.add("phases")
    if not new.open and new.kind == "planned":
        for slot in {move.slot for move in new.moves} or {new.slot}:
            transition.put("cooldown", slot, transition.now_s + transition.state.policy.cooldown_s)
    if new.phase is Phase.COMMITTED:
        _committed(transition, new)


def deadlines(state: State) -> Deadlines:
    """How long phases may last in this job."""
    policy, steps_s = state.policy, _STEPS * state.step_s
    return Deadlines(
        prepare_s=max(policy.prepare_deadline_s, steps_s),
        ready_s=max(policy.ready_deadline_s, steps_s),
        # A joiner after a crash may have to do a step of its own on its way.
        switch_s=max(policy.switch_deadline_s, steps_s),
    )


def give_up(transition: Transition, id: str, reason: str) -> None:
    """End a migration: by an abort while that is possible, as failed afterwards."""
    one = transition.state.migrations[id]
    abort = allows(kind=one.kind, phase=one.phase, signal=Signal.ABORT)
    advance(transition, id, protocol.Abort(reason) if abort else protocol.Fail(reason))


def resend(transition: Transition) -> None:
    """Send what the present phase of the latest migrations implies once more."""
    for one in list(transition.state.migrations.values())[-2:]:
        for send in protocol.standing_commands(one):
            transition.send(send.machine, send.command, id=send.id, urgent=True)
        if one.phase is Phase.COMMITTED and one.plan == _latest_plan(transition.state):
            _release(transition, one, transition.state.membership)


def base_of(state: State) -> Membership:
    """The membership whose machines hold the state of the job.

    The latest committed one, unless a rank was seen at the epoch of a planned move after it: the
    ranks decide when, and they had switched.
    """
    assert state.membership is not None  # noqa: S101 - callers hold a formed job
    base = state.membership
    for one in state.migrations.values():
        if one.kind != "planned" or one.plan is None or one.plan.epoch <= base.epoch:
            continue
        if one.switched or one.plan.epoch in state.seen:
            base = one.plan.membership
    return base


def _emit(transition: Transition, one: Migration, effects: tuple[protocol.Effect, ...]) -> None:
    for effect in effects:
        if isinstance(effect, protocol.Send):
            urgent = not isinstance(effect.command, Prepare)
            transition.send(
                effect.machine, effect.command, id=effect.id, urgent=urgent, trace=one.trace
            )
        else:
            phase = type(effect.payload).__name__.removeprefix("Migration").lower()
            transition.publish(effect.payload, id=f"{one.id}.{phase}", trace=one.trace)
            if not transition.replay:
                transition.commands.append(SaveMigration(one))


def spend_failed_joiners(transition: Transition, one: Migration, *, doubt: bool = False) -> None:
    """Joiners that said they cannot take part in a recovery start a new incarnation.

    Args:
        transition: The step under construction.
        one: The recovery.
        doubt: Those, too, that only lost links to others. Without a death that explains it they
            are not asked again.
    """
    assert one.plan is not None  # noqa: S101 - nobody fails to carry out what has no plan
    failed = {failure.machine for failure in one.failures if doubt or not failure.links_broke}
    for move in one.plan.moves:
        incarnation = incarnation_of(one.plan.membership.members[move.slot])
        if move.joiner not in failed or incarnation in transition.state.spent:
            continue
        transition.set(
            spent=transition.state.spent.put(incarnation, None),
            inventory=transition.state.inventory.spent([incarnation]),
        )
        send = protocol.release(one.plan, incarnation[0], generation=incarnation[1], stop=False)
        transition.send(send.machine, send.command, id=send.id, urgent=True)


def _latest_plan(state: State) -> Plan | None:
    plans = [m.plan for m in state.migrations.values() if m.plan is not None]
    return max(plans, key=lambda plan: plan.epoch, default=None)


def _committed(transition: Transition, one: Migration) -> None:
    assert one.plan is not None  # noqa: S101 - a committed migration has a plan
    state, after = transition.state, one.plan.membership
    old = state.membership
    slots = range(after.layout.slots) if old is None else sorted(old.changed_slots(after))
    transition.set(
        membership=after,
        # The ranks may end with the step that commits it, and some say that they ended first.
        phase=state.phase if state.over else "running",
        reason=state.reason if state.over else "",
        held=(),
        held_s=None,
        crashes=Crashes(),
        attempts=0,
        retry_s=None,
        inventory=state.inventory.spent(incarnation_of(after.members[slot]) for slot in slots),
        broken=MappingProxyType({e: at for e, at in state.broken.items() if e >= after.epoch}),
        seen=frozenset({after.epoch, *(e for e in state.seen if e > after.epoch)}),
        told_break=frozenset(e for e in state.told_break if e >= after.epoch),
        told_save=frozenset(e for e in state.told_save if e >= after.epoch),
    )
    if old is not None:
        _note_slots(transition, old, after, slots)
    for other in transition.state.migrations.values():
        if other.open and other.plan is not None and other.plan.epoch < after.epoch:
            give_up(transition, other.id, f"the job is at epoch {after.epoch} by {one.id}")
    _release(transition, one, old)
    bury(transition)


def _note_slots(
    transition: Transition, old: Membership, after: Membership, slots: Sequence[int]
) -> None:
    """Which machines have no slot: those that left are spare, those that joined no longer."""
    spare, inventory = transition.state.spare, transition.state.inventory
    for slot in slots:
        for member in (old.members[slot], after.members[slot]):
            host = inventory.get(member.machine)
            if host is None:
                continue
            if slot_of(after, host.incarnation) is None:
                spare = spare.put(member.machine, None)
            else:
                spare = spare.drop(member.machine)
    transition.set(spare=spare)


def _blamed(one: Migration) -> dict[str, Migration]:
    """Machines that an incident, not an operator, has taken out by plan.

    One that was only slower than others stays a standby.
    """
    if one.kind != "planned" or not one.incident or is_rebalance(one):
        return {}
    return {move.leaver: one for move in one.moves} or {one.leaver: one}


def _involved(
    state: State, plan: Plan, *, since: int
) -> tuple[dict[Incarnation, None], dict[str, Migration]]:
    """Incarnations that filled a slot, or were told to, by this plan or others after ``since``.

    Returns:
        The incarnations, and whose fault it was that some machines lost their slot.
    """
    incarnations: dict[Incarnation, None] = {}
    blamed: dict[str, Migration] = {}
    for other in state.migrations.values():
        if other.plan is None or not since < other.plan.epoch <= plan.epoch:
            continue
        if other.phase not in (Phase.FAILED, Phase.COMMITTED):
            continue
        blamed |= _blamed(other)
        for move in other.plan.moves:
            memberships = [other.plan.membership, *([other.before] if other.before else [])]
            incarnations |= dict.fromkeys(
                incarnation_of(one.members[move.slot]) for one in memberships
            )
    return incarnations, blamed


def _release(transition: Transition, one: Migration, old: Membership | None) -> None:
    """End the ranks of everybody who filled a slot, or was told to, and has none now."""
    assert one.plan is not None  # noqa: S101 - only called for committed migrations
    plan, state = one.plan, transition.state
    since = 0 if old is None or old.epoch == plan.epoch else old.epoch
    involved, blamed = _involved(state, plan, since=since)
    blamed = _blamed(one) | blamed
    for machine, generation in involved:
        host = state.inventory.get(machine)
        if host is None or host.incarnation != (machine, generation):
            continue
        if slot_of(plan.membership, host.incarnation) is not None:
            continue
        if host.incarnation not in transition.state.spent:
            transition.set(
                inventory=transition.state.inventory.spent([host.incarnation]),
                spent=transition.state.spent.put(host.incarnation, None),
            )
        elsewhere = plan.membership.slot_of_machine(machine) is not None
        why = None if elsewhere else blamed.get(machine)
        known = machine in state.inventory.quarantined or host.incarnation in state.control.pardoned
        if why is not None and not known:
            transition.set(inventory=transition.state.inventory.quarantine(machine, why.cause))
            transition.publish(
                MachineQuarantined(machine=machine, reason=why.cause),
                id=f"{machine}.{generation}.quarantined",
                trace=one.trace,
            )
        if host.incarnation not in state.deaths:
            send = protocol.release(plan, machine, generation=generation, stop=why is not None)
            transition.send(send.machine, send.command, id=send.id, urgent=True)
