"""Takes facts into the state, without deciding anything.

Facts of others are observations and are read in the same way whether they are live or stored; the
planner's own facts matter only when they are read again (``history``). What does not fit the job,
or comes from somebody who cannot know it, changes nothing: one machine must not be able to speak
for another, nor to make the planner keep more than the job is large.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from trainmover.events import executor, incident, machine
from trainmover.job.tables import Table
from trainmover.job.topology import Frozen, Membership
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import RankReport
from trainmover_planner.history import remember
from trainmover_planner.machines import condemn
from trainmover_planner.machines.evidence import nearly_all
from trainmover_planner.machines.formation import refuse
from trainmover_planner.migrations.migrations import advance, base_of
from trainmover_planner.recovery import crashes
from trainmover_planner.state import shapes
from trainmover_planner.state.effects import Fact
from trainmover_planner.state.inventory import Life, life_of
from trainmover_planner.state.state import Breaks, Death, Holding, State, seat_of
from trainmover_planner.state.turn import Turn

__all__ = ["record"]

_REACH: Final = 2**20
"""Epochs that no stored fact tells of are believed so far above those that are known."""

_HIGHEST: Final = 2**31
"""Nobody's word raises the epoch above this: frames have 32 bits for it."""

_SEEN: Final = 256
_TRACES: Final = 1024


def record(turn: Turn, fact: Fact) -> None:
    """Take in one fact; repeated and outdated ones change nothing."""
    payload = fact.payload
    _of_machines(turn, payload)
    _of_ranks(turn, payload)
    _of_detectors(turn, fact)
    if turn.replay:
        remember(turn, fact)


def _of_machines(turn: Turn, payload: Frozen) -> None:
    match payload:
        case machine.MachineRegistered():
            _registered(turn, payload)
        case machine.MachineWarming() | machine.MachineReady():
            _warmed(turn, payload)
        case machine.WorkerExited():
            _exited(turn, payload)
        case _:
            pass


def _registered(turn: Turn, fact: machine.MachineRegistered) -> None:
    inventory, name = turn.state.inventory, fact.machine.name
    known, after = inventory.get(name), inventory.register(fact, turn.now_s)
    if after is inventory:
        return
    turn.set(
        inventory=after,
        newcomers=turn.state.newcomers.put(name, None),
        spare=turn.state.spare.put(name, None),
        cold=turn.state.cold.put(name, None),
    )
    host = after.get(name)
    wrong = shapes.of_machine(fact)
    if wrong and host is not None:
        refuse(turn, host, wrong)
    if known is not None:
        _superseded(turn, known.life)


def _warmed(turn: Turn, fact: machine.MachineWarming | machine.MachineReady) -> None:
    state = turn.state
    host, seats = state.inventory.get(fact.machine), state.membership
    if host is None or host.life != (fact.machine, fact.generation) or seats is None:
        return
    if host.life in state.inventory.refused:
        return
    wrong = shapes.of_standby(fact, seats.layout)
    if not wrong and isinstance(fact, machine.MachineWarming):
        turn.set(inventory=state.inventory.warmed(fact))
    elif not wrong and isinstance(fact, machine.MachineReady):
        turn.set(inventory=state.inventory.readied(fact))
    elif all(seat_of(one, host.life) is None for one in state.seats):
        refuse(turn, host, wrong)


def _of_ranks(turn: Turn, payload: Frozen) -> None:
    match payload:
        case executor.StepProgress() | executor.StepResumed():
            _seen(turn, payload)
        case executor.JobLayoutKnown():
            _held(turn, payload)
        case executor.StateFollowed():
            _followed(turn, payload)
        case executor.StepBroken():
            _broke(turn, payload)
        case executor.CheckpointSaved():
            if _speaks_for(turn.state, payload.machine, payload.rank, payload.epoch):
                turn.put("saved", (payload.machine, payload.rank), payload)
        case executor.WorkerFinished():
            if _seen(turn, payload):
                turn.put("finished", (payload.machine, payload.rank), None)
        case (
            executor.PlanPrepared()
            | executor.PlanSwitched()
            | executor.PlanCommitted()
            | executor.PlanFailed()
        ):
            _report(turn, payload)
        case _:
            pass


