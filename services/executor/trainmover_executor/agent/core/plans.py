"""What a plan means to this machine: member, joiner, or somebody who no longer belongs."""

from __future__ import annotations

from types import MappingProxyType

from trainmover.commands import AbortMigration, BreakStep, Prepare, Recover
from trainmover.events.executor import (
    PlanCommitted,
    PlanFailed,
    PlanSwitched,
    StepProgress,
    StepResumed,
)
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen
from trainmover_executor.agent.core import incarnations, standby
from trainmover_executor.agent.core.effects import Prioritise, Unbind
from trainmover_executor.agent.core.state import Ending, Worker
from trainmover_executor.agent.core.transition import Transition

__all__ = ["on_abort", "on_break", "on_fact", "on_plan"]

_REMEMBERED = 64

_ANOTHER_RING = (
    "it names another ring than the job was formed with, in which sums would have other bits; a "
    "planner of an earlier release does that: start the current one"
)
"""A planner that knows no rings names none."""


def on_plan(transition: Transition, command: Prepare | Recover) -> None:
    """Carry a plan to the processes it concerns, once."""
    state, plan = transition.state, command.plan
    if plan.id in state.seen:
        transition.ignore(command.verb, "the plan is known already", migration=plan.id)
    elif plan.epoch <= state.epoch:
        transition.ignore(
            command.verb, f"epoch {plan.epoch} is over, it is {state.epoch}", migration=plan.id
        )
    elif state.phase == "active":
        _as_member(transition, command)
    elif state.phase == "standby":
        _as_joiner(transition, command)
    else:
        transition.ignore(command.verb, f"this machine is {state.phase}", migration=plan.id)


def _as_member(transition: Transition, command: Prepare | Recover) -> None:
    state, plan = transition.state, command.plan
    if not _belongs(transition, plan) and isinstance(command, Recover):
        # The others believe us dead and go on without us: fence ourselves. Our ranks could
        # compute, but would never pass a vote again (INV-ONE-OWNER).
        transition.log("warning", "machine.replaced", migration=plan.id, epoch=plan.epoch)
        reason = f"the job went on without this machine (plan {plan.id}, epoch {plan.epoch})"
        incarnations.begin_ending(transition, Ending(then="standby", reason=reason), grace_s=0.0)
        return
    mine = state.membership
    if isinstance(command, Prepare) and mine is not None and plan.membership.ring != mine.ring:
        slot = mine.slot_of_machine(state.me.machine)
        if slot is not None:
            _refuse(transition, plan, slot, _ANOTHER_RING)
            return
    _remember(transition, plan)
    transition.set(plan=plan, aborted=False)
    transition.forward(state.live, command)


def _belongs(transition: Transition, plan: Plan) -> bool:
    slot = plan.membership.slot_of_machine(transition.state.me.machine)
    return (
        slot is not None and plan.membership.members[slot].generation == transition.state.generation
    )


def _as_joiner(transition: Transition, command: Prepare | Recover) -> None:
    state, plan = transition.state, command.plan
    slot = next((move.slot for move in plan.moves if move.joiner == state.me.machine), None)
    if slot is None and state.joining is not None and _belongs(transition, plan):
        # Our ranks took the slot by the plan before, which nobody could commit: for this plan
        # they are survivors like any other.
        slot = plan.membership.slot_of_machine(state.me.machine)
    if slot is None:
        transition.ignore(command.verb, "the plan has no place for this machine", migration=plan.id)
        return
    member, bay = plan.membership.members[slot], state.bays.get(slot)
    if not _belongs(transition, plan):
        _refuse(transition, plan, slot, f"it means generation {member.generation} of this machine")
        return
    if bay is None or bay.phase == "down" or bay.endpoints != member.endpoints:
        _refuse(transition, plan, slot, f"no process for slot {slot} listens at {member.endpoints}")
        return
    if state.plan is not None and state.joining not in (None, slot):
        superseded = AbortMigration(
            migration=state.plan.id, epoch=state.plan.epoch, reason=f"superseded by {plan.id}"
        )
        transition.forward(state.live_of(state.joining), superseded)
    _remember(transition, plan)
    transition.set(plan=plan, joining=slot, aborted=False)
    if bay.phase == "queued":
        standby.start_bay(transition, slot)
    else:
        transition.do(Prioritise(tuple(worker.key for worker in state.live_of(slot))))
    transition.forward(transition.state.live_of(slot), command)


