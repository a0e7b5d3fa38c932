"""Whether machines can leave their slots now, and to which standbys. Pure: it asks the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainmover.errors import RequestRefusedError
from trainmover.events.incident import IncidentOpened
from trainmover.job.plan import Candidate, Move, Plan
from trainmover.job.topology import Member, Membership
from trainmover_planner.machines.assignment import standbys
from trainmover_planner.machines.choice import Choice, Judge, Option, choose
from trainmover_planner.migrations.migrations import base_of
from trainmover_planner.rules.rebalance import pace_of
from trainmover_planner.rules.worth import foresee
from trainmover_planner.state.inventory import Host
from trainmover_planner.state.rings import move_crossings
from trainmover_planner.state.state import State

__all__ = ["Proposal", "check_moves", "planned", "refusal"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Planned moves that the state allows, all in one switch.

    Attributes:
        joiners: The new member of each slot that changes hands.
        candidates: Who else could have taken them, and what speaks against each.
        membership: The membership that they start from.
        kept: How late the latest of the joiners is known to be, as a share of a step.
    """

    joiners: Mapping[int, Member]
    candidates: tuple[Candidate, ...]
    membership: Membership
    kept: float = 0.0

    @property
    def moves(self) -> tuple[Move, ...]:
        """Who replaces whom, by slot."""
        members = self.membership.members
        return tuple(
            Move(slot=slot, leaver=members[slot].machine, joiner=joiner.machine)
            for slot, joiner in sorted(self.joiners.items())
        )