def _of_detectors(turn: Turn, fact: Fact) -> None:
    match fact.payload:
        case incident.IncidentOpened() as opened:
            turn.put("incidents", opened.id, opened)
            if fact.trace and len(turn.state.traces) < _TRACES:
                turn.put("traces", opened.id, fact.trace)
            if condemn.recommends_end(opened):
                _condemned(turn, opened)
        case incident.IncidentClosed(id=id):
            turn.drop("incidents", id)
            if all(death.incident != id for death in turn.state.deaths.values()):
                turn.drop("traces", id)
        case _:
            pass


def _held(turn: Turn, fact: executor.JobLayoutKnown) -> None:
    """What a rank holds; that of others is their business."""
    seats = _seats_of(turn.state, fact.machine, fact.rank)
    if seats is None or shapes.of_layout(fact, seats.layout):
        return
    holding = Holding(fact.spans, fact.redundancy, fact.obstacle)
    # Nothing follows before a machine is lost, and then it is looked up.
    turn.note(holdings=turn.state.holdings.put(fact.rank, holding))


def _followed(turn: Turn, fact: executor.StateFollowed) -> None:
    state = turn.state
    if not _speaks_for(state, fact.machine, fact.follower, fact.epoch):
        return
    life = _life_at(state, fact.machine, fact.epoch)
    world = 0 if state.membership is None else state.membership.layout.world_size
    if life is not None and 0 <= fact.rank < world:
        turn.note(followers=state.followers.put(fact.rank, (fact.follower, life)))


def _broke(turn: Turn, fact: executor.StepBroken) -> None:
    if not _seen(turn, fact):
        return
    state, who = turn.state, (fact.machine, fact.rank)
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
    known = broken.get(fact.epoch, Breaks(Table(), turn.now_s, turn.now_s))
    last_s = max(known.last_s, turn.now_s)
    broken[fact.epoch] = replace(known, ranks=known.ranks.put(who, None), last_s=last_s)
    first = len(broken[fact.epoch].ranks) == 1
    turn.note(broken=MappingProxyType(broken))
    if first or nearly_all(turn.state, current):
        turn.changed.add("broken")


def _report(turn: Turn, fact: RankReport) -> None:
    _raise_issued(turn, fact.epoch)
    state = turn.state
    known = state.migrations.get(fact.migration)
    current = 0 if state.membership is None else state.membership.epoch
    if known is None:
        if turn.replay and len(state.early) < 4 * _world_size(state) + _SEEN:
            key = (fact.migration, type(fact).__name__, fact.machine, fact.rank)
            turn.note(early=state.early.put(key, fact))
        return
    if not known.open and fact.epoch <= current:
        return  # the job went past that plan: nobody can be at its epoch any more
    if isinstance(fact, executor.PlanSwitched | executor.PlanCommitted):
        _seen(turn, fact)
    advance(turn, fact.migration, protocol.Report(fact))


_OfRank = (
    executor.StepProgress
    | executor.StepResumed
    | executor.StepBroken
    | executor.WorkerFinished
    | executor.PlanSwitched
    | executor.PlanCommitted
)


def _seen(turn: Turn, fact: _OfRank) -> bool:
    """Learn how far the job is from one who has the rank; whether it has."""
    state, epoch = turn.state, fact.epoch
    if not _speaks_for(state, fact.machine, fact.rank, epoch):
        return False
    step = fact.committed_step if isinstance(fact, executor.StepBroken) else fact.step
    if step > state.step:
        turn.note(step=step)
    _raise_issued(turn, epoch)
    if epoch not in state.seen and len(state.seen) < _SEEN:
        turn.set(seen=state.seen | {epoch})
    return True


def _raise_issued(turn: Turn, epoch: int) -> None:
    """An epoch that nothing stored tells of was used all the same: the bus lost what was said."""
    state = turn.state
    if epoch <= state.issued:
        return
    known = max(state.memberships, default=0)
    if epoch <= min(known + _REACH, _HIGHEST):
        turn.note(issued=epoch)


def _world_size(state: State) -> int:
    return 0 if state.membership is None else state.membership.layout.world_size


