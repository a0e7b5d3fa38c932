"""What happens when machines die: who is replaced, from which truth, and when to hold or give up.

Every function looks at the state alone, so it makes no difference in which order evidence came,
or whether the planner itself was restarted in between.
"""

from __future__ import annotations

from trainmover.commands import BreakStep
from trainmover.job.topology import Membership
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import Migration
from trainmover.protocol.table import Phase
from trainmover_planner.machines.evidence import deaths_of, stuck, why
from trainmover_planner.migrations.migrations import (
    advance,
    base_of,
    deadlines,
    give_up,
    spend_failed_joiners,
)
from trainmover_planner.recovery import exhausted
from trainmover_planner.recovery.crashes import bug_of, restarts_until_s
from trainmover_planner.recovery.replan import fail_job, replan
from trainmover_planner.recovery.uneven import NEXT_STEP, uneven
from trainmover_planner.state.state import State
from trainmover_planner.state.transition import Transition

__all__ = ["recover", "waits_until_s", "wakes_s"]


def recover(transition: Transition) -> None:
    """Do what dead machines and broken steps call for, if anything does."""
    state = transition.state
    if state.membership is None or state.over or _is_well(state):
        return
    bug = bug_of(transition.state)
    if bug:
        fail_job(transition, reason=bug, next_step="Fix the program.", code="program")
        return
    apart = uneven(state, base_of(state), now_s=transition.now_s)
    if apart:
        fail_job(transition, reason=apart, next_step=NEXT_STEP, code="program")
        return
    _break_steps(transition)
    flight = transition.state.flight
    if flight is not None and flight.kind == "planned":
        _settle(transition, flight)
    elif flight is not None:
        _judge(transition, flight)
    if transition.state.flight is None:
        replan(transition)


def _is_well(state: State) -> bool:
    """Whether there is nothing to recover from: so it is nearly always."""
    return not (state.open or state.deaths or state.spent or state.broken or state.held) and not (
        state.crashes.every or state.migrations
    )


def wakes_s(state: State) -> list[float]:
    """Times at which ``recover`` may decide something although nothing happened."""
    if state.membership is None or state.over:
        return []
    policy = state.policy
    times = [death.at_s + policy.truth_s for death in deaths_of(state, state.membership)]
    times += exhausted.wakes_s(state) + restarts_until_s(state)
    for breaks in state.broken.values():
        times += [breaks.first_s + state.regroup_s, breaks.last_s + state.regroup_s]
    if state.retry_s is not None:
        times.append(state.retry_s)
    return times


def waits_until_s(state: State, one: Migration, *, now_s: float) -> float:
    """Until when a recovery may last whose deadline is over: survivors may not have come to it.

    In an evaluation or a body that does not communicate nothing tells a program that a machine
    died. It goes on to the next collective, however long that takes, and every plan waits for it.
    """
    if one.kind != "failure" or one.before is None or one.plan is None:
        return now_s
    late = {epoch: breaks for epoch, breaks in state.broken.items() if epoch >= one.before.epoch}
    came = {who for breaks in late.values() for who in breaks.ranks}
    limit_s = deadlines(state).switch_s
    for rank in range(one.before.layout.world_size):
        who = (one.before.machine_of(rank), rank)
        survives = one.plan.membership.holds(*who)
        if survives and who not in came and who not in one.switched:
            return now_s + limit_s
    return max((breaks.last_s for breaks in late.values()), default=0.0) + limit_s


def _break_steps(transition: Transition) -> None:
    """The second route by which survivors learn that a peer cannot be waited for."""
    state = transition.state
    assert state.membership is not None  # noqa: S101 - checked by the caller
    flight = state.flight
    present = [state.membership, base_of(state)]
    if flight is not None and flight.kind == "failure" and flight.plan is not None:
        present.append(flight.plan.membership)
    for membership in present:
        epoch = membership.epoch
        if epoch in transition.state.told_break or epoch < state.membership.epoch:
            continue
        dead = dict.fromkeys(state.dead_slots(membership))
        found = stuck(state, membership, epochs=[epoch])
        waited = found.some and transition.now_s >= found.first_s + state.policy.regroup_s
        if not dead and not (waited and not found.all):
            continue
        transition.set(told_break=transition.state.told_break | {epoch})
        names = [membership.members[slot].machine for slot in dead]
        reason = f"machine {', '.join(names)} failed" if names else "a peer's step broke"
        order = BreakStep(epoch=epoch, reason=reason)
        for slot, member in enumerate(membership.members):
            if slot not in dead:
                id = f"{state.job}:{member.machine}:{epoch}:break"
                transition.send(member.machine, order, id=id, urgent=True)


