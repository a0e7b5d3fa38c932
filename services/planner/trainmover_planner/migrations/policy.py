"""Whether a planned move may happen, and to which standby. Pure functions of the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainmover.errors import RequestRefusedError
from trainmover.events.incident import IncidentOpened
from trainmover.job.plan import Candidate, Move, Plan
from trainmover.job.topology import Member, Membership
from trainmover.protocol import migration as protocol
from trainmover_planner.machines import condemn
from trainmover_planner.machines.assignment import standbys
from trainmover_planner.machines.choice import Choice, Judge, Option, choose
from trainmover_planner.migrations.migrations import advance, base_of, propose, start
from trainmover_planner.state.inventory import incarnation_of
from trainmover_planner.state.state import State
from trainmover_planner.state.transition import Transition

__all__ = [
    "OPERATOR_REJECTED",
    "Proposal",
    "advises_move",
    "automate",
    "check_moves",
    "planned",
]

OPERATOR_REJECTED = "rejected_by_operator"
"""Code of a rejection that holds for as long as the incident does."""

_QUIET = frozenset({"migration_in_flight", "already_migrating", "recovering", "cooldown"})
"""Refusals of an automatic move that pass by themselves: it is simply tried again."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Planned moves that the state allows, all in one switch.

    Attributes:
        joiners: The new member of each slot that changes hands.
        candidates: Who else could have taken them, and what speaks against each.
        membership: The membership that they start from.
    """

    joiners: Mapping[int, Member]
    candidates: tuple[Candidate, ...]
    membership: Membership

    @property
    def moves(self) -> tuple[Move, ...]:
        """Who replaces whom, by slot."""
        members = self.membership.members
        return tuple(
            Move(slot=slot, leaver=members[slot].machine, joiner=joiner.machine)
            for slot, joiner in sorted(self.joiners.items())
        )


def check_moves(
    state: State, machines: Sequence[str], *, now_s: float, to: Sequence[str] = ()
) -> Proposal:
    """Whether ``machines`` can leave their slots now, all in one switch.

    Args:
        state: The planner's state.
        machines: Who is to leave.
        now_s: The time.
        to: Standbys for the first of them, in this order; the others are chosen.

    Raises:
        RequestRefusedError: They cannot; code, reason and next step say why.
    """
    membership = _running(state)
    slots = [_slot_of(state, membership, machine) for machine in machines]
    _check_count(membership, machines, to)
    flight = state.flight
    if flight is not None:
        same = sorted({move.slot for move in flight.moves} & set(slots))
        moving = flight.kind == "planned" and bool(same)
        raise _refusal(
            f"Migration {flight.id} is {flight.phase}"
            + (f" and already moves {_slots(same)}." if moving else "; one moves at a time."),
            "already_migrating" if moving else "migration_in_flight",
            f"Wait for it, or give it up with `trainmover migration abort {flight.id}`.",
        )
    if state.dead_slots(membership) or base_of(state) != membership or _broken(state, membership):
        raise _refusal(
            "The job is recovering from a failure.", "recovering", "Try again when it has."
        )
    chosen = _joiners(state, membership, slots, to, now_s=now_s)
    return Proposal(chosen.members, chosen.candidates, membership)


def planned(state: State, proposal: Proposal, *, id: str) -> Plan:
    """The plan of a move; its epoch was never used before."""
    before = proposal.membership
    return Plan(
        id=id,
        job=state.job,
        kind="planned",
        from_epoch=before.epoch,
        membership=before.replace(proposal.joiners, epoch=state.issued + 1),
        moves=proposal.moves,
        sources={rank: rank for slot in proposal.joiners for rank in before.layout.ranks_of(slot)},
        candidates=proposal.candidates,
    )


def advises_move(incident: IncidentOpened) -> bool:
    """Whether a detector asks that the incident's machine leave by plan."""
    return incident.advice == "move" and incident.mode == "active" and bool(incident.machine)


def automate(transition: Transition) -> None:
    """Carry out, or propose, planned moves that incidents advise: one at a time, in budget."""
    _withdraw(transition)
    _spare(transition)
    mode = transition.state.control.mode
    if mode == "paused" or transition.state.phase != "running":
        return
    for incident in list(transition.state.incidents.values()):
        if not advises_move(incident) or incident.machine is None:
            continue
        if transition.state.flight is not None or _stale(transition.state, incident):
            continue
        if (incident.id, OPERATOR_REJECTED) in transition.state.said:
            continue
        waiting = next(
            (one for one in transition.state.waiting if one.incident == incident.id), None
        )
        if waiting is not None and mode == "approval":
            continue
        try:
            proposal = check_moves(transition.state, [incident.machine], now_s=transition.now_s)
            _within_budget(transition, proposal)
        except RequestRefusedError as refusal:
            if waiting is None:
                _say_once(transition, incident, refusal)
            continue
        one = waiting or propose(
            transition,
            kind="planned",
            moves=proposal.moves,
            cause=incident.summary,
            incident=incident.id,
        )
        if mode == "automatic":
            start(
                transition,
                one.id,
                planned(transition.state, proposal, id=one.id),
                proposal.membership,
            )


def _spare(transition: Transition) -> None:
    """Say once of each machine that is not ended although a detector advises it, and why."""
    state = transition.state
    for incident in state.incidents.values():
        if not condemn.recommends_end(incident) or _stale(state, incident):
            continue
        if state.membership is None or state.dead_slots(state.membership):
            continue
        code, why = condemn.refusal(state, incident, transition.now_s)
        if code:
            reason = f"{incident.machine} is not treated as dead: {why}"
            step = f"Look at it, and move it with `trainmover migrate {incident.machine}`."
            _say_once(transition, incident, _refusal(reason, code, step))


