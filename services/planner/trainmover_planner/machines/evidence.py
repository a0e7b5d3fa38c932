"""What the state says about dead machines and broken steps. Pure questions, no decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainmover.job.topology import Member, Membership
from trainmover.protocol.table import Phase
from trainmover_planner.state.inventory import incarnation_of
from trainmover_planner.state.state import Breaks, Death, State, slot_of

__all__ = ["Stuck", "deaths_of", "gone", "gone_slots", "nearly_all", "stuck", "unproven", "why"]


@dataclass(frozen=True, slots=True)
class Stuck:
    """How many ranks of a membership wait in ``recovering``, and since when."""

    some: bool
    all: bool
    first_s: float
    last_s: float


def stuck(state: State, membership: Membership, *, epochs: Iterable[int]) -> Stuck:
    """Which ranks broke their step at one of ``epochs``; a joiner that never ran may be silent."""
    broken = {e: state.broken[e] for e in set(epochs) if e in state.broken}
    count = sum(
        len(breaks.ranks) - _elsewhere(state, breaks, epoch, membership)
        for epoch, breaks in broken.items()
    )
    silent = sum(
        all((membership.machine_of(rank), rank) not in breaks.ranks for breaks in broken.values())
        for slot in unproven(state, membership)
        for rank in membership.layout.ranks_of(slot)
    )
    return Stuck(
        some=count > 0,
        all=count > 0 and count + silent == membership.layout.world_size,
        first_s=min((breaks.first_s for breaks in broken.values()), default=0.0),
        last_s=max((breaks.last_s for breaks in broken.values()), default=0.0),
    )


def _elsewhere(state: State, breaks: Breaks, epoch: int, membership: Membership) -> int:
    """How many of those who broke a step at ``epoch`` do not have that rank in ``membership``."""
    if epoch == membership.epoch:
        return 0
    before = state.memberships.get(epoch)
    if before is None:
        return sum(not membership.holds(machine, rank) for machine, rank in breaks.ranks)
    return sum(
        (before.machine_of(rank), rank) in breaks.ranks
        and before.machine_of(rank) != membership.machine_of(rank)
        for rank in before.changed_ranks(membership)
    )


def nearly_all(state: State, epoch: int) -> bool:
    """Whether all ranks that can break their step at ``epoch`` may have: worth a close look."""
    if state.membership is None:
        return False
    layout = state.membership.layout
    moves = sum(len(one.moves) for one in state.migrations.values() if one.plan is not None)
    absent = (moves + len(state.deaths) + len(state.spent)) * layout.ranks_per_slot
    known = sum(len(breaks.ranks) for e, breaks in state.broken.items() if e >= epoch)
    return known + absent >= layout.world_size


def deaths_of(state: State, membership: Membership) -> list[Death]:
    """Why and when each dead machine of ``membership`` was given up, by slot."""
    return [
        state.deaths[incarnation_of(membership.members[slot])]
        for slot in state.dead_slots(membership)
    ]


def unproven(state: State, membership: Membership) -> frozenset[int]:
    """Slots whose machine was to join by the plan of this epoch and has not said that it did."""
    for one in state.migrations.values():
        if one.plan is not None and one.plan.epoch == membership.epoch:
            break
    else:
        return frozenset()
    if one.phase is Phase.COMMITTED:
        return frozenset()
    layout = membership.layout
    return frozenset(
        move.slot
        for move in one.plan.moves
        if not all((move.joiner, rank) in one.switched for rank in layout.ranks_of(move.slot))
    )


def why(state: State, membership: Membership) -> str:
    """One sentence about the dead machines of ``membership``; empty when none is."""
    return "; ".join(
        f"machine {membership.members[slot].machine} failed: {death.reason}"
        for slot, death in zip(
            state.dead_slots(membership), deaths_of(state, membership), strict=True
        )
    )


def gone(state: State, member: Member) -> bool:
    """Whether this incarnation is dead or could not take its slot."""
    return incarnation_of(member) in state.deaths or incarnation_of(member) in state.spent


def gone_slots(state: State, membership: Membership) -> list[int]:
    """Slots of ``membership`` whose incarnation is dead or could not take its slot, in order."""
    incarnations = dict.fromkeys((*state.deaths, *state.spent))
    slots = (slot_of(membership, incarnation) for incarnation in incarnations)
    return sorted(slot for slot in slots if slot is not None)