def _settle(transition: Transition, one: Migration) -> None:
    """A planned move is under way: end it if what happened cannot be reconciled with it."""
    state, now_s = transition.state, transition.now_s
    assert state.membership is not None  # noqa: S101 - checked by the caller
    assert one.plan is not None  # noqa: S101 - proposals are approved in the same step
    current, base = state.membership, base_of(state)
    regroup_s, after = state.regroup_s, one.plan.membership
    if base == after:
        if one.phase is not Phase.SWITCHING:
            advance(transition, one.id, protocol.SwitchSeen())
        found = stuck(state, after, epochs=[current.epoch, after.epoch])
        joiner_failed = bool(_refusal_of(one))
        # A leaver that died while it handed over explains a joiner that could not: do not wait.
        explained = one.before is not None and bool(state.dead_slots(one.before))
        others_failed = bool(one.failures) and (explained or _waited(transition))
        if joiner_failed or others_failed or state.dead_slots(after):
            advance(transition, one.id, protocol.Fail(why(state, after) or "the joiner could not"))
        elif found.all and now_s >= found.last_s + regroup_s:
            advance(
                transition, one.id, protocol.Fail("the step after the switch broke on every rank")
            )
        return
    if one.before != base:
        give_up(transition, one.id, f"the ranks are at epoch {base.epoch} by an earlier plan")
        return
    dead = state.dead_slots(current)
    found = stuck(state, current, epochs=[current.epoch])
    if dead:
        known = _all_broken(state, current, but=dead)
        first_s = min(death.at_s for death in deaths_of(state, current))
        if known or now_s >= first_s + state.policy.truth_s:
            give_up(transition, one.id, why(state, current))
    elif state.dead_slots(after):
        give_up(transition, one.id, why(state, after))
    elif found.all and now_s >= found.last_s + regroup_s:
        give_up(transition, one.id, "the step broke on every rank")


def _all_broken(state: State, current: Membership, *, but: list[int]) -> bool:
    """Whether every rank broke its step at this epoch or a later one, but for some slots'."""
    late = [breaks for epoch, breaks in state.broken.items() if epoch >= current.epoch]
    absent = [(current.members[s].machine, r) for s in but for r in current.layout.ranks_of(s)]
    count = sum(current.holds(*who) for breaks in late for who in breaks.ranks)
    count -= sum(who in breaks.ranks for breaks in late for who in absent)
    return count == current.layout.world_size - len(absent)


def _judge(transition: Transition, one: Migration) -> None:
    """A recovery is under way: has its plan become impossible?"""
    state = transition.state
    assert one.plan is not None  # noqa: S101 - proposals are approved in the same step
    assert one.before is not None  # noqa: S101 - a plan has a membership it starts from
    after = one.plan.membership
    found = stuck(state, after, epochs=[after.epoch])
    reason = ""
    if state.dead_slots(after):
        reason = why(state, after)
    elif refusal := _refusal_of(one):
        reason = f"the joiner could not take the slot: {refusal}"
    elif base_of(state).epoch > one.before.epoch:
        reason = "a planned move had switched before the failure"
    elif one.failures and _waited(transition):
        spend_failed_joiners(transition, one, doubt=True)
        reason = f"rank {one.failures[0].rank} could not: {one.failures[0].reason}"
    elif found.all and transition.now_s >= found.last_s + state.regroup_s:
        reason = "the step broke again on every rank"
    if reason:
        advance(transition, one.id, protocol.Fail(reason))


def _refusal_of(one: Migration) -> str:
    """Why a joiner said that it cannot, for people; empty if none did. It is not asked again.

    One that only lost its links is heard like a survivor: a second machine may have died.
    """
    joiners = {move.joiner for move in one.moves}
    refusals = [f for f in one.failures if f.machine in joiners and not f.links_broke]
    return f"rank {refusals[0].rank}: {refusals[0].reason}" if refusals else ""


def _waited(transition: Transition) -> bool:
    """A survivor could not: somebody may be dead, so give the evidence a moment."""
    if transition.state.retry_s is None:
        transition.set(retry_s=transition.now_s + transition.state.regroup_s)
        return False
    return transition.now_s >= transition.state.retry_s
