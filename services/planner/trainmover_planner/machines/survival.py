"""Where the state of each rank would survive its machine. Pure functions of the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from trainmover.job.spans import Spans
from trainmover.job.topology import Membership
from trainmover_planner.state.inventory import incarnation_of
from trainmover_planner.state.state import State

__all__ = ["Copies", "Replicas", "describe", "unprotected"]

_REASONS: Final = 8
"""Different reasons that one line tells."""


@dataclass(frozen=True, slots=True)
class Replicas(Mapping[int, Spans]):
    """For each rank that said so, the ranks that hold the same state; looked up, not copied."""

    state: State

    def __getitem__(self, rank: int) -> Spans:
        return self.state.holdings[rank].replicas

    def __iter__(self) -> Iterator[int]:
        return iter(self.state.holdings)

    def __len__(self) -> int:
        return len(self.state.holdings)


@dataclass(frozen=True, slots=True)
class Copies(Mapping[int, int]):
    """For each rank whose state is followed now, its follower; looked up, not copied.

    A copy lives and dies with the process that keeps it: one that was reported by a machine that
    has left its slot since, or started over, is gone. So is one whose owner gave it up.

    Args:
        state: The planner's state.
        membership: The membership whose machines hold the state of the job.
    """

    state: State
    membership: Membership

    def __getitem__(self, rank: int) -> int:
        follower, incarnation = self.state.followers[rank]
        holding = self.state.holdings.get(rank)
        given_up = holding is not None and holding.kind == "checkpoint"
        if (
            given_up
            or incarnation_of(self.membership.members[self.membership.layout.slot_of(follower)])
            != incarnation
        ):
            raise KeyError(rank)
        return follower

    def __iter__(self) -> Iterator[int]:
        return (rank for rank in self.state.followers if rank in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def describe(state: State, membership: Membership | None) -> str:
    """One line for people: ``4 ranks: replica``, ``4 ranks: follower (3 of them current)``."""
    if membership is None or not state.holdings:
        return ""
    current = len(Copies(state, membership))
    held = state.holdings.values()
    kinds = Counter(one.kind for one in held)
    parts = []
    for kind, count in sorted(kinds.items()):
        note = ""
        if kind in {"follower", "snapshot"} and current < count:
            note = f" ({current} of them current)"
        if kind == "checkpoint":
            reasons = sorted({one.obstacle for one in held if one.kind == kind and one.obstacle})
            note = f" ({'; '.join(reasons[:_REASONS])})" if reasons else ""
        parts.append(f"{count} rank{'s' * (count > 1)}: {kind}{note}")
    return ", ".join(parts)


def unprotected(state: State, membership: Membership | None) -> int | None:
    """How many ranks' state would be lost if their machine died now.

    Ranks count that only the program's own checkpoint protects, and ranks whose copy is not
    complete.

    Returns:
        None before any rank said what it holds.
    """
    if membership is None or not state.holdings:
        return None
    copies = Copies(state, membership)
    held = state.holdings.items()
    return len([rank for rank, one in held if one.kind != "replica" and rank not in copies])
