"""Who takes a free slot, and who hands over the state. Pure functions of the state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from trainmover.errors import RequestRefusedError
from trainmover.topology import Layout, Member, Membership
from trainmover_planner.inventory import Host, life_of, natural
from trainmover_planner.state import State

__all__ = ["assign", "sources", "standbys"]


def standbys(state: State) -> list[Host]:
    """Machines without a slot that may be given one, in natural order; ready or not."""
    seated = set()
    flight = state.flight
    for membership in (
        state.membership,
        None if flight is None or flight.plan is None else flight.plan.membership,
    ):
        if membership is not None:
            seated |= {life_of(member) for member in membership.members}
    return [
        host
        for host in state.inventory.sorted()
        if host.life not in seated | state.spent and state.inventory.usable(host, dead=state.deaths)
    ]


def assign(
    state: State,
    slots: Iterable[int],
    *,
    keep: Membership,
    fallback: Membership,
) -> dict[int, Member] | None:
    """A machine for each of ``slots``: ready ones first, then warming ones.

    Slots with the fewest choices are served first. A slot's former machine that still holds its
    whole state (a leaver that was not released) is the last resort.

    Args:
        state: The planner's state.
        slots: Slots to fill.
        keep: The membership whose other machines stay where they are.
        fallback: The latest committed membership, whose leavers may take their slots back.

    Returns:
        The new members, or None when some slot cannot be filled.
    """
    wanted = list(slots)
    seated = {m.machine for s, m in enumerate(keep.members) if s not in wanted}
    committed = {life_of(member) for member in fallback.members}
    pool = [
        host
        for host in state.inventory.sorted()
        if host.machine.name not in seated
        and host.life not in committed | state.spent
        and state.inventory.usable(host, dead=state.deaths)
    ]
    choices: dict[int, list[Member]] = {}
    for slot in wanted:
        warm = [host for host in pool if slot in host.warming]
        warm.sort(key=lambda host: (slot not in host.ready, natural(host.machine.name)))
        choices[slot] = [host.member(slot) for host in warm]
        old = fallback.members[slot]
        if life_of(old) not in state.deaths and old != keep.members[slot]:
            choices[slot].append(old)
    chosen: dict[int, Member] = {}
    for slot in sorted(wanted, key=lambda s: (len(choices[s]), s)):
        taken = {member.machine for member in chosen.values()}
        free = [m for m in choices[slot] if m.machine not in taken]
        if not free:
            return None
        chosen[slot] = free[0]
    return chosen


def sources(
    layout: Layout,
    replicas: Mapping[int, tuple[int, ...]],
    *,
    joining: Collection[int],
    whole: Collection[int] = (),
) -> dict[int, int]:
    """For each rank of the ``joining`` slots, the rank that hands it its state.

    The slot after it is preferred, so that sources spread over the machines.

    Args:
        layout: The job's shape.
        replicas: For each rank, the ranks that hold the same state.
        joining: Slots whose machine does not hold the state.
        whole: Slots among them whose machine still holds its own state.

    Raises:
        RequestRefusedError: With code ``no_replica``: the state of a rank is nowhere.
    """
    chosen: dict[int, int] = {}
    for slot in sorted(joining):
        for rank in layout.ranks_of(slot):
            same = _replicas_of(rank, replicas)
            alive = {r for r in same if layout.slot_of(r) not in joining}
            if alive:
                chosen[rank] = min(alive, key=lambda r: _distance(layout, rank, r))
            elif slot in whole:
                chosen[rank] = rank
            else:
                known = f"replicas {sorted(same - {rank})}" if same - {rank} else "no replica"
                raise RequestRefusedError(
                    f"The state of rank {rank} is lost: {known} of it survived.",
                    code="no_replica",
                    next_step="Start the job again from its latest checkpoint; replicate the "
                    "model (data parallel or hybrid sharding) to survive this next time.",
                )
    return chosen


def _replicas_of(rank: int, replicas: Mapping[int, tuple[int, ...]]) -> set[int]:
    own = set(replicas.get(rank, ()))
    # A rank that died before it said what it holds: its replicas may have said so.
    return own or {r for r, same in replicas.items() if rank in same}


def _distance(layout: Layout, rank: int, other: int) -> tuple[int, int, int]:
    hops = (layout.slot_of(other) - layout.slot_of(rank)) % layout.slots
    aside = (other - rank) % layout.ranks_per_slot
    return (hops if aside == 0 else hops + layout.slots, aside, other)
