"""Who keeps whose private state: what only one rank knows survives its machine elsewhere.

Pure functions of the layout and of who joins, so that every rank and the planner come to the same
answer without asking each other (see docs/adr/0002-each-vote-carries-private-state.md).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trainmover.job.topology import Layout

__all__ = ["MOST_HOLDERS", "holder_of", "holders_of"]

MOST_HOLDERS: Final = 4
"""Each holder costs a message a step; more than this many neighbours rarely die in one step."""


def holders_of(rank: int, layout: Layout) -> tuple[int, ...]:
    """The ranks that keep the private state of ``rank``, nearest first.

    They have its local number in the next slots: as many as may die with it when up to a third of
    the slots dies at once, at least two where there are two others, at most ``MOST_HOLDERS``.
    """
    count = min(layout.slots - 1, max(2, layout.third), MOST_HOLDERS)
    step, world = layout.ranks_per_slot, layout.world_size
    return tuple((rank + distance * step) % world for distance in range(1, count + 1))


def holder_of(rank: int, layout: Layout, *, joining: Collection[int]) -> int | None:
    """The rank that hands private state to the process that joins as ``rank``.

    Args:
        rank: The joining rank.
        layout: The job's shape.
        joining: All ranks that change process: what they held is gone.

    Returns:
        The nearest holder that does not join itself; None when they all do.
    """
    return next((one for one in holders_of(rank, layout) if one not in joining), None)