def _withdraw(transition: Transition) -> None:
    """Proposals whose reason went away while they waited are given up."""
    for one in transition.state.waiting:
        incident = transition.state.incidents.get(one.incident or "")
        if incident is None or _stale(transition.state, incident):
            why = "the incident is over" if incident is None else "the machine left its slot"
            advance(transition, one.id, protocol.Abort(f"{why} before anybody approved the move"))


def _running(state: State) -> Membership:
    if state.membership is None:
        raise _refusal(
            "The job has not formed yet.", "job_not_formed", "Wait until enough machines are there."
        )
    if state.over:
        raise _refusal(f"The job has {state.phase}.", "job_over", "Nothing can be moved any more.")
    return state.membership


def _slot_of(state: State, membership: Membership, machine: str) -> int:
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
            "List the machines with `trainmover status`.",
        )
    return slot


def _check_count(membership: Membership, machines: Sequence[str], to: Sequence[str]) -> None:
    for names, what in ((machines, "machine"), (to, "standby")):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise _refusal(
                f"{what.capitalize()} {twice[0]} is named twice.",
                "named_twice",
                f"Name each {what} once.",
            )
    most = membership.layout.third
    if len(machines) > most:
        raise _refusal(
            f"{len(machines)} of {membership.layout.slots} slots cannot change hands in one "
            f"switch: at most a third may, that is {most}.",
            "too_many",
            f"Move up to {most} now and the others in a second migration.",
        )
    if len(to) > len(machines):
        raise _refusal(
            f"{len(to)} standbys are named for {len(machines)} leaving "
            f"machine{'s' * (len(machines) > 1)}.",
            "too_many_standbys",
            "Name at most one standby for each machine.",
        )


def _joiners(
    state: State,
    membership: Membership,
    slots: Sequence[int],
    to: Sequence[str],
    *,
    now_s: float,
) -> Choice:
    spare = standbys(state)
    names = [host.machine.name for host in spare]
    for name in to:
        if name not in names:
            raise _refusal(
                f"Machine {name!r} is not a standby.",
                "not_a_standby",
                f"Standbys are: {', '.join(names) or 'none'}.",
            )
    if len(spare) < len(slots):
        missing = len(slots) - len(spare)
        raise _refusal(
            "There is no standby."
            if not spare
            else f"{len(slots)} machines are to leave and {len(spare)} standbys are there: "
            f"{missing} missing.",
            "no_standby",
            "Add a machine to the job." if missing == 1 else f"Add {missing} machines to the job.",
        )
    named = dict(zip(slots, to, strict=False))
    judge = Judge(state, membership, now_s=now_s)
    options: dict[int, list[Option]] = {}
    for slot in slots:
        # Who keeps few slots warm warms up for others in phase 1, beside the training.
        options[slot] = [
            judge.standby(host, slot)
            for host in spare
            if slot in host.warming
            and (slot in host.ready or (host.warm_limit and host.ready))
            and (host.machine.name == named[slot] if slot in named else host.machine.name not in to)
        ]
    found = choose(options)
    lacking = [slot for slot in slots if slot not in found.members]
    if lacking:
        raise _refusal(
            f"No standby is ready for {_slots(lacking)} yet; warming: {', '.join(names)}.",
            "standby_not_ready",
            "Wait a moment and try again.",
        )
    return found


def _slots(slots: Sequence[int]) -> str:
    return f"slot{'s' * (len(slots) > 1)} {', '.join(map(str, slots))}"


def _within_budget(transition: Transition, proposal: Proposal) -> None:
    state = transition.state
    slot, until_s = max(
        ((slot, state.cooldown.get(slot, 0.0)) for slot in proposal.joiners), key=lambda one: one[1]
    )
    if transition.now_s < until_s:
        raise _refusal(
            f"Slot {slot} was moved a moment ago.",
            "cooldown",
            f"It can move again in {until_s - transition.now_s:.0f} s.",
        )
    ready = [host for host in standbys(state) if host.ready]
    if len(ready) - len(proposal.joiners) < state.settings.keep_reserve:
        raise _refusal(
            f"{len(ready)} standbys are ready and {state.settings.keep_reserve} are kept for "
            "crashes.",
            "reserve",
            "Add a machine, or move it yourself with `trainmover migrate`.",
        )


def _say_once(
    transition: Transition, incident: IncidentOpened, refusal: RequestRefusedError
) -> None:
    said = (incident.id, refusal.code)
    if refusal.code in _QUIET or said in transition.state.said:
        return
    transition.put("said", said, None)
    slot = incident.slot
    if slot is None or incident.machine is None:
        return
    one = propose(
        transition,
        kind="planned",
        moves=[Move(slot=slot, leaver=incident.machine, joiner="")],
        cause=incident.summary,
        incident=incident.id,
    )
    advance(transition, one.id, protocol.Reject(code=refusal.code, reason=str(refusal)))


def _stale(state: State, incident: IncidentOpened) -> bool:
    """Whether the machine left its slot since: the finding was about its ranks there."""
    membership = state.memberships.get(incident.epoch)
    if membership is None or state.membership is None:
        return True
    then = membership.slot_of_machine(incident.machine or "")
    now = state.membership.slot_of_machine(incident.machine or "")
    if then is None or now is None:
        return True
    return incarnation_of(membership.members[then]) != incarnation_of(state.membership.members[now])


def _broken(state: State, membership: Membership) -> bool:
    return membership.epoch in state.broken


def _refusal(message: str, code: str, next_step: str) -> RequestRefusedError:
    return RequestRefusedError(message, code=code, next_step=next_step)
