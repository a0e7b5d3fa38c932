"""Writes the plan of a recovery, or says why there is none: hold the job, or give it up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainmover.commands import Release
from trainmover.errors import RequestRefusedError
from trainmover.events.machine import MachineLost
from trainmover.events.migration import FailureCode, JobFailed
from trainmover.job.plan import Candidate, Move, Plan
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
from trainmover_planner.state.inventory import Incarnation, incarnation_of
from trainmover_planner.state.state import State, slot_of
from trainmover_planner.state.transition import Transition

__all__ = ["announce_losses", "fail_job", "replan"]


def replan(transition: Transition) -> None:
    """Nothing is under way: write a recovery plan if the job needs one."""
    state = transition.state
    assert state.membership is not None  # noqa: S101 - checked by the caller
    base, failed = base_of(state), _failed_since(state)
    keep, kept = _keep(base, failed, state)
    lost = gone_slots(state, keep)
    found = stuck(state, base, epochs=[state.membership.epoch, base.epoch])
    regroup = found.all and transition.now_s >= found.last_s + state.regroup_s
    if not lost and not regroup and failed is None:
        return
    dead = [base.members[s].machine for s in state.dead_slots(base)]
    cause = why(state, keep) or why(state, base) or "the step broke on every rank"
    if failed is not None and not lost and not dead:
        cause = failed.reason
    if any(base.holds(machine, rank) for machine, rank in state.finished):
        fail_job(
            transition,
            reason=f"{cause}. Other ranks had already finished, so the step cannot be redone.",
            next_step="Start the job again from its latest checkpoint.",
        )
        return
    if state.attempts >= state.policy.max_attempts:
        last = cause if failed is None else f"{cause}; {failed.reason}"
        fail_job(
            transition,
            reason=f"{state.attempts} recovery plans in a row did not commit; the last: {last}",
            next_step="Look at `trainmover migration ls` and the workers' logs for the reason.",
        )
        return
    prefer = restarts(state, lost, transition.now_s)
    chosen = assign(
        state,
        lost,
        keep=keep,
        fallback=state.membership,
        now_s=transition.now_s,
        prefer=prefer,
    )
    after = keep.replace(chosen.members if chosen else {}, epoch=state.issued + 1)
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
        _reject(transition, base=base, lost=lost, cause=cause, refusal=refusal)
        return
    if chosen is None:
        if prefer:
            return  # their machines start over; a standby takes the slot when that takes too long
        exhausted.hold(transition, lost, cause)
        given_up = exhausted.is_given_up(transition, base)
        if given_up:
            fail_job(transition, reason=given_up, next_step=exhausted.NEXT_STEP, code="exhausted")
        return
    _publish_plan(
        transition,
        base=base,
        after=after,
        moving=moving,
        givers=givers,
        candidates=chosen.candidates,
        cause=cause,
    )


def _publish_plan(
    transition: Transition,
    *,
    base: Membership,
    after: Membership,
    moving: Iterable[int],
    givers: Mapping[int, int],
    candidates: tuple[Candidate, ...],
    cause: str,
) -> None:
    state = transition.state
    moves = tuple(
        Move(slot=s, leaver=base.members[s].machine, joiner=after.members[s].machine)
        for s in sorted(moving)
    )
    one = propose(
        transition,
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
        candidates=candidates,
    )
    transition.set(
        phase="running",
        reason="",
        held=(),
        held_s=None,
        attempts=state.attempts + 1,
        retry_s=None,
    )
    start(transition, one.id, plan, base)
    for slot in state.dead_slots(base):
        _fence(transition, plan, base.members[slot])


def _fence(transition: Transition, plan: Plan, member: Member) -> None:
    """A machine believed dead may only be frozen: end it should it come back."""
    machine, generation = incarnation_of(member)
    host = transition.state.inventory.get(machine)
    if host is not None and host.machine.generation == generation:
        send = protocol.release(plan, machine, generation=generation, stop=True)
        transition.send(send.machine, send.command, id=send.id, urgent=True)


def announce_losses(transition: Transition) -> None:
    """Say once of each incarnation that was given up."""
    incarnations = transition.state.unsaid
    transition.set(unsaid=())
    for machine, generation in incarnations:
        death = transition.state.deaths.get((machine, generation))
        key = (f"{machine}.{generation}", "lost")
        if death is None or key in transition.state.said:
            continue
        transition.put("said", key, None)
        transition.publish(
            MachineLost(machine=machine, reason=death.reason, generation=generation),
            id=f"{machine}.{generation}.lost",
            trace=transition.state.traces.get(death.incident or "", {}),
        )
        _invite_back(transition, (machine, generation))
    forget_machines(transition)


def _invite_back(transition: Transition, incarnation: Incarnation) -> None:
    """A standby that was only cut off does not know that it was given up: let it register anew."""
    state = transition.state
    machine, generation = incarnation
    host = state.inventory.get(machine)
    placed = any(
        slot_of(membership, incarnation) is not None for membership in state.current_memberships
    )
    if host is None or host.incarnation != incarnation or placed or incarnation in state.spent:
        return
    release = Release(generation=generation, epoch=state.issued, then="standby")
    id = f"{state.job}:{machine}:{generation}:back"
    transition.send(machine, release, id=id)


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
    placed = {m.machine for s, m in enumerate(base.members) if s not in kept}
    kept = {slot: member for slot, member in kept.items() if member.machine not in placed}
    return base.replace(kept, epoch=state.issued + 1), kept


def _incident_of(state: State, base: Membership) -> str | None:
    return next((d.incident for d in deaths_of(state, base) if d.incident), None)


def _trace_of(state: State, base: Membership) -> Mapping[str, str]:
    trace: Mapping[str, str] = state.traces.get(_incident_of(state, base) or "", {})
    return trace


def _reject(
    transition: Transition,
    *,
    base: Membership,
    lost: list[int],
    cause: str,
    refusal: RequestRefusedError,
) -> None:
    one = propose(
        transition,
        kind="failure",
        moves=[Move(slot=s, leaver=base.members[s].machine, joiner="") for s in lost or [0]],
        cause=cause,
        incident=_incident_of(transition.state, base),
    )
    advance(transition, one.id, protocol.Reject(code=refusal.code, reason=f"{cause}. {refusal}"))
    reason = str(refusal).removesuffix(refusal.next_step).strip()
    fail_job(transition, reason=f"{cause}. {reason}", next_step=refusal.next_step)


def fail_job(
    transition: Transition, *, reason: str, next_step: str, code: FailureCode = "failed"
) -> None:
    """Give the job up and stop every machine."""
    flight = transition.state.flight
    if flight is not None:
        give_up(transition, flight.id, reason)
    transition.set(phase="failed", reason=reason)
    transition.publish(JobFailed(reason=reason, next_step=next_step, code=code), id="job.failed")