def _speaks_for(state: State, machine: str, rank: int, epoch: int) -> bool:
    """Whether a machine has a rank at an epoch; at one that is not known, whether it may have."""
    seats = state.memberships.get(epoch)
    if seats is not None:
        return seats.holds(machine, rank)
    if state.memberships and epoch < min(state.memberships):
        return False
    if epoch > max(state.memberships, default=0) + _REACH:
        return False
    return _seats_of(state, machine, rank) is not None


def _seats_of(state: State, machine: str, rank: int) -> Membership | None:
    """The membership, of those a machine may be running in, that gives it this rank."""
    return next((seats for seats in _seated(state) if seats.holds(machine, rank)), None)


def _seated(state: State) -> list[Membership]:
    """Memberships that a machine may be running in right now."""
    if state.membership is None:
        return []
    return [state.membership, base_of(state), *state.seats[1:]]


def _superseded(turn: Turn, old: Life) -> None:
    """The machine started over: whatever its earlier life computed is gone."""
    if any(seat_of(seats, old) is not None for seats in _seated(turn.state)):
        _died(turn, old, reason=f"machine {old[0]} started over", incident=None)


def _accused(state: State, opened: incident.IncidentOpened) -> Life | None:
    """The life that an incident means: it names an epoch, not a generation."""
    return _life_at(state, opened.machine or "", opened.epoch)


def _life_at(state: State, name: str, epoch: int) -> Life | None:
    """The life in which a machine had its slot at ``epoch``, else its latest one.

    None where the epoch is over for so long that nobody knows.
    """
    seats = state.memberships.get(epoch)
    slot = None if seats is None else seats.slot_of_machine(name)
    if seats is not None and slot is not None:
        return life_of(seats.members[slot])
    if seats is None and 0 < epoch < min(state.memberships, default=0):
        return None
    host = state.inventory.get(name)
    return None if host is None else host.life


def _has_finished(state: State, life: Life) -> bool:
    for seats in _seated(state):
        slot = seat_of(seats, life)
        if slot is not None:
            ranks = seats.layout.ranks_of(slot)
            return all((life[0], rank) in state.finished for rank in ranks)
    return False


def _condemned(turn: Turn, opened: incident.IncidentOpened) -> None:
    """A detector wants a machine ended: it is, if that is evidence, or within the limits."""
    state = turn.state
    life = _accused(state, opened)
    if life is None or life in state.deaths or _has_finished(state, life):
        return
    code, _ = condemn.refusal(state, opened, turn.now_s)
    if code:
        return  # policy says so
    if not condemn.is_death(opened):
        lately = (at_s for at_s in state.fenced if at_s > turn.now_s - condemn.HOUR_S)
        turn.note(fenced=(*lately, turn.now_s))
    _died(turn, life, reason=opened.summary, incident=opened.id)


def _died(turn: Turn, life: Life, *, reason: str, incident: str | None) -> None:
    if life not in turn.state.deaths:
        turn.set(
            deaths=turn.state.deaths.put(
                life, Death(turn.now_s, reason[: shapes.LONGEST], incident)
            ),
            unsaid=(*turn.state.unsaid, life),
        )


def _exited(turn: Turn, fact: machine.WorkerExited) -> None:
    """A standby's process died, or a joiner's; members are the detector's business."""
    state, life = turn.state, (fact.machine, fact.generation)
    seats = state.membership
    if seats is None or not 0 <= fact.rank < seats.layout.world_size:
        return
    slot = fact.rank // seats.layout.ranks_per_slot
    if any(seat_of(one, life) == slot for one in _seated(state)):
        crashes.note(turn, fact)
    if seat_of(seats, life) is not None:
        return
    turn.set(inventory=state.inventory.cooled(fact.machine, fact.generation, [slot]))
    flight = state.flight
    if flight is None or flight.plan is None:
        return
    if seat_of(flight.plan.membership, life) == slot:
        how = f"signal {fact.signal}" if fact.signal else f"exit code {fact.exit_code}"
        _died(turn, life, reason=f"rank {fact.rank} on {fact.machine} ended: {how}", incident=None)
