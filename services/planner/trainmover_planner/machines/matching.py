"""Which standby takes which slot, so that all of it together costs least."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["cheapest"]

_UNFILLED = 1 << 40
"""Cost of a slot that nobody takes: filling one more slot is worth any choice of machines."""


def cheapest(costs: Mapping[int, Mapping[str, int]]) -> dict[int, str]:
    """Give as many slots as possible a machine, no machine twice, at the least sum of costs.

    A minimum-cost assignment by shortest augmenting paths (Jonker and Volgenant 1987): slots are
    placed one after another, each by the cheapest chain of machines that change their slot. Of
    choices that cost the same, machines that are named earlier are taken first.

    Args:
        costs: For each slot the machines that could take it, with what each would cost in whole
            points, 0 to 2 ** 30.

    Returns:
        The machine of each slot that has one.
    """
    slots = list(costs)
    names = list(dict.fromkeys(name for row in costs.values() for name in row))
    column = {name: at for at, name in enumerate(names)}
    # A column for each slot, beyond the machines, stands for leaving it unfilled.
    table = np.full((len(slots), len(names) + len(slots)), 2 * _UNFILLED, dtype=np.int64)
    for at, row in enumerate(costs.values()):
        table[at, len(names) + at] = _UNFILLED
        for name, cost in row.items():
            table[at, column[name]] = cost
    taken = _assign(table)
    return {
        slots[at]: names[where]
        for where, at in enumerate(taken[: len(names)])
        if at >= 0 and table[at, where] < _UNFILLED
    }


def _assign(table: NDArray[np.int64]) -> list[int]:
    """For each column its row, or -1; every row has a column."""
    rows, columns = table.shape
    price_of_row = np.zeros(rows, dtype=np.int64)
    price = np.zeros(columns, dtype=np.int64)
    taken = np.full(columns, -1)
    for start in range(rows):
        reach = np.full(columns, np.iinfo(np.int64).max)
        before = np.full(columns, -1)
        done = np.zeros(columns, dtype=bool)
        row, last, far = start, -1, 0
        visited: list[tuple[int, int]] = []
        while True:
            through = far + table[row] - price_of_row[row] - price
            nearer = ~done & (through < reach)
            reach[nearer], before[nearer] = through[nearer], last
            open_reach = np.where(done, np.iinfo(np.int64).max, reach)
            nearest = np.flatnonzero(open_reach == open_reach.min())
            free = nearest[taken[nearest] < 0]
            last = int(free[0] if len(free) else nearest[0])  # move nobody where somebody is free
            far, done[last] = int(reach[last]), True
            if taken[last] < 0:
                break
            row = int(taken[last])
            visited.append((row, last))
        price_of_row[start] += far
        for other, at in visited:
            price_of_row[other] += far - reach[at]
            price[at] -= far - reach[at]
        while last >= 0:
            earlier = int(before[last])
            taken[last] = taken[earlier] if earlier >= 0 else start
            last = earlier
    return [int(row) for row in taken]
