"""The links between ranks: collectives of all ranks, hand-overs as deposits, ends of processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.checks import Checks

from trainmover.testing.simulation import Simulation

if TYPE_CHECKING:
    from tests.simulation.ranks import SimRank

__all__ = ["Fabric"]


@dataclass(slots=True)
class _Collective:
    """One collective of all ranks at one epoch."""

    kind: str
    there: dict[int, tuple[SimRank, Any, Callable[[list[Any]], None]]] = field(default_factory=dict)
    broken: bool = False
    over: bool = False
    seen: bool = False


class Fabric:
    """All links of the job.

    Args:
        sim: The world.
        checks: Told of each vote that passed.
    """

    def __init__(self, sim: Simulation, checks: Checks) -> None:
        self.sim = sim
        self.checks = checks
        self.ranks: list[SimRank] = []
        self._collectives: dict[tuple[int, int], _Collective] = {}
        self._deposits: dict[tuple[int, str, int], Any] = {}

    # -- collectives -----------------------------------------------------------------------------

    def enter(
        self, rank: SimRank, kind: str, value: Any, done: Callable[[list[Any]], None]
    ) -> None:
        """``rank`` takes part in the next collective of its epoch.

        ``done`` gets what everybody brought, unless the rank breaks off before.
        """
        key = (rank.epoch, rank.sequence)
        rank.sequence += 1
        collective = self._collectives.get(key)
        if collective is None:
            collective = self._collectives[key] = _Collective(kind)
        if collective.kind != kind:
            self.checks.fail("in step", f"{rank.name} is in {kind}, others in {collective.kind}")
        rank.collective = key
        collective.there[rank.rank] = (rank, value, done)
        if self._ahead(rank):
            rank.after(0.001, rank.links_broke, rank.changes, "a peer is at a later epoch")
            return
        if collective.broken or len(collective.there) < rank.membership.layout.world_size:
            return
        collective.over = True
        values = [value for _, value, _ in collective.there.values()]
        for one, _, finish in collective.there.values():
            one.after(
                self.sim.between(0.0002, 0.004), self._leave_together, one, key, finish, values
            )

    def _leave_together(
        self, rank: SimRank, key: tuple[int, int], done: Callable[[list[Any]], None], values: Any
    ) -> None:
        if rank.collective != key:
            return
        rank.collective = None
        collective = self._collectives[key]
        if collective.kind == "vote" and not collective.seen:
            # Somebody knows that it passed; where nobody does, the step is void for all.
            collective.seen = True
            self.checks.vote(
                epoch=key[0],
                voters=[
                    (one.slot, one.incarnation, *value[:2])
                    for one, value, _ in collective.there.values()
                ],
            )
        if collective.kind == "vote":
            self.checks.witness(rank.incarnation)
        done(values)

    def _ahead(self, rank: SimRank) -> bool:
        """Whether a peer closed its links to this epoch."""
        return any(
            other.epoch > rank.epoch and other.alive and self._knows(rank, other)
            for other in self.ranks
        )

    def break_off(self, rank: SimRank) -> None:
        """``rank`` latched or died: what it already sent may still arrive, or not."""
        if rank.collective is None:
            return
        collective = self._collectives[rank.collective]
        rank.collective = None
        if not collective.over and self.sim.chance(0.5):
            collective.broken = True

    def reset(self, rank: SimRank) -> None:
        """``rank`` closed all its links and is at a new epoch: who waits for it sees them end."""
        for other in self.ranks:
            if (
                other.collective is not None
                and other.epoch < rank.epoch
                and self._knows(other, rank)
            ):
                late_s = self.sim.between(0.001, 0.01)
                other.after(late_s, other.links_broke, other.changes, "links ended")

    # -- processes -------------------------------------------------------------------------------

    def ended(self, dead: SimRank, *, reset: bool) -> None:
        """The process of ``dead`` is gone; with ``reset`` its links end, else they fall silent."""
        self.break_off(dead)
        self.ranks.remove(dead)
        if reset:
            for other in self.ranks:
                if self._adjacent(other, dead):
                    other.after(self.sim.between(0.001, 0.03), other.lost, dead)

    def tell_neighbours(self, rank: SimRank, epoch: int, reason: str) -> None:
        """Pass on that the step of ``epoch`` is broken."""
        for other in self.ranks:
            if other is not rank and self._adjacent(other, rank):
                other.after(self.sim.between(0.0005, 0.005), other.heard_abort, epoch, reason)

    def at(self, machine: str, generation: int, rank: int) -> SimRank | None:
        """The process that holds ``rank`` in this incarnation, if it lives."""
        for one in self.ranks:
            if one.incarnation == (machine, generation) and one.rank == rank and one.alive:
                return one
        return None

    @staticmethod
    def _knows(rank: SimRank, other: SimRank) -> bool:
        member = rank.membership.members[other.slot]
        return (member.machine, member.generation) == other.incarnation and rank is not other

    def _adjacent(self, rank: SimRank, other: SimRank) -> bool:
        world = rank.membership.layout.world_size
        near = (rank.rank - other.rank) % world in (1, world - 1)
        return near and rank.linked and self._knows(rank, other)

    # -- hand-overs ------------------------------------------------------------------------------

    def deposit(self, epoch: int, kind: str, joiner: int, value: Any) -> None:
        """Send something to the process that joins as ``joiner``."""
        self._deposits[epoch, kind, joiner] = value
        for one in self.ranks:
            if one.rank == joiner and one.epoch == epoch:
                one.after(self.sim.between(0.001, 0.05), one.look)

    def collect(self, epoch: int, kind: str, joiner: int) -> Any:
        """What was sent, or None."""
        return self._deposits.get((epoch, kind, joiner))
