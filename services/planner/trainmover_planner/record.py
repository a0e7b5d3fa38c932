"""Takes facts into the state, without deciding anything.

Facts of others are observations and are read in the same way whether they are live or stored; the
planner's own facts matter only when they are read again (``history``). What does not fit the job,
or comes from somebody who cannot know it, changes nothing: one machine must not be able to speak
for another, nor to make the planner keep more than the job is large.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from trainmover.events import executor, incident, machine
from trainmover.job.tables import Table
from trainmover.job.topology import Frozen, Membership
from trainmover.policy.model import SLOWEST
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import RankReport
from trainmover_planner.history import remember
from trainmover_planner.machines import choice, condemn
from trainmover_planner.machines.evidence import nearly_all
from trainmover_planner.machines.formation import refuse
from trainmover_planner.migrations.migrations import advance
from trainmover_planner.recovery import crashes
from trainmover_planner.recovery.deaths import (
    condemned,
    died,
    incarnation_at,
    running_memberships,
)
from trainmover_planner.rules import rebalance, ruling, worth
from trainmover_planner.state import shapes
from trainmover_planner.state.effects import Fact
from trainmover_planner.state.inventory import Incarnation
from trainmover_planner.state.state import Breaks, Holding, State, slot_of
from trainmover_planner.state.transition import Transition

__all__ = ["record"]

_REACH: Final = 2**20
"""Epochs that no stored fact tells of are believed so far above those that are known."""

_HIGHEST: Final = 2**31
"""Nobody's word raises the epoch above this: frames have 32 bits for it."""

_COUNTED: Final = frozenset({"notice", SLOWEST})
_SEEN: Final = 256
_LONGEST_STEP_S: Final = 86_400.0
_TRACES: Final = 1024


def record(transition: Transition, fact: Fact) -> None:
    """Take in one fact; repeated and outdated ones change nothing."""
    payload = fact.payload
    _of_machines(transition, payload)
    _of_ranks(transition, payload)
    _of_detectors(transition, fact)
    if transition.replay:
        remember(transition, fact)


def _of_machines(transition: Transition, payload: Frozen) -> None:
    match payload:
        case machine.MachineLent():
            _lent(transition, payload)
        case machine.PoolMachineAssigned():
            _assigned(transition, payload)
        case machine.MachineRegistered():
            _registered(transition, payload)
        case machine.MachineWarming() | machine.MachineReady():
            _warmed(transition, payload)
        case machine.WorkerExited():
            _exited(transition, payload)
        case _:
            pass


def _lent(transition: Transition, fact: machine.MachineLent) -> None:
    """A machine of a pool offers itself: that counts where its pool assigned it."""
    state = transition.state
    if state.lending.holds(fact.machine.name, state.job):
        _registered(transition, fact)
    else:
        transition.note(lending=state.lending.wait(fact))


def _assigned(transition: Transition, fact: machine.PoolMachineAssigned) -> None:
    state = transition.state
    lending, offer = state.lending.note(fact), None
    if lending.holds(fact.machine, state.job):
        lending, offer = lending.take(fact.machine)
    transition.note(lending=lending)
    if offer is not None:
        _registered(transition, offer)
    elif not lending.holds(fact.machine, state.job):
        _lent_elsewhere(transition, fact.machine)


def _lent_elsewhere(transition: Transition, name: str) -> None:
    """Its pool knows that it is not here: whoever counts on it as a standby is not told yet."""
    state = transition.state
    host = state.inventory.get(name)
    if host is None or not host.lent or host.incarnation in state.inventory.refused:
        return
    if all(slot_of(one, host.incarnation) is None for one in state.current_memberships):
        transition.set(inventory=state.inventory.refuse(host.incarnation))


def _registered(transition: Transition, fact: machine.MachineRegistered) -> None:
    inventory, name = transition.state.inventory, fact.machine.name
    known, after = inventory.get(name), inventory.register(fact, transition.now_s)
    if after is inventory:
        return
    transition.set(
        inventory=after,
        newcomers=transition.state.newcomers.put(name, None),
        spare=transition.state.spare.put(name, None),
        cold=transition.state.cold.put(name, None),
    )
    host = after.get(name)
    wrong = shapes.of_machine(fact)
    if wrong and host is not None:
        refuse(transition, host, wrong)
    if known is not None:
        _superseded(transition, known.incarnation)


def _warmed(transition: Transition, fact: machine.MachineWarming | machine.MachineReady) -> None:
    state = transition.state
    host, membership = state.inventory.get(fact.machine), state.membership
    if host is None or host.incarnation != (fact.machine, fact.generation) or membership is None:
        return
    if host.incarnation in state.inventory.refused:
        return
    wrong = shapes.of_standby(fact, membership.layout)
    if not wrong and isinstance(fact, machine.MachineWarming):
        transition.set(inventory=state.inventory.warmed(fact))
    elif not wrong and isinstance(fact, machine.MachineReady):
        transition.set(inventory=state.inventory.readied(fact))
    elif all(slot_of(one, host.incarnation) is None for one in state.current_memberships):
        refuse(transition, host, wrong)


