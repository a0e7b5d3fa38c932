"""A rank as a state machine: (state, event) -> (state, actions).

No I/O, no clock, no randomness, no threads: the shell says what happened and does what follows.
The same events give the same actions, so a rank can be replayed and simulated.
"""

from __future__ import annotations

from trainmover.events.executor import StepBroken
from trainmover.job.plan import Plan
from trainmover_executor.decisions import orders
from trainmover_executor.decisions.effects import (
    Abort,
    Action,
    Agreed,
    BetweenBroke,
    BetweenPassed,
    Break,
    Broke,
    CouldNotJoin,
    DropParked,
    Event,
    FirstVote,
    HandedOut,
    Heard,
    Joined,
    Joins,
    LeadFailed,
    LeadPaused,
    Led,
    Left,
    Noted,
    NotParked,
    Parked,
    Publish,
    Recovers,
    SaveTaken,
    Starts,
    Stopped,
    Switched,
    VoteBegun,
    VoteBroke,
    VotePassed,
    Warm,
)
from trainmover_executor.decisions.state import Phase, WorkerState
from trainmover_executor.decisions.transition import Transition

__all__ = ["step"]


def step(state: WorkerState, event: Event) -> tuple[WorkerState, tuple[Action, ...]]:
    """Take in one event.

    Args:
        state: What the rank knows.
        event: What happened.

    Returns:
        What it knows now, and what it does about it, in order.

    Raises:
        ProtocolError: The rank cannot come to that from the phase it is in: a bug.
    """
    transition = Transition(state)
    match event:
        case Broke(reason=reason, epoch=epoch):
            transition.breaks(reason, epoch)
        case Heard() | Abort() | Parked() | NotParked():
            _on_order(transition, event)
        case VoteBegun() | VotePassed() | VoteBroke() | BetweenPassed() | BetweenBroke() | Noted():
            _on_vote(transition, event)
        case FirstVote(at_end=at_end):
            transition.set(votes_at_end=at_end)
        case Starts(committed=committed):
            transition.set(committed=committed, origin=committed)
        case Warm() | Joins() | CouldNotJoin() | Joined():
            _on_joining(transition, event)
        case Led() | LeadFailed() | LeadPaused() | Switched() | Left():
            _on_move(transition, event)
        case Stopped() | SaveTaken() | Recovers() | Agreed() | HandedOut():
            _on_recovery(transition, event)
    return transition.state, tuple(transition.actions)


def _on_order(transition: Transition, event: Heard | Abort | Parked | NotParked) -> None:
    match event:
        case Heard():
            orders.on_heard(transition, event)
        case Abort():
            orders.on_abort(transition, event)
        case Parked():
            orders.on_parked(transition, event)
        case NotParked():
            orders.on_not_parked(transition, event)


# -- the vote ------------------------------------------------------------------------------------


def _on_vote(
    transition: Transition,
    event: VoteBegun | VotePassed | VoteBroke | BetweenPassed | BetweenBroke | Noted,
) -> None:
    match event:
        case VoteBegun(may_switch=may_switch):
            transition.set(
                phase="voting", voted_on=transition.state.prepared if may_switch else None
            )
        case VotePassed():
            _on_vote_passed(transition, event)
        case VoteBroke(reason=reason, cast=cast):
            transition.set(phase="training", undecided="step" if cast else "")
            _end_vote(transition)
            transition.breaks(reason)
        case BetweenPassed():
            transition.set(between=transition.state.between + 1)
        case BetweenBroke(reason=reason):
            transition.set(undecided="between")
            transition.breaks(reason)
        case Noted():
            transition.set(confirmed=None)


def _on_vote_passed(transition: Transition, event: VotePassed) -> None:
    state = transition.state
    voted_on = state.voted_on
    transition.set(
        committed=state.committed + 1,
        confirmed=state.unconfirmed,
        unconfirmed=None,
        votes_at_end=event.at_end,
    )
    if voted_on is not None and event.lowest == event.highest == voted_on.epoch:
        # Every rank voted for it: an abort that came meanwhile is too late.
        transition.set(
            phase="switching", switching=voted_on, prepared=None, voted_on=None, aborted=False
        )
    else:
        transition.set(phase="training")
        _end_vote(transition)


def _end_vote(transition: Transition) -> None:
    """The vote decided nothing about the plan voted on: now it may be aborted."""
    voted_on, aborted = transition.state.voted_on, transition.state.aborted
    if voted_on is None:
        return
    transition.set(voted_on=None, aborted=False)
    if aborted:
        transition.set(prepared=None, leading=None)
        transition.do(DropParked(voted_on.epoch))


