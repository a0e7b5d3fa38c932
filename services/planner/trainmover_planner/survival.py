"""Where the state of each rank would survive its machine. Pure functions of the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from trainmover.topology import Membership
from trainmover_planner.inventory import life_of
from trainmover_planner.state import State

__all__ = ["describe", "followers"]


def followers(state: State, seats: Membership) -> Mapping[int, int]:
    """For each rank whose state is followed now, its follower.

    A copy lives and dies with the process that keeps it: one that was reported by a machine that
    has left its slot since, or started over, is gone. So is one whose owner gave it up.

    Args:
        state: The planner's state.
        seats: The membership whose machines hold the state of the job.
    """
    given_up = {rank for rank, (kind, _) in state.redundancy.items() if kind == "checkpoint"}
    return {
        rank: follower
        for rank, (follower, life) in state.followers.items()
        if life_of(seats.members[seats.layout.slot_of(follower)]) == life and rank not in given_up
    }


def describe(state: State, seats: Membership | None) -> str:
    """One line for people: ``4 ranks: replica``, ``4 ranks: follower (3 of them current)``."""
    if seats is None or not state.redundancy:
        return ""
    current = len(followers(state, seats))
    kinds = Counter(kind for kind, _ in state.redundancy.values())
    parts = []
    for kind, count in sorted(kinds.items()):
        note = ""
        if kind in {"follower", "snapshot"} and current < count:
            note = f" ({current} of them current)"
        if kind == "checkpoint":
            reasons = {why for one, why in state.redundancy.values() if one == kind and why}
            note = f" ({'; '.join(sorted(reasons))})" if reasons else ""
        parts.append(f"{count} rank{'s' * (count > 1)}: {kind}{note}")
    return ", ".join(parts)