def _of_ranks(transition: Transition, payload: Frozen) -> None:
    match payload:
        case executor.StepProgress():
            if _seen(transition, payload):
                _paced(transition, payload)
        case executor.StepResumed():
            if _seen(transition, payload):
                worth.note_pause(transition, payload)
        case executor.StepBroken():
            _broke(transition, payload)
        case executor.WorkerFinished():
            if _seen(transition, payload):
                transition.put("finished", (payload.machine, payload.rank), None)
        case (
            executor.PlanPrepared()
            | executor.PlanSwitched()
            | executor.PlanCommitted()
            | executor.PlanFailed()
        ):
            _report(transition, payload)
        case _:
            _of_their_state(transition, payload)


def _of_their_state(transition: Transition, payload: Frozen) -> None:
    """What ranks say of the state that they hold."""
    match payload:
        case executor.JobLayoutKnown():
            _held(transition, payload)
        case executor.StateFollowed():
            _followed(transition, payload)
        case executor.CheckpointSaved():
            if _speaks_for(transition.state, payload.machine, payload.rank, payload.epoch):
                transition.put("saved", (payload.machine, payload.rank), payload)
        case executor.WorkerCosts():
            if _membership_of(transition.state, payload.machine, payload.rank) is not None:
                worth.note_size(transition, payload)
            _drawn(transition, payload)
        case _:
            pass


def _drawn(transition: Transition, fact: executor.WorkerCosts) -> None:
    """A standby may have drawn less of its data than training has."""
    membership, inventory = transition.state.membership, transition.state.inventory
    if membership is None or fact.rank >= membership.layout.world_size:
        return
    slot, behind = membership.layout.slot_of(fact.rank), fact.behind > 0
    inventory = inventory.followed(fact.machine, fact.rank, slot, behind=behind)
    transition.note(inventory=inventory)


def _of_detectors(transition: Transition, fact: Fact) -> None:
    match fact.payload:
        case incident.IncidentOpened() as opened:
            _troubled(transition, opened)
            ruling.note_opened(transition, opened)
            rebalance.note_measured(transition, opened)
            transition.put("incidents", opened.id, opened)
            if fact.trace and len(transition.state.traces) < _TRACES:
                transition.put("traces", opened.id, fact.trace)
            if condemn.recommends_end(opened):
                condemned(transition, opened)
        case incident.IncidentUpdated() as updated:
            worth.note_late(transition, updated)
            rebalance.note_measured(transition, updated)
        case incident.IncidentClosed(id=id):
            ruling.note_closed(transition, id)
            transition.drop("incidents", id)
            if all(death.incident != id for death in transition.state.deaths.values()):
                transition.drop("traces", id)
        case _:
            pass


def _troubled(transition: Transition, opened: incident.IncidentOpened) -> None:
    """Hold an incident against a machine that is known; a dry run's decides nothing.

    That it is about to leave, or slower than others, is counted by itself.
    """
    state, name = transition.state, opened.machine or ""
    if opened.mode != "active" or opened.kind in _COUNTED or opened.id in state.incidents:
        return
    if state.inventory.get(name) is not None:
        choice.note_trouble(transition, name)


def _held(transition: Transition, fact: executor.JobLayoutKnown) -> None:
    """What a rank holds; that of others is their business."""
    membership = _membership_of(transition.state, fact.machine, fact.rank)
    if membership is None or shapes.of_layout(fact, membership.layout):
        return
    holding = Holding(fact.spans, fact.redundancy, fact.obstacle)
    # Nothing follows before a machine is lost, and then it is looked up.
    transition.note(holdings=transition.state.holdings.put(fact.rank, holding))


def _followed(transition: Transition, fact: executor.StateFollowed) -> None:
    state = transition.state
    if not _speaks_for(state, fact.machine, fact.follower, fact.epoch):
        return
    incarnation = incarnation_at(state, fact.machine, fact.epoch)
    world = 0 if state.membership is None else state.membership.layout.world_size
    if incarnation is not None and 0 <= fact.rank < world:
        transition.note(followers=state.followers.put(fact.rank, (fact.follower, incarnation)))


def _broke(transition: Transition, fact: executor.StepBroken) -> None:
    if not _seen(transition, fact):
        return
    state, who = transition.state, (fact.machine, fact.rank)
    current = 0 if state.membership is None else state.membership.epoch
    at = [epoch for epoch, breaks in state.broken.items() if who in breaks.ranks]
    if fact.epoch < current or any(epoch >= fact.epoch for epoch in at):
        return
    broken = dict(state.broken)
    for epoch in at:
        left = broken[epoch].ranks.drop(who)
        broken[epoch] = replace(broken[epoch], ranks=left)
        if not left:
            del broken[epoch]
    known = broken.get(fact.epoch, Breaks(Table(), transition.now_s, transition.now_s))
    last_s = max(known.last_s, transition.now_s)
    broken[fact.epoch] = replace(known, ranks=known.ranks.put(who, None), last_s=last_s)
    first = len(broken[fact.epoch].ranks) == 1
    transition.note(broken=MappingProxyType(broken))
    if first or nearly_all(transition.state, current):
        transition.changed.add("broken")