# -- epochs --------------------------------------------------------------------------------------


def _enter(transition: Transition, plan: Plan, phase: Phase) -> None:
    """Be at the epoch of ``plan``, with new links: what broke before is over."""
    if transition.state.broken_at < plan.epoch:
        transition.set(broken=None)
    _advance(transition, plan, phase)
    newer = transition.state.next_recovery
    if newer is not None:  # do not start what is superseded
        transition.breaks(f"migration {newer.id} takes the job to epoch {newer.epoch}")


def _advance(transition: Transition, plan: Plan, phase: Phase) -> None:
    state = transition.state
    transition.set(
        phase=phase,
        epoch=plan.epoch,
        preparing=frozenset(epoch for epoch in state.preparing if epoch >= plan.epoch),
        prepared=_after(state.prepared, plan.epoch),
        leading=_after(state.leading, plan.epoch),
    )


def _after(plan: Plan | None, epoch: int) -> Plan | None:
    return plan if plan is not None and plan.epoch > epoch else None


# -- joiners -------------------------------------------------------------------------------------


def _on_joining(transition: Transition, event: Warm | Joins | CouldNotJoin | Joined) -> None:
    match event:
        case Warm():
            transition.set(phase="warm")
        case Joins(plan=plan):
            _enter(transition, plan, "joining")
        case CouldNotJoin(plan=plan, reason=reason, links_broke=links_broke):
            transition.set(phase="warm")
            if not transition.state.withdrawn(plan):
                transition.failed(plan, reason, links_broke=links_broke)
        case Joined(plan=plan, committed=committed, between=between, at_end=at_end):
            transition.set(
                phase="training",
                standby=False,
                joining=None if transition.state.joining == plan else transition.state.joining,
                unconfirmed=plan,
                committed=committed,
                between=between,
                votes_at_end=at_end,
            )


# -- planned moves -------------------------------------------------------------------------------


def _on_move(
    transition: Transition, event: Led | LeadFailed | LeadPaused | Switched | Left
) -> None:
    state = transition.state
    match event:
        case Led(plan=plan, took_s=took_s):
            if state.leading == plan:  # else it is off by now
                transition.set(prepared=plan)
                transition.prepared(plan, took_s=took_s)
        case LeadPaused(plan=plan):
            if state.prepared == plan:
                transition.set(prepared=None)
        case LeadFailed(plan=plan, reason=reason):
            # Voted for already: the hand-over will find out.
            if state.leading == plan and state.switching != plan:
                orders.take_back(transition, plan.epoch)
                transition.failed(plan, reason)
        case Switched(plan=plan):
            _advance(transition, plan, "training")
            transition.set(switching=None, unconfirmed=plan)
            if transition.state.broken is not None:
                # The links of the epoch before go on: what broke there stays broken.
                transition.set(broken_at=plan.epoch)
                transition.do(Break(plan.epoch, transition.state.broken))
        case Left():
            transition.set(phase="left", switching=None)


# -- recovery ------------------------------------------------------------------------------------


def _on_recovery(
    transition: Transition, event: Stopped | SaveTaken | Recovers | Agreed | HandedOut
) -> None:
    state = transition.state
    match event:
        case Stopped():
            transition.set(phase="broken")
            transition.do(
                Publish(
                    StepBroken(
                        machine=state.machine,
                        rank=state.rank,
                        epoch=state.epoch,
                        committed_step=state.committed,
                        reason=state.broken or "",
                    )
                )
            )
        case SaveTaken():
            transition.set(save=None)
        case Recovers(plan=plan):
            _enter(transition, plan, "agreeing")
        case Agreed():
            _on_agreed(transition, event)
        case HandedOut():
            transition.set(phase="training", recovering=None)


def _on_agreed(transition: Transition, event: Agreed) -> None:
    """All survivors have what was undecided, or none: whoever saw more says so."""
    state, plan = transition.state, event.plan
    more = (event.committed - state.committed, event.between - state.between)
    held = (state.undecided == "step", state.undecided == "between")
    transition.set(
        phase="recovering",
        undecided="",
        votes_at_end=event.at_end,
        switching=None,
        recovering=plan,
        unconfirmed=plan,
    )
    if more in {(0, 0), held}:
        transition.set(committed=event.committed, between=event.between)
        return
    transition.set(
        refusal=f"this rank completed {state.committed} steps, the others {event.committed}"
    )
