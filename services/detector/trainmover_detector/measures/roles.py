"""Which ranks do the same work, so that one can be compared with the others; pure.

In a data parallel job everybody does. In a pipeline only the replicas of a stage do: they issue the
same operations and share a group that is not the whole job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Roles"]

_FEW_MACHINES: Final = 16
"""Up to here a machine's own ranks are left out of what it is compared with; beyond, a median is
not moved by them."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Roles:
    """Ranks by role.

    Attributes:
        members: Ranks of each role.
        machines: For each role, the machine (slot) of each of its ranks.
        alone: Whether each rank has nobody on another machine to be compared with.
    """

    members: tuple[npt.NDArray[np.int64], ...]
    machines: tuple[npt.NDArray[np.int64], ...]
    alone: npt.NDArray[np.bool_]

    @staticmethod
    def find(
        signature: npt.NDArray[np.uint64],
        slots: npt.NDArray[np.int64],
        groups: Mapping[int, Sequence[range]],
        *,
        messages: bool,
    ) -> Roles:
        """Roles from what ranks issue and from which groups they share.

        Args:
            signature: Of each rank's operations in a step.
            slots: The slot of each rank.
            groups: Ranks of each group.
            messages: Whether the job sends messages: then equal operations are not enough.
        """
        world = len(signature)
        if messages and groups:
            labels = _joined(signature, groups)
        else:
            _, labels = np.unique(signature, return_inverse=True)
        order = np.argsort(labels, kind="stable")
        cuts = np.flatnonzero(np.diff(labels[order])) + 1
        members = tuple(np.split(order, cuts)) if world else ()
        machines = tuple(slots[ranks] for ranks in members)
        alone = np.zeros(world, bool)
        for ranks, of in zip(members, machines, strict=True):
            alone[ranks] = (of == of[0]).all()
        return Roles(members, machines, alone)

    def others_median(self, values: Floats) -> Floats:
        """For each rank, the median of its role's ranks on other machines; NaN where none is."""
        found = np.full(len(values), np.nan)
        for ranks, machines in zip(self.members, self.machines, strict=True):
            distinct = np.unique(machines)
            if len(distinct) < 2:
                continue
            if len(distinct) > _FEW_MACHINES:
                found[ranks] = np.median(values[ranks])
                continue
            for machine in distinct:
                mine = machines == machine
                found[ranks[mine]] = np.median(values[ranks[~mine]])
        return found


def _joined(
    signature: npt.NDArray[np.uint64], groups: Mapping[int, Sequence[range]]
) -> npt.NDArray[np.int64]:
    """Ranks that share a group whose ranks all issue the same, and chains of such groups."""
    world = len(signature)
    labels = np.arange(world)
    for spans in groups.values():
        ranks = np.concatenate([np.arange(s.start, s.stop, s.step) for s in spans])
        ranks = ranks[ranks < world]
        if 1 < len(ranks) < world and (signature[ranks] == signature[ranks[0]]).all():
            touched = np.isin(labels, labels[ranks])
            labels[touched] = labels[ranks].min()
    return labels