def _report(transition: Transition, fact: RankReport) -> None:
    _raise_issued(transition, fact.epoch)
    state = transition.state
    known = state.migrations.get(fact.migration)
    current = 0 if state.membership is None else state.membership.epoch
    if known is None:
        if transition.replay and len(state.early) < 4 * _world_size(state) + _SEEN:
            key = (fact.migration, type(fact).__name__, fact.machine, fact.rank)
            transition.note(early=state.early.put(key, fact))
        return
    if not known.open and fact.epoch <= current:
        return  # the job went past that plan: nobody can be at its epoch any more
    if isinstance(fact, executor.PlanSwitched | executor.PlanCommitted):
        _seen(transition, fact)
    advance(transition, fact.migration, protocol.Report(fact))


_OfRank = (
    executor.StepProgress
    | executor.StepResumed
    | executor.StepBroken
    | executor.WorkerFinished
    | executor.PlanSwitched
    | executor.PlanCommitted
)


def _seen(transition: Transition, fact: _OfRank) -> bool:
    """Learn how far the job is from one who has the rank; whether it has."""
    state, epoch = transition.state, fact.epoch
    if not _speaks_for(state, fact.machine, fact.rank, epoch):
        return False
    step = fact.committed_step if isinstance(fact, executor.StepBroken) else fact.step
    if step > state.step:
        transition.note(step=step)
    _raise_issued(transition, epoch)
    if epoch not in state.seen and len(state.seen) < _SEEN:
        transition.set(seen=state.seen | {epoch})
    return True


def _paced(transition: Transition, fact: executor.StepProgress) -> None:
    """Learn what a step takes: roughly, or each of these facts would change the state."""
    known, step_s = transition.state.step_s, fact.step_s
    if not known / 2 <= step_s <= known * 2 and math.isfinite(step_s):
        transition.note(step_s=min(max(step_s, 0.0), _LONGEST_STEP_S))


def _raise_issued(transition: Transition, epoch: int) -> None:
    """An epoch that nothing stored tells of was used all the same: the bus lost what was said."""
    state = transition.state
    if epoch <= state.issued:
        return
    known = max(state.memberships, default=0)
    if epoch <= min(known + _REACH, _HIGHEST):
        transition.note(issued=epoch)


def _world_size(state: State) -> int:
    return 0 if state.membership is None else state.membership.layout.world_size


def _speaks_for(state: State, machine: str, rank: int, epoch: int) -> bool:
    """Whether a machine has a rank at an epoch; at one that is not known, whether it may have."""
    membership = state.memberships.get(epoch)
    if membership is not None:
        return membership.holds(machine, rank)
    if state.memberships and epoch < min(state.memberships):
        return False
    if epoch > max(state.memberships, default=0) + _REACH:
        return False
    return _membership_of(state, machine, rank) is not None


def _membership_of(state: State, machine: str, rank: int) -> Membership | None:
    """The membership, of those a machine may be running in, that gives it this rank."""
    return next(
        (
            membership
            for membership in running_memberships(state)
            if membership.holds(machine, rank)
        ),
        None,
    )


def _superseded(transition: Transition, old: Incarnation) -> None:
    """The machine started over: whatever its earlier incarnation computed is gone."""
    if any(
        slot_of(membership, old) is not None for membership in running_memberships(transition.state)
    ):
        died(transition, old, reason=f"machine {old[0]} started over", incident=None)


def _exited(transition: Transition, fact: machine.WorkerExited) -> None:
    """A standby's process died, or a joiner's; members are the detector's business."""
    state, incarnation = transition.state, (fact.machine, fact.generation)
    membership = state.membership
    if membership is None or not 0 <= fact.rank < membership.layout.world_size:
        return
    slot = fact.rank // membership.layout.ranks_per_slot
    is_member = slot_of(membership, incarnation) is not None
    if any(slot_of(one, incarnation) == slot for one in running_memberships(state)):
        crashes.note(transition, fact, is_member=is_member)
    if is_member:
        return
    transition.set(inventory=state.inventory.cooled(fact.machine, fact.generation, [slot]))
    flight = state.flight
    if flight is None or flight.plan is None:
        return
    if slot_of(flight.plan.membership, incarnation) == slot:
        how = f"signal {fact.signal}" if fact.signal else f"exit code {fact.exit_code}"
        died(
            transition,
            incarnation,
            reason=f"rank {fact.rank} on {fact.machine} ended: {how}",
            incident=None,
        )
