"""What the state says about dead machines and broken steps. Pure questions, no decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainmover.protocol.table import Phase
from trainmover.topology import Member, Membership
from trainmover_planner.inventory import life_of
from trainmover_planner.state import Death, State

__all__ = ["Stuck", "deaths_of", "gone", "stuck", "unproven", "why"]


@dataclass(frozen=True, slots=True)
class Stuck:
    """How many ranks of a membership wait in ``recovering``, and since when."""

    some: bool
    all: bool
    first_s: float
    last_s: float


def stuck(state: State, membership: Membership, *, epochs: Iterable[int]) -> Stuck:
    """Which ranks broke their step at one of ``epochs``; a joiner that never ran may be silent."""
    wanted, numbers = membership.layout.world_size, frozenset(epochs)
    exempt = unproven(state, membership)
    broken: list[float] = []
    silent = 0
    for rank in range(wanted):
        epoch, at_s = state.broken.get((membership.machine_of(rank), rank), (0, 0.0))
        if epoch in numbers:
            broken.append(at_s)
        elif membership.layout.slot_of(rank) in exempt:
            silent += 1
    return Stuck(
        some=bool(broken),
        all=bool(broken) and len(broken) + silent == wanted,
        first_s=min(broken, default=0.0),
        last_s=max(broken, default=0.0),
    )


def deaths_of(state: State, membership: Membership) -> list[Death]:
    """Why and when each dead machine of ``membership`` was given up, by slot."""
    return [
        state.deaths[life_of(membership.members[slot])] for slot in state.dead_slots(membership)
    ]


def unproven(state: State, membership: Membership) -> frozenset[int]:
    """Slots whose machine was to join by the plan of this epoch and has not said that it did."""
    plan_of = (m for m in state.migrations.values() if m.plan and m.plan.membership == membership)
    one = next(plan_of, None)
    if one is None or one.plan is None or one.phase is Phase.COMMITTED:
        return frozenset()
    layout = membership.layout
    return frozenset(
        move.slot
        for move in one.plan.moves
        if not {(move.joiner, rank) for rank in layout.ranks_of(move.slot)} <= one.switched
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
    """Whether this life is dead or could not take its slot."""
    return life_of(member) in state.deaths or life_of(member) in state.spent