def _refuse(transition: Transition, plan: Plan, slot: int, reason: str) -> None:
    """Say it for the ranks that cannot: the planner must not wait for them."""
    transition.log("warning", "plan.refused", migration=plan.id, slot=slot, reason=reason)
    for rank in plan.membership.layout.ranks_of(slot):
        transition.publish(
            PlanFailed(
                migration=plan.id,
                machine=transition.state.me.machine,
                rank=rank,
                epoch=plan.epoch,
                reason=reason,
                step_safe=True,
            )
        )


def _remember(transition: Transition, plan: Plan) -> None:
    transition.set(seen=(*transition.state.seen, plan.id)[-_REMEMBERED:])


def _concerned(transition: Transition) -> tuple[Worker, ...]:
    """Processes that carry out the current plan."""
    state = transition.state
    return state.live if state.phase == "active" else state.live_of(state.joining)


def on_abort(transition: Transition, command: AbortMigration) -> None:
    """Call the plan off; its ranks decide whether that is still possible."""
    plan = transition.state.plan
    if plan is None or plan.id != command.migration:
        transition.ignore(command.verb, "no such plan is under way", migration=command.migration)
        return
    transition.forward(_concerned(transition), command)
    transition.set(
        aborted=True
    )  # the plan is kept: should the ranks have voted, it commits all the same
    standby.start_next(transition)


def on_break(transition: Transition, command: BreakStep) -> None:
    """Have the running step latched."""
    workers = _concerned(transition)
    if command.epoch < transition.state.epoch:
        transition.ignore(
            command.verb, f"epoch {command.epoch} is over, it is {transition.state.epoch}"
        )
    elif not workers:
        transition.ignore(command.verb, f"no step runs: this machine is {transition.state.phase}")
    else:
        transition.forward(workers, command)


def on_fact(transition: Transition, worker: Worker, fact: Frozen) -> None:
    """Publish what a worker reports, and learn from it.

    Ranks of one machine are as far as each other, for they vote together: one speaks for all of
    them, or the bus would carry the same news once a second from every rank.
    """
    speaks = (o.rank for o in transition.state.live if o.slot == worker.slot and not o.done)
    if not isinstance(fact, StepProgress) or worker.rank == min(speaks, default=None):
        transition.publish(fact)
    plan = transition.state.plan
    match fact:
        case StepProgress() | StepResumed():
            transition.set(crashes=0)
        case PlanSwitched(epoch=epoch) if plan is not None and epoch == plan.epoch:
            if transition.state.phase == "active" and not _belongs(transition, plan):
                transition.worker(worker.key, left_at=epoch)
        case PlanCommitted(epoch=epoch) if plan is not None and epoch == plan.epoch:
            if transition.state.phase == "standby" and transition.state.joining == worker.slot:
                _promote(transition, plan, worker.slot)
            elif transition.state.phase == "active":
                transition.set(
                    epoch=max(epoch, transition.state.epoch),
                    membership=plan.membership,
                    plan=None,
                    aborted=False,
                )
        case _:
            pass


def _promote(transition: Transition, plan: Plan, slot: int) -> None:
    """The way back is closed: this machine fills the slot, the other bays are of no use."""
    transition.log("info", "machine.joined", slot=slot, epoch=plan.epoch, migration=plan.id)
    chosen = transition.state.live_of(slot)
    transition.end((w for w in transition.state.live if w.slot != slot), grace_s=0.0)
    for worker in chosen:
        transition.worker(worker.key, role="active")
    transition.set(
        phase="active",
        slot=slot,
        epoch=max(plan.epoch, transition.state.epoch),
        membership=plan.membership,
        bays=MappingProxyType({}),
        queue=(),
        plan=None,
        joining=None,
        aborted=False,
    )
    transition.do(Unbind())