def check_moves(
    state: State,
    machines: Sequence[str],
    *,
    now_s: float,
    to: Sequence[str] = (),
    better_than: float | None = None,
) -> Proposal:
    """Whether ``machines`` can leave their slots now, all in one switch.

    Args:
        state: The planner's state.
        machines: Who is to leave.
        now_s: The time.
        to: Standbys for the first of them, in this order; the others are chosen.
        better_than: No standby counts that was later than this when it was measured, as a share of
            a step.

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
        raise refusal(
            f"Migration {flight.id} is {flight.phase}"
            + (f" and already moves {_slots(same)}." if moving else "; one moves at a time."),
            "already_migrating" if moving else "migration_in_flight",
            f"Wait for it, or give it up with `trainmover migration abort {flight.id}`.",
        )
    if state.dead_slots(membership) or base_of(state) != membership or _broken(state, membership):
        raise refusal(
            "The job is recovering from a failure.", "recovering", "Try again when it has."
        )
    spare = _spare(state, len(slots), to)
    if better_than is not None:
        spare = _better(state, spare, better_than, machines, now_s=now_s)
    chosen = _joiners(state, membership, slots, to, spare, now_s=now_s)
    paces = [pace_of(state, one.machine, now_s) or 0.0 for one in chosen.members.values()]
    return Proposal(chosen.members, chosen.candidates, membership, max(paces, default=0.0))


def planned(
    state: State, proposal: Proposal, *, id: str, incident: IncidentOpened | None = None
) -> Plan:
    """The plan of a move; its epoch was never used before.

    Args:
        state: The planner's state.
        proposal: Who takes which slot.
        id: The migration's.
        incident: What a detector found, where that is why.
    """
    before = proposal.membership
    after = before.replace(proposal.joiners, epoch=state.issued + 1)
    return Plan(
        id=id,
        job=state.job,
        kind="planned",
        from_epoch=before.epoch,
        membership=after,
        moves=proposal.moves,
        sources={rank: rank for slot in proposal.joiners for rank in before.layout.ranks_of(slot)},
        candidates=proposal.candidates,
        forecast=foresee(state, proposal.joiners, incident, kept=proposal.kept),
        crossings=move_crossings(state.inventory, before, after, levels=state.policy.topology),
    )


def refusal(message: str, code: str, next_step: str) -> RequestRefusedError:
    """A refusal of a move."""
    return RequestRefusedError(message, code=code, next_step=next_step)


def _running(state: State) -> Membership:
    if state.membership is None:
        raise refusal(
            "The job has not formed yet.", "job_not_formed", "Wait until enough machines are there."
        )
    if state.over:
        raise refusal(f"The job has {state.phase}.", "job_over", "Nothing can be moved any more.")
    return state.membership


def _slot_of(state: State, membership: Membership, machine: str) -> int:
    slot = membership.slot_of_machine(machine)
    if state.inventory.get(machine) is None:
        raise refusal(
            f"No machine {machine!r} has registered.",
            "unknown_machine",
            "List the machines with `trainmover status`.",
        )
    if slot is None:
        raise refusal(
            f"Machine {machine} fills no slot, so there is nothing to move.",
            "not_in_slot",
            "List the machines with `trainmover status`.",
        )
    return slot


def _check_count(membership: Membership, machines: Sequence[str], to: Sequence[str]) -> None:
    for names, what in ((machines, "machine"), (to, "standby")):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise refusal(
                f"{what.capitalize()} {twice[0]} is named twice.",
                "named_twice",
                f"Name each {what} once.",
            )
    most = membership.layout.third
    if len(machines) > most:
        raise refusal(
            f"{len(machines)} of {membership.layout.slots} slots cannot change hands in one "
            f"switch: at most a third may, that is {most}.",
            "too_many",
            f"Move up to {most} now and the others in a second migration.",
        )
    if len(to) > len(machines):
        raise refusal(
            f"{len(to)} standbys are named for {len(machines)} leaving "
            f"machine{'s' * (len(machines) > 1)}.",
            "too_many_standbys",
            "Name at most one standby for each machine.",
        )


def _spare(state: State, count: int, to: Sequence[str]) -> list[Host]:
    """Standbys, at least so many and those that are named among them."""
    spare = standbys(state)
    names = [host.machine.name for host in spare]
    for name in to:
        if name not in names:
            raise refusal(
                f"Machine {name!r} is not a standby.",
                "not_a_standby",
                f"Standbys are: {', '.join(names) or 'none'}.",
            )
    if len(spare) < count:
        missing = count - len(spare)
        raise refusal(
            "There is no standby."
            if not spare
            else f"{count} machines are to leave and {len(spare)} standbys are there: "
            f"{missing} missing.",
            "no_standby",
            "Add a machine to the job." if missing == 1 else f"Add {missing} machines to the job.",
        )
    return spare


def _better(
    state: State, spare: list[Host], most: float, machines: Sequence[str], *, now_s: float
) -> list[Host]:
    """Standbys that are not known to be as slow as whom they would replace."""
    paces = {one.machine.name: pace_of(state, one.machine.name, now_s) for one in spare}
    left = [one for one in spare if (paces[one.machine.name] or 0.0) <= max(most, 0.0)]
    if not left:
        slow = ", ".join(f"{name} by {pace or 0.0:.1%}" for name, pace in paces.items())
        raise refusal(
            f"No standby is better than {machines[0]}: {slow} of a step late when last measured.",
            "no_better_standby",
            f"Add a machine, or move it yourself with `trainmover migrate {machines[0]}`.",
        )
    return left


def _joiners(
    state: State,
    membership: Membership,
    slots: Sequence[int],
    to: Sequence[str],
    spare: Sequence[Host],
    *,
    now_s: float,
) -> Choice:
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
        raise refusal(
            f"No standby is ready for {_slots(lacking)} yet; warming: "
            f"{', '.join(host.machine.name for host in spare)}.",
            "standby_not_ready",
            "Wait a moment and try again.",
        )
    return found


def _slots(slots: Sequence[int]) -> str:
    return f"slot{'s' * (len(slots) > 1)} {', '.join(map(str, slots))}"


def _broken(state: State, membership: Membership) -> bool:
    return membership.epoch in state.broken
