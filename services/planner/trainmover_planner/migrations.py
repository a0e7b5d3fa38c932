"""Drives migrations through the protocol and does what each of their ends implies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainmover.commands import Prepare
from trainmover.events.machine import MachineQuarantined
from trainmover.plan import MigrationKind, Move, Plan
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import Migration, MigrationEvent
from trainmover.protocol.table import Phase, Signal, allows
from trainmover.topology import Membership
from trainmover_planner.inventory import Life, life_of
from trainmover_planner.state import SaveMigration, State, Turn

__all__ = [
    "advance",
    "base_of",
    "give_up",
    "propose",
    "resend",
    "spend_failed_joiners",
    "start",
]


def propose(
    turn: Turn,
    *,
    kind: MigrationKind,
    moves: Sequence[Move],
    cause: str,
    incident: str | None = None,
    requested_by: str = "policy",
    trace: Mapping[str, str] | None = None,
) -> Migration:
    """Give a migration its id and say that it was proposed.

    Args:
        turn: The step under construction.
        kind: Planned or after a failure.
        moves: Who is to leave which slot; none when only the links are formed again.
        cause: One sentence for people.
        incident: The incident behind it, if any.
        requested_by: Who asked.
        trace: W3C trace headers; the incident's when omitted.
    """
    number = turn.state.sequence + 1
    fresh = Migration(
        id=f"m-{number:04d}",
        job=turn.state.job,
        kind=kind,
        slot=moves[0].slot if moves else 0,
        leaver=moves[0].leaver if moves else "",
        asked=tuple(move.model_copy(update={"joiner": ""}) for move in moves),
        cause=cause,
        incident=incident,
        requested_by=requested_by,
        trace=trace or turn.state.traces.get(incident or "", {}),
    )
    turn.set(sequence=number)
    proposed, effects = protocol.propose(fresh, turn.now_s)
    turn.put("migrations", proposed.id, proposed)
    _emit(turn, proposed, effects)
    return proposed


def start(
    turn: Turn, id: str, plan: Plan, before: Membership, *, by: str = "policy", why: str = ""
) -> None:
    """Approve a plan and send its commands; ``by`` agreed."""
    epochs = {**turn.state.memberships, plan.epoch: plan.membership}
    turn.set(issued=max(turn.state.issued, plan.epoch), memberships=epochs)
    advance(turn, id, protocol.Approve(plan, before, by, why))
    advance(turn, id, protocol.Begin())


def advance(turn: Turn, id: str, event: MigrationEvent) -> None:
    """Give one migration one event.

    Raises:
        ProtocolError: The event is a decision that its phase does not allow.
    """
    old = turn.state.migrations[id]
    new, effects = protocol.step(old, event, turn.now_s, deadlines=turn.state.settings.deadlines)
    if new == old:
        return
    turn.put("migrations", id, new)
    _emit(turn, new, effects)
    if new.failures != old.failures and (new.kind == "failure" or new.phase is Phase.SWITCHING):
        spend_failed_joiners(turn, new)
    if new.phase is old.phase:
        return
    if not new.open and new.kind == "planned":
        for slot in {move.slot for move in new.moves} or {new.slot}:
            turn.put("cooldown", slot, turn.now_s + turn.state.settings.cooldown_s)
    if new.phase is Phase.COMMITTED:
        _committed(turn, new)


def give_up(turn: Turn, id: str, reason: str) -> None:
    """End a migration: by an abort while that is possible, as failed afterwards."""
    one = turn.state.migrations[id]
    abort = allows(kind=one.kind, phase=one.phase, signal=Signal.ABORT)
    advance(turn, id, protocol.Abort(reason) if abort else protocol.Fail(reason))


def resend(turn: Turn) -> None:
    """Send what the present phase of the latest migrations implies once more."""
    for one in list(turn.state.migrations.values())[-2:]:
        for send in protocol.standing_commands(one):
            turn.send(send.machine, send.command, id=send.id, urgent=True)
        if one.phase is Phase.COMMITTED and one.plan == _latest_plan(turn.state):
            _release(turn, one, turn.state.membership)


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
        if one.switched or one.plan.epoch in state.seen.values():
            base = one.plan.membership
    return base


def _emit(turn: Turn, one: Migration, effects: tuple[protocol.Effect, ...]) -> None:
    for effect in effects:
        if isinstance(effect, protocol.Send):
            urgent = not isinstance(effect.command, Prepare)
            turn.send(effect.machine, effect.command, id=effect.id, urgent=urgent, trace=one.trace)
        else:
            phase = type(effect.payload).__name__.removeprefix("Migration").lower()
            turn.publish(effect.payload, id=f"{one.id}.{phase}", trace=one.trace)
            if not turn.replay:
                turn.commands.append(SaveMigration(one))


def spend_failed_joiners(turn: Turn, one: Migration, *, doubt: bool = False) -> None:
    """Joiners that said they cannot take part in a recovery start a new life.

    Args:
        turn: The step under construction.
        one: The recovery.
        doubt: Those, too, that only lost links to others. Without a death that explains it they
            are not asked again.
    """
    assert one.plan is not None  # noqa: S101 - nobody fails to carry out what has no plan
    failed = {failure.machine for failure in one.failures if doubt or not failure.links_broke}
    for move in one.plan.moves:
        life = life_of(one.plan.membership.members[move.slot])
        if move.joiner not in failed or life in turn.state.spent:
            continue
        turn.set(spent=turn.state.spent | {life}, inventory=turn.state.inventory.spent([life]))
        send = protocol.release(one.plan, life[0], generation=life[1], stop=False)
        turn.send(send.machine, send.command, id=send.id, urgent=True)


def _latest_plan(state: State) -> Plan | None:
    plans = [m.plan for m in state.migrations.values() if m.plan is not None]
    return max(plans, key=lambda plan: plan.epoch, default=None)


def _committed(turn: Turn, one: Migration) -> None:
    assert one.plan is not None  # noqa: S101 - a committed migration has a plan
    state, after = turn.state, one.plan.membership
    old = state.membership
    turn.set(
        membership=after,
        # The ranks may end with the step that commits it, and some say that they ended first.
        phase=state.phase if state.over else "running",
        reason=state.reason if state.over else "",
        held=(),
        held_s=None,
        crashes=(),
        attempts=0,
        retry_s=None,
        inventory=state.inventory.spent(life_of(member) for member in after.members),
        broken={who: at for who, at in state.broken.items() if at[0] >= after.epoch},
    )
    for other in turn.state.migrations.values():
        if other.open and other.plan is not None and other.plan.epoch < after.epoch:
            give_up(turn, other.id, f"the job is at epoch {after.epoch} by {one.id}")
    _release(turn, one, old)


def _blamed(one: Migration) -> dict[str, Migration]:
    """Machines that an incident, not an operator, has taken out by plan."""
    if one.kind != "planned" or not one.incident:
        return {}
    return {move.leaver: one for move in one.moves} or {one.leaver: one}


def _release(turn: Turn, one: Migration, old: Membership | None) -> None:
    """End the ranks of everybody who filled a slot, or was told to, and has none now."""
    assert one.plan is not None  # noqa: S101 - only called for committed migrations
    plan, state = one.plan, turn.state
    since = 0 if old is None or old.epoch == plan.epoch else old.epoch
    involved: dict[Life, None] = {}
    blamed = _blamed(one)
    for other in state.migrations.values():
        if other.plan is None or not since < other.plan.epoch <= plan.epoch:
            continue
        if other.phase not in (Phase.FAILED, Phase.COMMITTED):
            continue
        blamed |= _blamed(other)
        lives = [*other.plan.membership.members, *(other.before.members if other.before else ())]
        involved |= dict.fromkeys(life_of(member) for member in lives)
    seated = {life_of(member) for member in plan.membership.members}
    names = {machine for machine, _ in seated}
    for machine, generation in involved:
        host = state.inventory.get(machine)
        if (machine, generation) in seated or host is None or host.life != (machine, generation):
            continue
        if host.life not in turn.state.spent:
            turn.set(
                inventory=turn.state.inventory.spent([host.life]),
                spent=turn.state.spent | {host.life},
            )
        why = blamed.get(machine) if machine not in names else None
        known = machine in state.inventory.quarantined or host.life in state.control.pardoned
        if why is not None and not known:
            turn.set(inventory=turn.state.inventory.quarantine(machine, why.cause))
            turn.publish(
                MachineQuarantined(machine=machine, reason=why.cause),
                id=f"{machine}.{generation}.quarantined",
                trace=one.trace,
            )
        if host.life not in state.deaths:
            send = protocol.release(plan, machine, generation=generation, stop=why is not None)
            turn.send(send.machine, send.command, id=send.id, urgent=True)
