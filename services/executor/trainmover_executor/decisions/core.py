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
from trainmover_executor.decisions.turn import Turn

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
    turn = Turn(state)
    match event:
        case Broke(reason=reason, epoch=epoch):
            turn.breaks(reason, epoch)
        case Heard() | Abort() | Parked() | NotParked():
            _on_order(turn, event)
        case VoteBegun() | VotePassed() | VoteBroke() | BetweenPassed() | BetweenBroke() | Noted():
            _on_vote(turn, event)
        case FirstVote(at_end=at_end):
            turn.set(votes_at_end=at_end)
        case Starts(committed=committed):
            turn.set(committed=committed, origin=committed)
        case Warm() | Joins() | CouldNotJoin() | Joined():
            _on_joining(turn, event)
        case Led() | LeadFailed() | LeadPaused() | Switched() | Left():
            _on_move(turn, event)
        case Stopped() | SaveTaken() | Recovers() | Agreed() | HandedOut():
            _on_recovery(turn, event)
    return turn.state, tuple(turn.actions)


def _on_order(turn: Turn, event: Heard | Abort | Parked | NotParked) -> None:
    match event:
        case Heard():
            orders.on_heard(turn, event)
        case Abort():
            orders.on_abort(turn, event)
        case Parked():
            orders.on_parked(turn, event)
        case NotParked():
            orders.on_not_parked(turn, event)


# -- the vote ------------------------------------------------------------------------------------


def _on_vote(
    turn: Turn,
    event: VoteBegun | VotePassed | VoteBroke | BetweenPassed | BetweenBroke | Noted,
) -> None:
    match event:
        case VoteBegun(may_switch=may_switch):
            turn.set(phase="voting", ballot=turn.state.prepared if may_switch else None)
        case VotePassed():
            _on_vote_passed(turn, event)
        case VoteBroke(reason=reason, cast=cast):
            turn.set(phase="training", undecided="step" if cast else "")
            _end_ballot(turn)
            turn.breaks(reason)
        case BetweenPassed():
            turn.set(between=turn.state.between + 1)
        case BetweenBroke(reason=reason):
            turn.set(undecided="between")
            turn.breaks(reason)
        case Noted():
            turn.set(confirmed=None)


def _on_vote_passed(turn: Turn, event: VotePassed) -> None:
    state = turn.state
    ballot = state.ballot
    turn.set(
        committed=state.committed + 1,
        confirmed=state.unconfirmed,
        unconfirmed=None,
        votes_at_end=event.at_end,
    )
    if ballot is not None and event.lowest == event.highest == ballot.epoch:
        # Every rank voted for it: an abort that came meanwhile is too late.
        turn.set(phase="switching", switching=ballot, prepared=None, ballot=None, aborted=False)
    else:
        turn.set(phase="training")
        _end_ballot(turn)


def _end_ballot(turn: Turn) -> None:
    """The vote decided nothing about its ballot: now it may be aborted."""
    ballot, aborted = turn.state.ballot, turn.state.aborted
    if ballot is None:
        return
    turn.set(ballot=None, aborted=False)
    if aborted:
        turn.set(prepared=None, leading=None)
        turn.do(DropParked(ballot.epoch))


# -- epochs --------------------------------------------------------------------------------------


def _enter(turn: Turn, plan: Plan, phase: Phase) -> None:
    """Be at the epoch of ``plan``, with new links: what broke before is over."""
    if turn.state.broken_at < plan.epoch:
        turn.set(broken=None)
    _advance(turn, plan, phase)
    newer = turn.state.next_recovery
    if newer is not None:  # do not start what is superseded
        turn.breaks(f"migration {newer.id} takes the job to epoch {newer.epoch}")


def _advance(turn: Turn, plan: Plan, phase: Phase) -> None:
    state = turn.state
    turn.set(
        phase=phase,
        epoch=plan.epoch,
        preparing=frozenset(epoch for epoch in state.preparing if epoch >= plan.epoch),
        prepared=_after(state.prepared, plan.epoch),
        leading=_after(state.leading, plan.epoch),
    )


def _after(plan: Plan | None, epoch: int) -> Plan | None:
    return plan if plan is not None and plan.epoch > epoch else None


# -- joiners -------------------------------------------------------------------------------------


def _on_joining(turn: Turn, event: Warm | Joins | CouldNotJoin | Joined) -> None:
    match event:
        case Warm():
            turn.set(phase="warm")
        case Joins(plan=plan):
            _enter(turn, plan, "joining")
        case CouldNotJoin(plan=plan, reason=reason, links_broke=links_broke):
            turn.set(phase="warm")
            if not turn.state.withdrawn(plan):
                turn.failed(plan, reason, links_broke=links_broke)
        case Joined(plan=plan, committed=committed, between=between, at_end=at_end):
            turn.set(
                phase="training",
                standby=False,
                joining=None if turn.state.joining == plan else turn.state.joining,
                unconfirmed=plan,
                committed=committed,
                between=between,
                votes_at_end=at_end,
            )


# -- planned moves -------------------------------------------------------------------------------


def _on_move(turn: Turn, event: Led | LeadFailed | LeadPaused | Switched | Left) -> None:
    state = turn.state
    match event:
        case Led(plan=plan, took_s=took_s):
            if state.leading == plan:  # else it is off by now
                turn.set(prepared=plan)
                turn.prepared(plan, took_s=took_s)
        case LeadPaused(plan=plan):
            if state.prepared == plan:
                turn.set(prepared=None)
        case LeadFailed(plan=plan, reason=reason):
            # Voted for already: the hand-over will find out.
            if state.leading == plan and state.switching != plan:
                orders.take_back(turn, plan.epoch)
                turn.failed(plan, reason)
        case Switched(plan=plan):
            _advance(turn, plan, "training")
            turn.set(switching=None, unconfirmed=plan)
            if turn.state.broken is not None:
                # The links of the epoch before go on: what broke there stays broken.
                turn.set(broken_at=plan.epoch)
                turn.do(Break(plan.epoch, turn.state.broken))
        case Left():
            turn.set(phase="left", switching=None)


# -- recovery ------------------------------------------------------------------------------------


def _on_recovery(turn: Turn, event: Stopped | SaveTaken | Recovers | Agreed | HandedOut) -> None:
    state = turn.state
    match event:
        case Stopped():
            turn.set(phase="broken")
            turn.do(
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
            turn.set(save=None)
        case Recovers(plan=plan):
            _enter(turn, plan, "agreeing")
        case Agreed():
            _on_agreed(turn, event)
        case HandedOut():
            turn.set(phase="training", recovering=None)


def _on_agreed(turn: Turn, event: Agreed) -> None:
    """All survivors have what was undecided, or none: whoever saw more says so."""
    state, plan = turn.state, event.plan
    more = (event.committed - state.committed, event.between - state.between)
    held = (state.undecided == "step", state.undecided == "between")
    turn.set(
        phase="recovering",
        undecided="",
        votes_at_end=event.at_end,
        switching=None,
        recovering=plan,
        unconfirmed=plan,
    )
    if more in {(0, 0), held}:
        turn.set(committed=event.committed, between=event.between)
        return
    turn.set(refusal=f"this rank completed {state.committed} steps, the others {event.committed}")
