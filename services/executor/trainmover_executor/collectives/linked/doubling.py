"""Recursive doubling: an all-reduce in as few rounds as there can be, for short messages.

After Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005), section 4.5: where the group is no power of two, the ranks beyond it are folded into
their neighbours first and get the result handed back at the end.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Round", "rounds_of"]


class Round(NamedTuple):
    """One round as one rank sees it.

    Attributes:
        to: Rank that gets what this one has; None when it sends nothing.
        source: Rank that sends what it has; None when nothing is received.
        combines: Whether what arrives is combined with what is here, or replaces it.
    """

    to: int | None
    source: int | None
    combines: bool


def rounds_of(rank: int, size: int) -> tuple[Round, ...]:
    """The rounds of ``rank`` in a group of ``size``; none where it is alone."""
    power = 1 << (size.bit_length() - 1)
    extra = size - power
    before, after = [], []
    if rank < 2 * extra:
        if rank % 2 == 0:
            return Round(rank + 1, None, False), Round(None, rank + 1, False)
        before = [Round(None, rank - 1, True)]
        after = [Round(rank - 1, None, False)]
    position = rank // 2 if rank < 2 * extra else rank - extra
    others = [position ^ 1 << bit for bit in range(power.bit_length() - 1)]
    peers = [2 * other + 1 if other < extra else other + extra for other in others]
    return (*before, *(Round(peer, peer, True) for peer in peers), *after)
