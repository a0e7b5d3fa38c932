"""What commands ask of a rank: phase 1 of a plan, its end, a recovery."""

from __future__ import annotations

from trainmover.commands import BreakStep, Prepare, Recover, SaveCheckpoint
from trainmover.job.plan import Plan
from trainmover_executor.decisions.effects import (
    Abort,
    AnswerCalls,
    CancelPhaseOne,
    DropParked,
    Heard,
    NotParked,
    Park,
    Parked,
)
from trainmover_executor.decisions.state import WorkerState
from trainmover_executor.decisions.turn import Turn

__all__ = ["on_abort", "on_heard", "on_not_parked", "on_parked", "take_back"]


def on_heard(turn: Turn, event: Heard) -> None:
    """A command came."""
    match event.command:
        case Prepare(plan=plan):
            _on_prepare(turn, plan)
        case Recover(plan=plan):
            _on_recover(turn, plan)
        case BreakStep(epoch=epoch, reason=reason):
            if epoch == turn.state.epoch:
                turn.breaks(reason)
        case SaveCheckpoint() as order:
            turn.set(save=order)


def _on_prepare(turn: Turn, plan: Plan) -> None:
    state = turn.state
    if plan.epoch <= state.epoch or plan.epoch in state.preparing:
        return
    turn.set(preparing=state.preparing | {plan.epoch})
    if _joins(state, plan):
        turn.set(joining=plan)
        turn.do(AnswerCalls(plan))
    else:
        turn.do(Park(plan))


def _joins(state: WorkerState, plan: Plan) -> bool:
    """Whether this process is a joiner of ``plan``; the leaver has the same rank."""
    return (
        state.rank in plan.joining_ranks and plan.membership.machine_of(state.rank) == state.machine
    )


def on_parked(turn: Turn, event: Parked) -> None:
    """Phase 1 is complete, but for the state that a leaver has to stream."""
    plan, state = event.plan, turn.state
    if plan.epoch not in state.preparing:
        return  # called off, or superseded
    if not _joins(state, plan) and plan.epoch > state.epoch:
        if state.rank in plan.joining_ranks:
            turn.set(leading=plan)
            return  # the leaver is prepared once its joiner's state is up to date
        turn.set(prepared=plan)
    turn.prepared(plan, took_s=event.took_s)


def on_not_parked(turn: Turn, event: NotParked) -> None:
    """Phase 1 cannot be completed here."""
    turn.do(DropParked(event.plan.epoch))
    turn.failed(event.plan, event.reason)


def on_abort(turn: Turn, event: Abort) -> None:
    """Take phase 1 of a plan back, unless the ranks vote for it now, or did."""
    command, state = event.command, turn.state
    epoch = command.epoch
    if epoch in state.preparing:
        turn.set(preparing=state.preparing - {epoch})
        turn.do(CancelPhaseOne(epoch))
    if state.standby:
        if _is_for(state.joining, epoch):
            turn.set(joining=None)
        # A joiner is already at the plan's epoch. Once its leaver has called, the leaver decides:
        # it ends the link, unless the ranks have voted for the switch meanwhile.
        if epoch == state.epoch and not event.called:
            turn.breaks(f"migration {command.migration} was aborted: {command.reason}")
    else:
        take_back(turn, epoch)


def take_back(turn: Turn, epoch: int) -> None:
    """Let a member no longer vote for a plan; during a vote about it, if that decides nothing."""
    state = turn.state
    if _is_for(state.ballot, epoch):
        turn.set(aborted=True)
    elif epoch > state.epoch and not _is_for(state.switching, epoch) and state.phase != "left":
        if _is_for(state.leading, epoch):
            turn.set(leading=None)
        if _is_for(state.prepared, epoch):
            turn.set(prepared=None)
        turn.do(DropParked(epoch))


def _is_for(plan: Plan | None, epoch: int) -> bool:
    return plan is not None and plan.epoch == epoch


def _on_recover(turn: Turn, plan: Plan) -> None:
    """A recovery plan takes the place of whatever is under way."""
    state = turn.state
    if plan.epoch <= state.epoch or plan.membership.machine_of(state.rank) != state.machine:
        return  # stale, or another machine owns our slot now: our agent ends us (INV-ONE-OWNER)
    if state.recovery is None or plan.epoch > state.recovery.epoch:
        turn.set(recovery=plan, prepared=None, leading=None, joining=None)
    turn.breaks(f"migration {plan.id} takes the job to epoch {plan.epoch}")
