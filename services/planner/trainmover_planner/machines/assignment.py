"""Who takes a free slot, and who hands over the state. Pure functions of the state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from trainmover.errors import RequestRefusedError
from trainmover.job.spans import Spans, after, covers, some
from trainmover.job.topology import Layout, Membership
from trainmover.protocol.private_state import holder_of, holders_of
from trainmover_planner.machines.choice import Choice, Judge, Option, choose
from trainmover_planner.state.inventory import Host, incarnation_of
from trainmover_planner.state.state import State, slot_of

__all__ = ["assign", "sources", "standbys"]


def standbys(state: State) -> list[Host]:
    """Machines without a slot that may be given one, in natural order; ready or not."""
    memberships = state.current_memberships
    return [
        host
        for host in state.inventory.sorted(state.spare)
        if host.incarnation not in state.spent
        and all(slot_of(one, host.incarnation) is None for one in memberships)
        and state.inventory.usable(host, dead=state.deaths)
    ]


def assign(
    state: State,
    slots: Iterable[int],
    *,
    keep: Membership,
    fallback: Membership,
    now_s: float,
    prefer: Mapping[int, str] = MappingProxyType({}),
) -> Choice | None:
    """A machine for each of ``slots``; ready ones before those that are warming.

    A slot's former machine that still holds its whole state (a leaver that was not released) is
    the last resort.

    Args:
        state: The planner's state.
        slots: Slots to fill.
        keep: The membership whose other machines stay where they are.
        fallback: The latest committed membership, whose leavers may take their slots back.
        now_s: The time.
        prefer: Slots that only this machine may take.

    Returns:
        The new members, or None when some slot cannot be filled.
    """
    wanted = list(slots)
    filled = frozenset(wanted)
    pool = [
        host
        for host in state.inventory.sorted(state.spare)
        if keep.slot_of_machine(host.machine.name) in (None, *filled)
        and host.incarnation not in state.spent
        and slot_of(fallback, host.incarnation) is None
        and state.inventory.usable(host, dead=state.deaths)
    ]
    former = {
        slot: old
        for slot in wanted
        if (old := fallback.members[slot]) != keep.members[slot]
        and incarnation_of(old) not in state.deaths
    }
    if len(pool) + len(former) < len(wanted):
        return None
    judge = Judge(state, keep, now_s=now_s)
    options: dict[int, list[Option]] = {}
    for slot in wanted:
        only = prefer.get(slot)
        could = [
            host for host in pool if slot in host.warming and only in (None, host.machine.name)
        ]
        options[slot] = [judge.standby(host, slot) for host in could]
        if slot in former:
            options[slot].append(judge.former(former[slot]))
    chosen = choose(options)
    return chosen if len(chosen.members) == len(wanted) else None


def sources(
    layout: Layout,
    replicas: Mapping[int, Spans],
    *,
    followers: Mapping[int, int] = MappingProxyType({}),
    joining: Collection[int],
    whole: Collection[int] = (),
) -> dict[int, int]:
    """For each rank of the ``joining`` slots, the rank that hands it its state.

    The slot after it is preferred, so that sources spread over the machines.

    Args:
        layout: The job's shape.
        replicas: For each rank, the ranks that hold the same state.
        followers: For each rank that is followed, the rank that keeps a copy of its state.
        joining: Slots whose machine does not hold the state.
        whole: Slots among them whose machine still holds its own state.

    Raises:
        RequestRefusedError: With code ``no_replica``: the state of a rank is nowhere. With
            ``no_private_state``: its random generators and its position in the data are nowhere.
    """
    ranks = frozenset(rank for slot in joining for rank in layout.ranks_of(slot))
    chosen: dict[int, int] = {}
    for slot in sorted(joining):
        for rank in layout.ranks_of(slot):
            spans = replicas[rank] if replicas.get(rank) else _said_by_others(rank, replicas)
            found = [_nearest(layout, rank, span, joining=ranks) for span in spans]
            if followers.get(rank, rank) not in ranks:
                found.append(followers.get(rank))
            alive = [other for other in found if other is not None]
            if alive:
                _check_private_state(layout, rank, joining=ranks)
                chosen[rank] = min(alive, key=lambda r: _distance(layout, rank, r))
            elif slot in whole:
                chosen[rank] = rank
            else:
                raise _lost(rank, spans, followers.get(rank))
    return chosen


def _nearest(layout: Layout, rank: int, span: range, *, joining: Collection[int]) -> int | None:
    """The rank of a span that is best to copy from; None where all of them join."""
    best: int | None = None
    for other in after(span, rank):
        if other in joining:
            continue
        if (other - rank) % layout.ranks_per_slot == 0:
            return other  # in the next slot that there is, at the same place
        if best is None or _distance(layout, rank, other) < _distance(layout, rank, best):
            best = other
    return best


def _lost(rank: int, spans: Spans, follower: int | None) -> RequestRefusedError:
    others = [other for span in spans for other in span if other != rank]
    if follower is not None:
        others.append(follower)
    why = f"ranks {some(sorted(set(others)))} died with it" if others else "no other rank holds it"
    return RequestRefusedError(
        f"The state of rank {rank} is lost: {why}.",
        code="no_replica",
        next_step="Start the job again from its latest checkpoint. To survive this "
        "next time, replicate the model (data parallel or hybrid sharding) or let a "
        "neighbour follow it (--redundancy follower).",
    )


def _check_private_state(layout: Layout, rank: int, *, joining: Collection[int]) -> None:
    if holder_of(rank, layout, joining=joining) is None:
        slots = [layout.slot_of(one) for one in (rank, *holders_of(rank, layout))]
        raise RequestRefusedError(
            f"The random generators and the position in the data of rank {rank} are lost: slots "
            f"{slots} were lost together, and nobody else keeps them.",
            code="no_private_state",
            next_step="Start the job again from its latest checkpoint; put neighbouring slots on "
            "machines that do not fail together.",
        )


def _said_by_others(rank: int, replicas: Mapping[int, Spans]) -> Spans:
    """A rank that died before it said what it holds: its replicas may have said so."""
    return next((spans for spans in dict.fromkeys(replicas.values()) if covers(spans, rank)), ())


def _distance(layout: Layout, rank: int, other: int) -> tuple[int, int, int]:
    hops = (layout.slot_of(other) - layout.slot_of(rank)) % layout.slots
    aside = (other - rank) % layout.ranks_per_slot
    return (hops if aside == 0 else hops + layout.slots, aside, other)
