"""Moves many machines away, wave after wave: as many at once as slots, standbys and reserve allow.

A drain is in the stream, so that a planner that starts over goes on with it. A machine of it that
holds no slot is put into quarantine: it is no standby for anybody until an operator says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from trainmover.commands import RequestAccepted
from trainmover.errors import RequestRefusedError
from trainmover.events.machine import MachineQuarantined
from trainmover.events.operator import (
    DrainChanged,
    DrainEnded,
    DrainStarted,
    MachineUnquarantined,
)
from trainmover.protocol import migration as protocol
from trainmover.protocol.migration import Migration
from trainmover.protocol.requests import DrainRequest, DrainStatus
from trainmover.protocol.table import Signal, allows
from trainmover_planner.machines.assignment import standbys
from trainmover_planner.migrations import operating
from trainmover_planner.migrations.forecast import forecast, need_of
from trainmover_planner.migrations.migrations import advance, propose, start
from trainmover_planner.migrations.moves import Proposal, check_moves, planned
from trainmover_planner.state.effects import Request
from trainmover_planner.state.inventory import Host, natural
from trainmover_planner.state.state import Drain, State
from trainmover_planner.state.transition import Transition

__all__ = ["apply", "drain", "proceed", "status", "under_way"]

_MOST_BYTES: Final = 400_000
"""All names of a drain together: they have to fit into one fact."""


def drain(transition: Transition, request: Request) -> RequestAccepted:
    """Verb ``drain``."""
    wish = DrainRequest.model_validate_json(request.body)
    if wish.action != "start":
        return _operate(transition, wish, request)
    state = transition.state
    if state.membership is None or state.over:
        raise _refusal("The job does not run.", "not_running", "Wait until it has formed.")
    before = under_way(state)
    if before is not None:
        raise _refusal(
            f"Drain {before.id} is under way.",
            "drain_under_way",
            "Wait for it, or give it up with `trainmover drain --abort`.",
        )
    machines = _chosen(state, wish)
    words = forecast(state, machines, wish.deadline_s)
    id = None
    if not wish.dry_run:
        number = 1 if state.control.drain is None else state.control.drain.number + 1
        fact = DrainStarted(
            drain=(id := f"d-{number:04d}"),
            machines=machines,
            deadline_at_s=None if wish.deadline_s is None else transition.now_s + wish.deadline_s,
            forecast=words,
            reason=wish.reason,
            requested_by=wish.requested_by,
        )
        _say(transition, fact, request)
    return RequestAccepted(migration=None, words=words, drain=id)


def proceed(transition: Transition) -> None:
    """Keep out who left, begin the next wave, and say when it is over."""
    one = under_way(transition.state)
    state = transition.state
    if one is None or state.membership is None or state.over:
        return
    for host in _out(state, one):
        fact = MachineQuarantined(
            machine=host.machine.name, reason=_why(one), requested_by=one.requested_by
        )
        name = f"{host.machine.name}.{host.machine.generation}.quarantined"
        operating.say(transition, fact, name)
    state = transition.state
    left = _left(state, one)
    if state.flight is not None:
        return
    if not left:
        ended = DrainEnded(drain=one.id, outcome="finished", requested_by=one.requested_by)
        _say(transition, ended)
        return
    proposal = None if one.paused else _wave(state, left, transition.now_s)
    if proposal is not None:
        moved = propose(
            transition,
            kind="planned",
            moves=proposal.moves,
            cause=_why(one),
            requested_by=one.requested_by,
        )
        plan = planned(transition.state, proposal, id=moved.id)
        start(transition, moved.id, plan, proposal.membership, by=one.requested_by)


def apply(transition: Transition, fact: DrainStarted | DrainChanged | DrainEnded) -> None:
    """Make a fact true, whether it was just decided or is read again."""
    control = transition.state.control
    control = replace(control, acts=control.acts + 1)
    match fact:
        case DrainStarted():
            # Who was let out of quarantine before is drained all the same.
            pardoned = frozenset(one for one in control.pardoned if one[0] not in fact.machines)
            one = Drain(
                number=int(fact.drain.rpartition("-")[2]),
                machines=fact.machines,
                deadline_s=fact.deadline_at_s,
                reason=fact.reason,
                requested_by=fact.requested_by,
            )
            control = replace(control, drain=one, pardoned=pardoned)
        case DrainChanged(paused=paused) if control.drain is not None:
            control = replace(control, drain=replace(control.drain, paused=paused))
        case DrainEnded() if control.drain is not None:
            control = replace(control, drain=replace(control.drain, over=True))
        case _:
            pass
    transition.set(control=control)


def under_way(state: State) -> Drain | None:
    """The drain that is not over yet."""
    one = state.control.drain
    return None if one is None or one.over else one


def status(state: State) -> DrainStatus | None:
    """How the drain stands; None where none is under way."""
    one = under_way(state)
    if one is None:
        return None
    left = _left(state, one)
    return DrainStatus(
        drain=one.id,
        machines=one.machines,
        left=left,
        paused=one.paused,
        deadline_at_s=one.deadline_s,
        waits=_waits(state, one, left),
        reason=one.reason,
        requested_by=one.requested_by,
    )


def _operate(transition: Transition, wish: DrainRequest, request: Request) -> RequestAccepted:
    """Pause, resume or abort the drain under way."""
    state = transition.state
    one = under_way(state)
    if one is None:
        raise _refusal(
            "No drain is under way.", "no_drain", "Begin one with `trainmover drain MACHINE...`."
        )
    left = _left(state, one)
    if wish.action == "abort":
        words = f"{one.id} is given up; {len(left)} machines keep their slots"
        if not wish.dry_run:
            _abort(transition, one, wish, request)
        return RequestAccepted(migration=None, words=words)
    paused = wish.action == "pause"
    if paused == one.paused:
        raise _refusal(f"{one.id} is so already.", "no_change", "Nothing is left to do.")
    if not wish.dry_run:
        fact = DrainChanged(
            drain=one.id, paused=paused, reason=wish.reason, requested_by=wish.requested_by
        )
        _say(transition, fact, request)
    what = "begins no further wave" if paused else "goes on"
    return RequestAccepted(migration=None, words=f"{one.id} {what}; {len(left)} machines are left")


def _abort(transition: Transition, one: Drain, wish: DrainRequest, request: Request) -> None:
    """End it: a wave that has not begun to switch is given up, and who left may be used again."""
    fact = DrainEnded(
        drain=one.id,
        outcome="aborted",
        left=_left(transition.state, one),
        reason=wish.reason,
        requested_by=wish.requested_by,
    )
    _say(transition, fact, request)
    flight = transition.state.flight
    if flight is not None and flight.cause == _why(one) and _can_stop(flight):
        advance(transition, flight.id, protocol.Abort(wish.reason, wish.requested_by))
    for name, why in list(transition.state.inventory.quarantined.items()):
        host = transition.state.inventory.get(name)
        if host is not None and why == _why(one):
            freed = MachineUnquarantined(
                machine=name,
                reason=f"{one.id} was aborted",
                requested_by=wish.requested_by,
                ready_slots=tuple(sorted(host.ready)),
            )
            operating.say(
                transition, freed, f"{name}.{host.machine.generation}.unquarantined", request.trace
            )


def _can_stop(one: Migration) -> bool:
    return allows(kind=one.kind, phase=one.phase, signal=Signal.ABORT)


def _chosen(state: State, wish: DrainRequest) -> tuple[str, ...]:
    """The machines that a request means, in natural order."""
    unknown = [name for name in wish.machines if state.inventory.get(name) is None]
    if unknown:
        raise _refusal(
            f"No machine {unknown[0]!r} has registered.",
            "unknown_machine",
            "List the machines with `trainmover machine ls`.",
        )
    found = set(wish.machines)
    for host in state.inventory.hosts.values() if wish.labels else ():
        labels = host.machine.labels
        gone = host.incarnation in state.deaths or host.incarnation in state.inventory.refused
        if not gone and all(labels.get(name) == value for name, value in wish.labels.items()):
            found.add(host.machine.name)
    if not found:
        what = ", ".join(f"{name}={value}" for name, value in wish.labels.items())
        raise _refusal(
            f"No machine has {what}." if what else "No machine is named.",
            "nobody",
            "Look at the labels with `trainmover machine ls -o json`.",
        )
    if sum(map(len, found)) > _MOST_BYTES:
        raise _refusal(
            f"{len(found)} machines are too many for one drain.",
            "too_many",
            "Drain them part by part.",
        )
    return tuple(sorted(found, key=natural))


def _left(state: State, one: Drain) -> tuple[str, ...]:
    """Machines of the drain that hold a slot, or are about to take one."""
    memberships = state.current_memberships
    return tuple(
        name
        for name in one.machines
        if any(each.slot_of_machine(name) is not None for each in memberships)
    )


def _out(state: State, one: Drain) -> Iterable[Host]:
    """Machines of the drain that hold no slot, and are not in quarantine yet."""
    left = set(_left(state, one))
    for name in one.machines:
        host = state.inventory.get(name)
        if host is None or name in left or name in state.inventory.quarantined:
            continue
        if host.incarnation not in state.control.pardoned:
            yield host


def _wave(state: State, left: Sequence[str], now_s: float) -> Proposal | None:
    """The next machines that can leave at once; None while none can."""
    membership = state.membership
    if membership is None or state.phase != "running":
        return None
    spare = [host for host in standbys(state) if host.ready]
    slots = {name: membership.slot_of_machine(name) for name in left}
    ready = {slot for host in spare for slot in host.ready}
    able = [
        name
        for name, slot in slots.items()
        if slot in ready and now_s >= state.cooldown.get(slot, 0.0)
    ]
    count = min(len(able), membership.layout.third, len(spare) - state.policy.keep_reserve)
    while count > 0:
        try:
            return check_moves(state, able[:count], now_s=now_s)
        except RequestRefusedError:
            count //= 2  # several may need the same standby
    return None


def _waits(state: State, one: Drain, left: Sequence[str]) -> str:
    """What the drain waits for, for people; empty where it does not."""
    if one.paused:
        return "it is paused: `trainmover drain --resume`"
    if state.flight is not None:
        return f"{state.flight.id} is {state.flight.phase}"
    if state.phase != "running":
        return f"the job is {state.phase}"
    need = need_of(state, left)
    if need.standbys < 1:
        return f"for standbys: {len(left)} machines are left; add some"
    return "for standbys to get ready"


def _why(one: Drain) -> str:
    return f"drain {one.id}: {one.reason}"


def _say(
    transition: Transition,
    fact: DrainStarted | DrainChanged | DrainEnded,
    request: Request | None = None,
) -> None:
    apply(transition, fact)
    what = type(fact).__name__.removeprefix("Drain").lower()
    # Numbered: it may be paused again.
    id = f"{fact.drain}.{what}.{transition.state.control.acts}"
    transition.publish(fact, id=id, trace=None if request is None else request.trace)


def _refusal(message: str, code: str, next_step: str) -> RequestRefusedError:
    return RequestRefusedError(message, code=code, next_step=next_step)
