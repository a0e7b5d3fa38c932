"""Takes facts into the state, without deciding anything.

Facts of others are observations and are read in the same way whether they are live or stored; the
planner's own facts matter only when they are read again (``history``).
"""

from __future__ import annotations

from trainmover.events import executor, incident, machine
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import RankReport
from trainmover.topology import Frozen, Membership
from trainmover_planner import crashes
from trainmover_planner.history import remember
from trainmover_planner.inventory import Life, life_of
from trainmover_planner.migrations import advance, base_of
from trainmover_planner.state import Death, Fact, State, Turn

__all__ = ["record"]


def record(turn: Turn, fact: Fact) -> None:
    """Take in one fact; repeated and outdated ones change nothing."""
    _of_machines(turn, fact.payload)
    _of_ranks(turn, fact.payload)
    _of_detectors(turn, fact)
    if turn.replay:
        remember(turn, fact)


def _of_machines(turn: Turn, payload: Frozen) -> None:
    state = turn.state
    match payload:
        case machine.MachineRegistered():
            known = state.inventory.get(payload.machine.name)
            turn.set(inventory=state.inventory.register(payload, turn.now_s))
            if known is not None and known.machine.generation < payload.machine.generation:
                _superseded(turn, known.life)
        case machine.MachineWarming():
            turn.set(inventory=state.inventory.warmed(payload))
        case machine.MachineReady():
            turn.set(inventory=state.inventory.readied(payload))
        case machine.WorkerExited():
            _exited(turn, payload)
        case _:
            pass


def _of_ranks(turn: Turn, payload: Frozen) -> None:
    state = turn.state
    match payload:
        case executor.JobLayoutKnown():
            turn.put("replicas", payload.rank, payload.replicas)
            turn.put("redundancy", payload.rank, (payload.redundancy, payload.obstacle))
        case executor.StateFollowed():
            life = _life_at(state, payload.machine, payload.epoch)
            if life is not None:
                turn.put("followers", payload.rank, (payload.follower, life))
        case executor.StepBroken():
            _seen(turn, payload.machine, payload.rank, payload.epoch, payload.committed_step)
            known, _ = state.broken.get((payload.machine, payload.rank), (0, 0.0))
            current = 0 if state.membership is None else state.membership.epoch
            if payload.epoch > known and payload.epoch >= current:
                who = (payload.machine, payload.rank)
                turn.put("broken", who, (payload.epoch, turn.now_s))
        case executor.StepProgress() | executor.StepResumed():
            _seen(turn, payload.machine, payload.rank, payload.epoch, payload.step)
        case executor.CheckpointSaved():
            turn.put("saved", (payload.machine, payload.rank), payload)
        case executor.WorkerFinished():
            _seen(turn, payload.machine, payload.rank, payload.epoch, payload.step)
            turn.set(finished=state.finished | {(payload.machine, payload.rank)})
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
            turn.put("traces", opened.id, fact.trace)
            dead = opened.kind == "machine_failed" or opened.advice == "recover"
            if dead and opened.mode == "active" and opened.machine:
                life = _accused(turn.state, opened)
                if life is not None and not _has_finished(turn.state, life):
                    _died(turn, life, reason=opened.summary, incident=opened.id)
        case incident.IncidentClosed(id=id):
            turn.drop("incidents", id)
        case _:
            pass


def _report(turn: Turn, fact: RankReport) -> None:
    state = turn.state
    turn.set(issued=max(state.issued, fact.epoch))
    if isinstance(fact, executor.PlanSwitched | executor.PlanCommitted):
        _seen(turn, fact.machine, fact.rank, fact.epoch, fact.step)
    known = state.migrations.get(fact.migration)
    current = 0 if state.membership is None else state.membership.epoch
    if known is not None and not known.open and fact.epoch <= current:
        return  # the job went past that plan: nobody can be at its epoch any more
    if known is not None:
        advance(turn, fact.migration, protocol.Report(fact))
    elif turn.replay:
        turn.put("early", fact.migration, (*state.early.get(fact.migration, ()), fact))


def _seen(turn: Turn, name: str, rank: int, epoch: int, step: int) -> None:
    state = turn.state
    if epoch > state.seen.get((name, rank), 0):
        turn.put("seen", (name, rank), epoch)
    if epoch > state.issued or step > state.step:
        turn.set(issued=max(state.issued, epoch), step=max(state.step, step))


def _seated(state: State) -> list[Membership]:
    """Memberships that a machine may be running in right now."""
    if state.membership is None:
        return []
    flight = state.flight
    plans = [flight.plan.membership] if flight is not None and flight.plan is not None else []
    return [state.membership, base_of(state), *plans]


def _superseded(turn: Turn, old: Life) -> None:
    """The machine started over: whatever its earlier life computed is gone."""
    if any(life_of(m) == old for seats in _seated(turn.state) for m in seats.members):
        _died(turn, old, reason=f"machine {old[0]} started over", incident=None)


def _accused(state: State, opened: incident.IncidentOpened) -> Life | None:
    """The life that an incident means: it names an epoch, not a generation."""
    return _life_at(state, opened.machine or "", opened.epoch)


def _life_at(state: State, name: str, epoch: int) -> Life | None:
    """The life in which a machine had its slot at ``epoch``, else its latest one."""
    seats = state.memberships.get(epoch)
    slot = None if seats is None else seats.slot_of_machine(name)
    if seats is not None and slot is not None:
        return life_of(seats.members[slot])
    host = state.inventory.get(name)
    return None if host is None else host.life


def _has_finished(state: State, life: Life) -> bool:
    for seats in _seated(state):
        slot = seats.slot_of_machine(life[0])
        if slot is not None and life_of(seats.members[slot]) == life:
            ranks = seats.layout.ranks_of(slot)
            return {(life[0], rank) for rank in ranks} <= state.finished
    return False


def _died(turn: Turn, life: Life, *, reason: str, incident: str | None) -> None:
    if life not in turn.state.deaths:
        turn.put("deaths", life, Death(turn.now_s, reason, incident))


def _exited(turn: Turn, fact: machine.WorkerExited) -> None:
    """A standby's process died, or a joiner's; members are the detector's business."""
    state, life = turn.state, (fact.machine, fact.generation)
    seats = state.membership
    if any(life_of(member) == life for one in _seated(state) for member in one.members):
        crashes.note(turn, fact)
    if seats is None or any(life_of(member) == life for member in seats.members):
        return
    slot = fact.rank // seats.layout.ranks_per_slot
    turn.set(inventory=state.inventory.cooled(fact.machine, fact.generation, [slot]))
    flight = state.flight
    if flight is None or flight.plan is None:
        return
    after = flight.plan.membership
    if slot < after.layout.slots and life_of(after.members[slot]) == life:
        how = f"signal {fact.signal}" if fact.signal else f"exit code {fact.exit_code}"
        _died(turn, life, reason=f"rank {fact.rank} on {fact.machine} ended: {how}", incident=None)
