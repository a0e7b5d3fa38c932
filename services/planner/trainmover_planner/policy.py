"""Whether a planned move may happen, and to which standby. Pure functions of the state."""

from __future__ import annotations

from dataclasses import dataclass

from trainmover.errors import RequestRefusedError
from trainmover.events.incident import IncidentOpened
from trainmover.plan import Move, Plan
from trainmover.protocol import migration as protocol
from trainmover.topology import Membership
from trainmover_planner.assignment import standbys
from trainmover_planner.inventory import Host, life_of
from trainmover_planner.migrations import advance, base_of, propose, start
from trainmover_planner.state import State, Turn

__all__ = ["Proposal", "automate", "check_move", "planned"]

_QUIET = frozenset({"migration_in_flight", "already_migrating", "recovering", "cooldown"})
"""Refusals of an automatic move that pass by themselves: it is simply tried again."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A planned move that the state allows."""

    slot: int
    leaver: str
    joiner: Host
    membership: Membership


def check_move(state: State, machine: str, *, to: str | None = None) -> Proposal:
    """Whether ``machine`` can leave its slot now.

    Raises:
        RequestRefusedError: It cannot; code, reason and next step say why.
    """
    membership = _running(state)
    slot = membership.slot_of_machine(machine)
    if state.inventory.get(machine) is None:
        raise _refusal(
            f"No machine {machine!r} has registered.",
            "unknown_machine",
            "List the machines with `trainmover status`.",
        )
    if slot is None:
        raise _refusal(
            f"Machine {machine} fills no slot, so there is nothing to move.",
            "not_in_slot",
            f"Members are {', '.join(m.machine for m in membership.members)}.",
        )
    flight = state.flight
    if flight is not None:
        same = flight.kind == "planned" and flight.slot == slot
        raise _refusal(
            f"Migration {flight.id} is {flight.phase}"
            + (f" and already moves slot {slot}." if same else "; one moves at a time."),
            "already_migrating" if same else "migration_in_flight",
            f"Wait for it, or give it up with `trainmover abort {flight.id}`.",
        )
    if state.dead_slots(membership) or base_of(state) != membership or _broken(state, membership):
        raise _refusal(
            "The job is recovering from a failure.", "recovering", "Try again when it has."
        )
    return Proposal(slot, machine, _joiner(state, slot, to), membership)


def planned(state: State, proposal: Proposal, *, id: str) -> Plan:
    """The plan of a move; its epoch was never used before."""
    slot, before = proposal.slot, proposal.membership
    joiner = proposal.joiner.member(slot)
    return Plan(
        id=id,
        job=state.job,
        kind="planned",
        from_epoch=before.epoch,
        membership=before.replace({slot: joiner}, epoch=state.issued + 1),
        moves=(Move(slot=slot, leaver=proposal.leaver, joiner=joiner.machine),),
        sources={rank: rank for rank in before.layout.ranks_of(slot)},
    )


def automate(turn: Turn) -> None:
    """Move stragglers away, one at a time, within the budget."""
    if not turn.state.settings.automation or turn.state.phase != "running":
        return
    for incident in list(turn.state.incidents.values()):
        if incident.kind != "straggler" or incident.mode != "active" or not incident.machine:
            continue
        if turn.state.flight is not None or _stale(turn.state, incident):
            continue
        try:
            proposal = check_move(turn.state, incident.machine)
            _within_budget(turn, proposal)
        except RequestRefusedError as refusal:
            _say_once(turn, incident, refusal)
            continue
        one = propose(
            turn,
            kind="planned",
            slot=proposal.slot,
            leaver=proposal.leaver,
            cause=incident.summary,
            incident=incident.id,
        )
        start(turn, one.id, planned(turn.state, proposal, id=one.id), proposal.membership)


def _running(state: State) -> Membership:
    if state.membership is None:
        raise _refusal(
            "The job has not formed yet.", "job_not_formed", "Wait until enough machines are there."
        )
    if state.over:
        raise _refusal(f"The job has {state.phase}.", "job_over", "Nothing can be moved any more.")
    return state.membership


def _joiner(state: State, slot: int, to: str | None) -> Host:
    spare = standbys(state)
    if to is not None:
        named = [host for host in spare if host.machine.name == to]
        if not named:
            names = ", ".join(host.machine.name for host in spare) or "none"
            raise _refusal(
                f"Machine {to!r} is not a standby.", "not_a_standby", f"Standbys are: {names}."
            )
        spare = named
    if not spare:
        raise _refusal("There is no standby.", "no_standby", "Add a machine to the job.")
    ready = [host for host in spare if slot in host.ready and slot in host.warming]
    if not ready:
        warming = ", ".join(host.machine.name for host in spare)
        raise _refusal(
            f"No standby is ready for slot {slot} yet; warming: {warming}.",
            "standby_not_ready",
            "Wait a moment and try again.",
        )
    return ready[0]


def _within_budget(turn: Turn, proposal: Proposal) -> None:
    state = turn.state
    until_s = state.cooldown.get(proposal.slot, 0.0)
    if turn.now_s < until_s:
        raise _refusal(
            f"Slot {proposal.slot} was moved a moment ago.",
            "cooldown",
            f"It can move again in {until_s - turn.now_s:.0f} s.",
        )
    ready = [host for host in standbys(state) if host.ready]
    if len(ready) - 1 < state.settings.keep_reserve:
        raise _refusal(
            f"{len(ready)} standbys are ready and {state.settings.keep_reserve} are kept for "
            "crashes.",
            "reserve",
            "Add a machine, or move it yourself with `trainmover migrate`.",
        )


def _say_once(turn: Turn, incident: IncidentOpened, refusal: RequestRefusedError) -> None:
    said = (incident.id, refusal.code)
    if refusal.code in _QUIET or said in turn.state.said:
        return
    turn.set(said=turn.state.said | {said})
    slot = incident.slot
    if slot is None or incident.machine is None:
        return
    one = propose(
        turn,
        kind="planned",
        slot=slot,
        leaver=incident.machine,
        cause=incident.summary,
        incident=incident.id,
    )
    advance(turn, one.id, protocol.Reject(code=refusal.code, reason=str(refusal)))


def _stale(state: State, incident: IncidentOpened) -> bool:
    """Whether the machine left its slot since: the claim was about its ranks there."""
    seats = state.memberships.get(incident.epoch)
    if seats is None or state.membership is None:
        return True
    then = seats.slot_of_machine(incident.machine or "")
    now = state.membership.slot_of_machine(incident.machine or "")
    if then is None or now is None:
        return True
    return life_of(seats.members[then]) != life_of(state.membership.members[now])


def _broken(state: State, membership: Membership) -> bool:
    names = {member.machine for member in membership.members}
    return any(
        epoch == membership.epoch and machine in names
        for (machine, _), (epoch, _) in state.broken.items()
    )


def _refusal(message: str, code: str, next_step: str) -> RequestRefusedError:
    return RequestRefusedError(message, code=code, next_step=next_step)
