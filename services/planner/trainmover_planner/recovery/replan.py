"""Writes the plan of a recovery, or says why there is none: hold the job, or give it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainmover.commands import Release
from trainmover.errors import RequestRefusedError
from trainmover.events.machine import MachineLost
from trainmover.events.migration import FailureCode, JobFailed
from trainmover.job.plan import Move, Plan
from trainmover.job.topology import Member, Membership
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import Migration
from trainmover.protocol.table import Phase
from trainmover_planner.machines.assignment import assign, sources
from trainmover_planner.machines.evidence import deaths_of, gone, gone_slots, stuck, unproven, why
from trainmover_planner.machines.forgetting import forget_machines
from trainmover_planner.machines.survival import Copies, Replicas
from trainmover_planner.migrations.migrations import advance, base_of, give_up, propose, start
from trainmover_planner.recovery import exhausted
from trainmover_planner.recovery.crashes import restarts
from trainmover_planner.state.inventory import Life, life_of
from trainmover_planner.state.state import State, seat_of
from trainmover_planner.state.turn import Turn

__all__ = ["announce_losses", "fail_job", "replan"]


def replan(turn: Turn) -> None:
    """Nothing is under way: write a recovery plan if the job needs one."""
    state = turn.state
    assert state.membership is not None  # noqa: S101 - checked by the caller
    base, failed = base_of(state), _failed_since(state)
    keep, kept = _keep(base, failed, state)
    lost = gone_slots(state, keep)
    found = stuck(state, base, epochs=[state.membership.epoch, base.epoch])
    regroup = found.all and turn.now_s >= found.last_s + state.regroup_s
    if not lost and not regroup and failed is None:
        return
    dead = [base.members[s].machine for s in state.dead_slots(base)]
    cause = why(state, keep) or why(state, base) or "the step broke on every rank"
    if failed is not None and not lost and not dead:
        cause = failed.reason
    if any(base.holds(machine, rank) for machine, rank in state.finished):
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
    prefer = restarts(state, lost, turn.now_s)
    joiners = assign(state, lost, keep=keep, fallback=state.membership, prefer=prefer)
    after = keep.replace(joiners or {}, epoch=state.issued + 1)
    moving = set(base.changed_slots(after))
    moving |= unproven(state, base) | frozenset(kept) | frozenset(lost)
    own = {s for s in moving if after.members[s] == state.membership.members[s]}
    stale = any(
        m.committed
        for m in state.migrations.values()
        if m.plan and m.open is False and m.plan.epoch > state.membership.epoch
    )
    try:
        givers = sources(
            base.layout,
            Replicas(state),
            followers=Copies(state, base),
            joining=moving,
            whole=() if stale else own,
        )
    except RequestRefusedError as refusal:
        _reject(turn, base=base, lost=lost, cause=cause, refusal=refusal)
        return
    if joiners is None:
        if prefer:
            return  # their machines start over; a standby takes the slot when that takes too long
        exhausted.hold(turn, lost, cause)
        given_up = exhausted.is_given_up(turn, base)
        if given_up:
            fail_job(turn, reason=given_up, next_step=exhausted.NEXT_STEP, code="exhausted")
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
        moves=moves,
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
    turn.set(
        phase="running",
        reason="",
        held=(),
        held_s=None,
        attempts=state.attempts + 1,
        retry_s=None,
    )
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
    lives = turn.state.unsaid
    turn.set(unsaid=())
    for machine, generation in lives:
        death = turn.state.deaths.get((machine, generation))
        key = (f"{machine}.{generation}", "lost")
        if death is None or key in turn.state.said:
            continue
        turn.put("said", key, None)
        turn.publish(
            MachineLost(machine=machine, reason=death.reason, generation=generation),
            id=f"{machine}.{generation}.lost",
            trace=turn.state.traces.get(death.incident or "", {}),
        )
        _invite_back(turn, (machine, generation))
    forget_machines(turn)


def _invite_back(turn: Turn, life: Life) -> None:
    """A standby that was only cut off does not know that it was given up: let it register anew."""
    state = turn.state
    machine, generation = life
    host = state.inventory.get(machine)
    seated = any(seat_of(seats, life) is not None for seats in state.seats)
    if host is None or host.life != life or seated or life in state.spent:
        return
    release = Release(generation=generation, epoch=state.issued, then="standby")
    id = f"{state.job}:{machine}:{generation}:back"
    turn.send(machine, release, id=id)


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
        if not gone(state, failed.plan.membership.members[move.slot])
        and (failed.before == base or gone(state, base.members[move.slot]))
    }
    seated = {m.machine for s, m in enumerate(base.members) if s not in kept}
    kept = {slot: member for slot, member in kept.items() if member.machine not in seated}
    return base.replace(kept, epoch=state.issued + 1), kept


def _incident_of(state: State, base: Membership) -> str | None:
    return next((d.incident for d in deaths_of(state, base) if d.incident), None)


def _trace_of(state: State, base: Membership) -> Mapping[str, str]:
    trace: Mapping[str, str] = state.traces.get(_incident_of(state, base) or "", {})
    return trace


def _reject(
    turn: Turn, *, base: Membership, lost: list[int], cause: str, refusal: RequestRefusedError
) -> None:
    one = propose(
        turn,
        kind="failure",
        moves=[Move(slot=s, leaver=base.members[s].machine, joiner="") for s in lost or [0]],
        cause=cause,
        incident=_incident_of(turn.state, base),
    )
    advance(turn, one.id, protocol.Reject(code=refusal.code, reason=f"{cause}. {refusal}"))
    reason = str(refusal).removesuffix(refusal.next_step).strip()
    fail_job(turn, reason=f"{cause}. {reason}", next_step=refusal.next_step)


def fail_job(turn: Turn, *, reason: str, next_step: str, code: FailureCode = "failed") -> None:
    """Give the job up and stop every machine."""
    flight = turn.state.flight
    if flight is not None:
        give_up(turn, flight.id, reason)
    turn.set(phase="failed", reason=reason)
    turn.publish(JobFailed(reason=reason, next_step=next_step, code=code), id="job.failed")
