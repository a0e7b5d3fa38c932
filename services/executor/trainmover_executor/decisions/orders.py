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
from trainmover_executor.decisions.transition import Transition

__all__ = ["on_abort", "on_heard", "on_not_parked", "on_parked", "take_back"]


def on_heard(transition: Transition, event: Heard) -> None:
    """A command came."""
    match event.command:
        case Prepare(plan=plan):
            _on_prepare(transition, plan)
        case Recover(plan=plan):
            _on_recover(transition, plan)
        case BreakStep(epoch=epoch, reason=reason):
            if epoch == transition.state.epoch:
                transition.breaks(reason)
        case SaveCheckpoint() as order:
            transition.set(save=order)


def _on_prepare(transition: Transition, plan: Plan) -> None:
    state = transition.state
    if plan.epoch <= state.epoch or plan.epoch in state.preparing:
        return
    transition.set(preparing=state.preparing | {plan.epoch})
    if _joins(state, plan):
        transition.set(joining=plan)
        transition.do(AnswerCalls(plan))
    else:
        transition.do(Park(plan))


def _joins(state: WorkerState, plan: Plan) -> bool:
    """Whether this process is a joiner of ``plan``; the leaver has the same rank."""
    return (
        state.rank in plan.joining_ranks and plan.membership.machine_of(state.rank) == state.machine
    )


def on_parked(transition: Transition, event: Parked) -> None:
    """Phase 1 is complete, but for the state that a leaver has to stream."""
    plan, state = event.plan, transition.state
    if plan.epoch not in state.preparing:
        return  # called off, or superseded
    if not _joins(state, plan) and plan.epoch > state.epoch:
        if state.rank in plan.joining_ranks:
            transition.set(leading=plan)
            return  # the leaver is prepared once its joiner's state is up to date
        transition.set(prepared=plan)
    transition.prepared(plan, took_s=event.took_s)


def on_not_parked(transition: Transition, event: NotParked) -> None:
    """Phase 1 cannot be completed here."""
    transition.do(DropParked(event.plan.epoch))
    transition.failed(event.plan, event.reason)


def on_abort(transition: Transition, event: Abort) -> None:
    """Take phase 1 of a plan back, unless the ranks vote for it now, or did."""
    command, state = event.command, transition.state
    epoch = command.epoch
    if epoch in state.preparing:
        transition.set(preparing=state.preparing - {epoch})
        transition.do(CancelPhaseOne(epoch))
    if state.standby:
        if _is_for(state.joining, epoch):
            transition.set(joining=None)
        # A joiner is already at the plan's epoch. Once its leaver has called, the leaver decides:
        # it ends the link, unless the ranks have voted for the switch meanwhile.
        if epoch == state.epoch and not event.called:
            transition.breaks(f"migration {command.migration} was aborted: {command.reason}")
    else:
        take_back(transition, epoch)


def take_back(transition: Transition, epoch: int) -> None:
    """Let a member no longer vote for a plan; during a vote about it, if that decides nothing."""
    state = transition.state
    if _is_for(state.voted_on, epoch):
        transition.set(aborted=True)
    elif epoch > state.epoch and not _is_for(state.switching, epoch) and state.phase != "left":
        if _is_for(state.leading, epoch):
            transition.set(leading=None)
        if _is_for(state.prepared, epoch):
            transition.set(prepared=None)
        transition.do(DropParked(epoch))


def _is_for(plan: Plan | None, epoch: int) -> bool:
    return plan is not None and plan.epoch == epoch


def _on_recover(transition: Transition, plan: Plan) -> None:
    """A recovery plan takes the place of whatever is under way."""
    state = transition.state
    if plan.epoch <= state.epoch or plan.membership.machine_of(state.rank) != state.machine:
        return  # stale, or another machine owns our slot now: our agent ends us (INV-ONE-OWNER)
    if state.recovery is None or plan.epoch > state.recovery.epoch:
        transition.set(recovery=plan, prepared=None, leading=None, joining=None)
    transition.breaks(f"migration {plan.id} takes the job to epoch {plan.epoch}")
