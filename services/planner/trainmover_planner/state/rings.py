"""The order of slots in the ring, and how many of its links leave a leaf or a pod. Pure.

Machines say where they are by labels, one for each level of the topology. A ring has to leave every
place that it has machines in, a leaf say, and need not do so more than once: few long flows cross
what others share (C4, arXiv 2406.04594).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trainmover.job.plan import Crossings
from trainmover.job.topology import Membership
from trainmover_planner.state.inventory import Inventory

__all__ = ["Path", "crossings", "least_crossings", "move_crossings", "named_ring", "shortest_ring"]

Path = tuple[str, ...]
"""Where a machine is: its labels, the outermost level first; "" where it has none."""

_NONE: Final[Mapping[str, str]] = {}


def shortest_ring(paths: Sequence[Path]) -> tuple[int, ...]:
    """The machines in an order that no other beats at any level.

    Machines of one pod stay together, and among them those of one leaf. Places come in the order of
    their first machine, so an order that is good already stays.
    """
    first: dict[Path, int] = {}
    for index, path in enumerate(paths):
        for depth in range(1, len(path) + 1):
            first.setdefault(path[:depth], index)

    def place(index: int) -> tuple[int, ...]:
        path = paths[index]
        return tuple(first[path[:depth]] for depth in range(1, len(path) + 1))

    return tuple(sorted(range(len(paths)), key=place))


def crossings(paths: Sequence[Path], ring: Sequence[int]) -> tuple[int, ...]:
    """For each level, the outermost first, the links of the ring that leave a place of it."""
    depth = len(paths[0])
    counts = [0] * depth
    before = paths[ring[-1]]
    for index in ring:
        path = paths[index]
        if path is not before and path != before:
            apart = next(level for level in range(depth) if path[level] != before[level])
            for level in range(apart, depth):
                counts[level] += 1
        before = path
    return tuple(counts)


def least_crossings(paths: Sequence[Path]) -> tuple[int, ...]:
    """The same of the best ring: as many as there are places, none where there is only one."""
    distinct = set(paths)
    places = [len({path[:depth] for path in distinct}) for depth in range(1, len(paths[0]) + 1)]
    return tuple(count if count > 1 else 0 for count in places)


def named_ring(
    inventory: Inventory, members: Sequence[str], *, levels: Sequence[str]
) -> tuple[tuple[int, ...], Crossings | None]:
    """The ring of a job that forms, and what it saves.

    Args:
        inventory: The machines.
        members: The machine of each slot.
        levels: Labels that say where a machine is, the nearest level first.

    Returns:
        The slots in the order of the ring, empty where that of their numbers is as good; and how
        many links leave a place in either order, None where no machine has such a label.
    """
    known, paths = _paths(inventory, members, levels)
    if not known:
        return (), None
    by_number, best = range(len(members)), shortest_ring(paths)
    before, after = crossings(paths, by_number), crossings(paths, best)
    ring = best if after != before else ()
    return ring, _counted(known, len(members), before=before, after=after, least=after)


def move_crossings(
    inventory: Inventory, before: Membership, after: Membership, *, levels: Sequence[str]
) -> Crossings | None:
    """What a change of machines does to the ring, which itself stays as it is.

    Args:
        inventory: The machines.
        before: The membership before the change.
        after: The membership after it.
        levels: Labels that say where a machine is, the nearest level first.

    Returns:
        None where no machine has such a label.
    """
    count, joining = before.layout.slots, sorted(before.changed_slots(after))
    machines = [member.machine for member in before.members]
    machines += [after.members[slot].machine for slot in joining]
    known, paths = _paths(inventory, machines, levels)
    if not known:
        return None
    ring, now = before.ring or range(count), paths[:count]
    for slot, path in zip(joining, paths[count:], strict=True):
        now[slot] = path
    return _counted(
        known,
        count,
        before=crossings(paths[:count], ring),
        after=crossings(now, ring),
        least=least_crossings(now),
    )


def _paths(
    inventory: Inventory, machines: Sequence[str], levels: Sequence[str]
) -> tuple[tuple[str, ...], list[Path]]:
    """The levels that any machine has a label of, and where each machine is at those."""
    hosts = map(inventory.get, machines)
    labels = [_NONE if host is None else host.machine.labels for host in hosts]
    named = set().union(*labels)
    known = tuple(level for level in levels if level in named)
    outermost = known[::-1]
    columns = [[each.get(level, "") for each in labels] for level in outermost]
    same: dict[Path, Path] = {}
    return known, [same.setdefault(path, path) for path in zip(*columns, strict=True)]


def _counted(
    levels: tuple[str, ...],
    slots: int,
    *,
    before: tuple[int, ...],
    after: tuple[int, ...],
    least: tuple[int, ...],
) -> Crossings:
    return Crossings(
        levels=levels,
        links=slots if slots > 1 else 0,
        before=before[::-1],
        after=after[::-1],
        least=least[::-1],
    )
