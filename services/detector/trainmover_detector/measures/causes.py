"""Why is a rank late? From where its time went, compared with the ranks that do the same; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainmover_detector.measures.roles import Roles
from trainmover_detector.measures.steps import WholeStep

__all__ = ["explain"]

_MOST: Final = 0.5
"""A part explains the lateness when it makes up so much of it."""
_WORKED: Final = 0.2
"""Least part of the lateness in which the process worked, where work is the cause: its waits
overlap with work, so the lateness is counted more than once."""


def explain(
    rank: int, slow: Sequence[WholeStep], roles: Roles, usual: Sequence[WholeStep]
) -> dict[str, Any]:
    """The cause of a rank's lateness and the numbers behind it, for a finding's evidence.

    ``loader``: drawing the batch. ``outside``: the program between two steps. ``compute``: the
    process worked more than its peers. ``host``: time passed in which it did not work: it was
    stopped, throttled, swapped out or short of a processor. Where an accelerator does the work,
    ``compute`` and ``host`` cannot be told apart and the cause is ``compute or host``.

    Args:
        rank: The late rank.
        slow: Steps in which it was late.
        roles: Who does the same work.
        usual: Steps in which it was not: what it is compared with when nobody does the same.
    """
    peers = next(ranks[ranks != rank] for ranks in roles.members if rank in ranks)

    def excess(of: Callable[[WholeStep], npt.NDArray[np.floating]]) -> float:
        mine = float(np.median([of(row)[rank] for row in slow]))
        if len(peers):
            return mine - float(np.median([of(row)[peers] for row in slow]))
        return mine - float(np.median([of(row)[rank] for row in usual] or [mine]))

    own_s = excess(lambda row: row.step_s - row.wait_s)
    loader_s, outside_s = excess(lambda row: row.loader_s), excess(lambda row: row.outside_s)
    cpu_s = excess(lambda row: row.cpu_s)
    # Waits overlap with work where collectives are asynchronous; the part that is largest counts.
    floor_s = _MOST * max(own_s - max(loader_s, outside_s, 0.0), loader_s, outside_s, 1e-9)
    if loader_s >= max(floor_s, outside_s):
        cause = "loader"
    elif outside_s >= floor_s:
        cause = "outside"
    elif any(row.accelerated for row in slow):
        cause = "compute or host"
    else:
        cause = "compute" if cpu_s >= _WORKED * own_s else "host"
    return {
        "cause": cause,
        "own_excess_s": round(own_s, 6),
        "loader_excess_s": round(loader_s, 6),
        "outside_excess_s": round(outside_s, 6),
        "cpu_excess_s": round(cpu_s, 6),
    }
