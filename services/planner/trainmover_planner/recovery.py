"""What happens when machines die: who is replaced, from which truth, and when to hold or give up.

Every function looks at the state alone, so it makes no difference in which order evidence came,
or whether the planner itself was restarted in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainmover.commands import BreakStep
from trainmover.errors import RequestRefusedError
from trainmover.events.machine import MachineLost
from trainmover.events.migration import JobFailed, JobHeld
from trainmover.plan import Move, Plan
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import Migration
from trainmover.protocol.table import Phase
from trainmover.topology import Member, Membership
from trainmover_planner.assignment import assign, sources
from trainmover_planner.inventory import life_of
from trainmover_planner.migrations import advance, base_of, give_up, propose, start
from trainmover_planner.state import Death, State, Turn

__all__ = ["announce_losses", "fail_job", "recover", "wakes_s"]


def recover(turn: Turn) -> None:
    """Do what dead machines and broken steps call for, if anything does."""
    if turn.state.membership is None or turn.state.over:
        return
    _break_steps(turn)
    flight = turn.state.flight
    if flight is not None and flight.kind == "planned":
        _settle(turn, flight)
    elif flight is not None:
        _judge(turn, flight)
    if turn.state.flight is None:
        _plan(turn)


def wakes_s(state: State) -> list[float]:
    """Times at which ``recover`` may decide something although nothing happened."""
    if state.membership is None or state.over:
        return []
    settings = state.settings
    times = [death.at_s + settings.truth_s for death in _deaths_of(state, state.membership)]
    times += [at_s + settings.regroup_s for _, at_s in state.broken.values()]
    if state.retry_s is not None:
        times.append(state.retry_s)
    return times


def fail_job(turn: Turn, *, reason: str, next_step: str) -> None:
    """Give the job up and stop every machine."""
    flight = turn.state.flight
    if flight is not None:
        give_up(turn, flight.id, reason)
    turn.set(phase="failed", reason=reason)
    turn.stop_everybody(reason)
    turn.publish(JobFailed(reason=reason, next_step=next_step), id="job.failed")


# -- evidence --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stuck:
    """How many ranks of a membership wait in ``recovering``, and since when."""

    some: bool
    all: bool
    first_s: float
    last_s: float


def _stuck(state: State, membership: Membership, *, epochs: Iterable[int]) -> _Stuck:
    """Which ranks broke their step at one of ``epochs``; a joiner that never ran may be silent."""
    wanted, numbers = membership.layout.world_size, frozenset(epochs)
    exempt = _unproven(state, membership)
    broken: list[float] = []
    silent = 0
    for rank in range(wanted):
        epoch, at_s = state.broken.get((membership.machine_of(rank), rank), (0, 0.0))
        if epoch in numbers:
            broken.append(at_s)
        elif membership.layout.slot_of(rank) in exempt:
            silent += 1
    return _Stuck(
        some=bool(broken),
        all=bool(broken) and len(broken) + silent == wanted,
        first_s=min(broken, default=0.0),
        last_s=max(broken, default=0.0),
    )


def _deaths_of(state: State, membership: Membership) -> list[Death]:
    return [
        state.deaths[life_of(membership.members[slot])] for slot in state.dead_slots(membership)
    ]


def _unproven(state: State, membership: Membership) -> frozenset[int]:
    """Slots whose machine was to join by the plan of this epoch and has not said that it did."""
    plan_of = (m for m in state.migrations.values() if m.plan and m.plan.membership == membership)
    one = next(plan_of, None)
    if one is None or one.plan is None or one.phase is Phase.COMMITTED:
        return frozenset()
    layout = membership.layout
    return frozenset(
        move.slot
        for move in one.plan.moves
        if not {(move.joiner, rank) for rank in layout.ranks_of(move.slot)} <= one.switched
    )


# -- decisions -------------------------------------------------------------------------------------


def _break_steps(turn: Turn) -> None:
    """The second route by which survivors learn that a peer cannot be waited for."""
    state = turn.state
    assert state.membership is not None  # noqa: S101 - checked by the caller
    flight = state.flight
    present = [state.membership, base_of(state)]
    if flight is not None and flight.kind == "failure" and flight.plan is not None:
        present.append(flight.plan.membership)
    for membership in present:
        epoch = membership.epoch
        if epoch in turn.state.told_break or epoch < state.membership.epoch:
            continue
        dead = state.dead_slots(membership)
        stuck = _stuck(state, membership, epochs=[epoch])
        waited = stuck.some and turn.now_s >= stuck.first_s + state.settings.regroup_s
        if not dead and not (waited and not stuck.all):
            continue
        turn.set(told_break=turn.state.told_break | {epoch})
        names = [membership.members[slot].machine for slot in dead]
        reason = f"machine {', '.join(names)} failed" if names else "a peer's step broke"
        for slot, member in enumerate(membership.members):
            if slot not in dead:
                turn.send(
                    member.machine,
                    BreakStep(epoch=epoch, reason=reason),
                    id=f"{state.job}:{member.machine}:{epoch}:break",
                    urgent=True,
                )


def _settle(turn: Turn, one: Migration) -> None:
    """A planned move is under way: end it if what happened cannot be reconciled with it."""
    state, now_s = turn.state, turn.now_s
    assert state.membership is not None  # noqa: S101 - checked by the caller
    assert one.plan is not None  # noqa: S101 - proposals are approved in the same step
    current, base = state.membership, base_of(state)
    regroup_s, after = state.settings.regroup_s, one.plan.membership
    if base == after:
        if one.phase is not Phase.SWITCHING:
            advance(turn, one.id, protocol.SwitchSeen())
        stuck = _stuck(state, after, epochs=[current.epoch, after.epoch])
        joiner_failed = _joiner_failed(one)
        others_failed = bool(one.failures) and _waited(turn)
        if joiner_failed or others_failed or state.dead_slots(after):
            advance(turn, one.id, protocol.Fail(_why(state, after) or "the joiner could not"))
        elif stuck.all and now_s >= stuck.last_s + regroup_s:
            advance(turn, one.id, protocol.Fail("the step after the switch broke on every rank"))
        return
    if one.before != base:
        give_up(turn, one.id, f"the ranks are at epoch {base.epoch} by an earlier plan")
        return
    dead = state.dead_slots(current)
    stuck = _stuck(state, current, epochs=[current.epoch])
    if dead:
        known = all(
            state.broken.get((current.machine_of(rank), rank), (0, 0.0))[0] >= current.epoch
            for rank in range(current.layout.world_size)
            if current.layout.slot_of(rank) not in dead
        )
        first_s = min(death.at_s for death in _deaths_of(state, current))
        if known or now_s >= first_s + state.settings.truth_s:
            give_up(turn, one.id, _why(state, current))
    elif state.dead_slots(after):
        give_up(turn, one.id, _why(state, after))
    elif stuck.all and now_s >= stuck.last_s + regroup_s:
        give_up(turn, one.id, "the step broke on every rank")


def _judge(turn: Turn, one: Migration) -> None:
    """A recovery is under way: has its plan become impossible?"""
    state = turn.state
    assert one.plan is not None  # noqa: S101 - proposals are approved in the same step
    assert one.before is not None  # noqa: S101 - a plan has a membership it starts from
    after = one.plan.membership
    stuck = _stuck(state, after, epochs=[after.epoch])
    reason = ""
    if state.dead_slots(after):
        reason = _why(state, after)
    elif _joiner_failed(one):
        reason = "the joiner could not take the slot"
    elif base_of(state).epoch > one.before.epoch:
        reason = "a planned move had switched before the failure"
    elif one.failures and _waited(turn):
        reason = f"rank {one.failures[0].rank} could not: {one.failures[0].reason}"
    elif stuck.all and turn.now_s >= stuck.last_s + state.settings.regroup_s:
        reason = "the step broke again on every rank"
    if reason:
        advance(turn, one.id, protocol.Fail(reason))


def _joiner_failed(one: Migration) -> bool:
    """Whether a joiner said that it cannot; it is not asked again in this life."""
    joiners = {move.joiner for move in one.plan.moves} if one.plan is not None else set()
    return any(failure.machine in joiners for failure in one.failures)


def _waited(turn: Turn) -> bool:
    """A survivor could not: somebody may be dead, so give the evidence a moment."""
    if turn.state.retry_s is None:
        turn.set(retry_s=turn.now_s + turn.state.settings.regroup_s)
        return False
    return turn.now_s >= turn.state.retry_s


def _why(state: State, membership: Membership) -> str:
    return "; ".join(
        f"machine {membership.members[slot].machine} failed: {death.reason}"
        for slot, death in zip(
            state.dead_slots(membership), _deaths_of(state, membership), strict=True
        )
    )


# -- the plan --------------------------------------------------------------------------------------


def _plan(turn: Turn) -> None:
    """Nothing is under way: write a recovery plan if the job needs one."""
    state = turn.state
    assert state.membership is not None  # noqa: S101 - checked by the caller
    base, failed = base_of(state), _failed_since(state)
    keep, kept = _keep(base, failed, state)
    lost = [s for s, m in enumerate(keep.members) if _gone(state, m)]
    stuck = _stuck(state, base, epochs=[state.membership.epoch, base.epoch])
    regroup = stuck.all and turn.now_s >= stuck.last_s + state.settings.regroup_s
    if not lost and not regroup and failed is None:
        return
    dead = [base.members[s].machine for s in state.dead_slots(base)]
    cause = _why(state, keep) or _why(state, base) or "the step broke on every rank"
    if failed is not None and not lost and not dead:
        cause = failed.reason
    if state.finished & {(m.machine, r) for m, r in _ranks(base)}:
        fail_job(
            turn,
            reason=f"{cause}. Other ranks had already finished, so the step cannot be redone.",
            next_step="Start the job again from its latest checkpoint.",
        )
        return
    if state.attempts >= state.settings.max_attempts:
        fail_job(
            turn,
            reason=f"{state.attempts} recovery plans in a row did not commit; the last: {cause}",
            next_step="Look at `trainmover migrations ls` and the workers' logs for the reason.",
        )
        return
    joiners = assign(state, lost, keep=keep, fallback=state.membership)
    after = keep.replace(joiners or {}, epoch=state.issued + 1)
    moving = {s for s in range(base.layout.slots) if after.members[s] != base.members[s]}
    moving |= _unproven(state, base) | frozenset(kept) | frozenset(lost)
    own = {s for s in moving if after.members[s] == state.membership.members[s]}
    stale = any(
        m.committed
        for m in state.migrations.values()
        if m.plan and m.open is False and m.plan.epoch > state.membership.epoch
    )
    try:
        givers = sources(base.layout, state.replicas, joining=moving, whole=() if stale else own)
    except RequestRefusedError as refusal:
        _reject(turn, base=base, lost=lost, cause=cause, refusal=refusal)
        return
    if joiners is None:
        _hold(turn, lost, cause)
        return
    _publish_plan(turn, base=base, after=after, moving=moving, givers=givers, cause=cause)


def _publish_plan(
    turn: Turn,
    *,
    base: Membership,
    after: Membership,
    moving: Iterable[int],
    givers: Mapping[int, int],
    cause: str,
) -> None:
    state = turn.state
    moves = tuple(
        Move(slot=s, leaver=base.members[s].machine, joiner=after.members[s].machine)
        for s in sorted(moving)
    )
    one = propose(
        turn,
        kind="failure",
        slot=moves[0].slot if moves else 0,
        leaver=moves[0].leaver if moves else "",
        cause=cause,
        incident=_incident_of(state, base),
        trace=_trace_of(state, base),
    )
    plan = Plan(
        id=one.id,
        job=state.job,
        kind="failure",
        from_epoch=base.epoch,
        membership=after,
        moves=moves,
        sources=givers,
    )
    turn.set(phase="running", reason="", held=(), attempts=state.attempts + 1, retry_s=None)
    start(turn, one.id, plan, base)
    for slot in state.dead_slots(base):
        _fence(turn, plan, base.members[slot])


def _fence(turn: Turn, plan: Plan, member: Member) -> None:
    """A machine believed dead may only be frozen: end it should it come back."""
    machine, generation = life_of(member)
    host = turn.state.inventory.get(machine)
    if host is not None and host.machine.generation == generation:
        send = protocol.release(plan, machine, generation=generation, stop=True)
        turn.send(send.machine, send.command, id=send.id, urgent=True)


def announce_losses(turn: Turn) -> None:
    """Say once of each life that was given up."""
    for (machine, generation), death in turn.state.deaths.items():
        key = (f"{machine}.{generation}", "lost")
        if key not in turn.state.said:
            turn.set(said=turn.state.said | {key})
            turn.publish(
                MachineLost(machine=machine, reason=death.reason),
                id=f"{machine}.{generation}.lost",
                trace=turn.state.traces.get(death.incident or "", {}),
            )


def _failed_since(state: State) -> Migration | None:
    """The latest migration that failed after the latest commit."""
    assert state.membership is not None  # noqa: S101 - checked by the caller
    failed = [
        m
        for m in state.migrations.values()
        if m.phase is Phase.FAILED and m.plan and m.plan.epoch > state.membership.epoch
    ]
    return failed[-1] if failed else None


def _keep(
    base: Membership, failed: Migration | None, state: State
) -> tuple[Membership, dict[int, Member]]:
    """``base`` with the joiners that an earlier recovery already called for, and those."""
    if failed is None or failed.plan is None or failed.kind != "failure":
        return base, {}
    kept = {
        move.slot: failed.plan.membership.members[move.slot]
        for move in failed.plan.moves
        if not _gone(state, failed.plan.membership.members[move.slot])
        and (failed.before == base or _gone(state, base.members[move.slot]))
    }
    seated = {m.machine for s, m in enumerate(base.members) if s not in kept}
    kept = {slot: member for slot, member in kept.items() if member.machine not in seated}
    return base.replace(kept, epoch=state.issued + 1), kept


def _gone(state: State, member: Member) -> bool:
    return life_of(member) in state.deaths or life_of(member) in state.spent


def _ranks(membership: Membership) -> list[tuple[Member, int]]:
    layout = membership.layout
    return [(m, r) for s, m in enumerate(membership.members) for r in layout.ranks_of(s)]


def _incident_of(state: State, base: Membership) -> str | None:
    return next((d.incident for d in _deaths_of(state, base) if d.incident), None)


def _trace_of(state: State, base: Membership) -> Mapping[str, str]:
    return state.traces.get(_incident_of(state, base) or "", {})


def _hold(turn: Turn, slots: list[int], cause: str) -> None:
    if turn.state.held == tuple(slots):
        return
    reason = f"{cause}. No standby can take slots {slots}; the ranks wait. Add a machine."
    turn.set(phase="held", reason=reason, held=tuple(slots))
    turn.publish(
        JobHeld(slots=tuple(slots), reason=reason),
        id=f"job.held.{turn.state.issued}.{'-'.join(map(str, slots))}",
    )


def _reject(
    turn: Turn, *, base: Membership, lost: list[int], cause: str, refusal: RequestRefusedError
) -> None:
    slot = lost[0] if lost else 0
    one = propose(
        turn,
        kind="failure",
        slot=slot,
        leaver=base.members[slot].machine,
        cause=cause,
        incident=_incident_of(turn.state, base),
    )
    advance(turn, one.id, protocol.Reject(code=refusal.code, reason=f"{cause}. {refusal}"))
    reason = str(refusal).removesuffix(refusal.next_step).strip()
    fail_job(turn, reason=f"{cause}. {reason}", next_step=refusal.next_step)
