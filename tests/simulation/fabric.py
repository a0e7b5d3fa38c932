"""The links between ranks: collectives as meetings, hand-overs as deposits, ends of processes."""

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
class _Meeting:
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
        self._meetings: dict[tuple[int, int], _Meeting] = {}
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
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = _Meeting(kind)
        if meeting.kind != kind:
            self.checks.fail("in step", f"{rank.name} is in {kind}, others in {meeting.kind}")
        rank.meeting = key
        meeting.there[rank.rank] = (rank, value, done)
        if self._ahead(rank):
            rank.after(0.001, rank.links_broke, rank.turn, "a peer is at a later epoch")
            return
        if meeting.broken or len(meeting.there) < rank.membership.layout.world_size:
            return
        meeting.over = True
        values = [value for _, value, _ in meeting.there.values()]
        for one, _, finish in meeting.there.values():
            one.after(
                self.sim.between(0.0002, 0.004), self._leave_together, one, key, finish, values
            )

    def _leave_together(
        self, rank: SimRank, key: tuple[int, int], done: Callable[[list[Any]], None], values: Any
    ) -> None:
        if rank.meeting != key:
            return
        rank.meeting = None
        meeting = self._meetings[key]
        if meeting.kind == "vote" and not meeting.seen:
            # Somebody knows that it passed; where nobody does, the step is void for all.
            meeting.seen = True
            self.checks.vote(
                epoch=key[0],
                voters=[
                    (one.slot, one.life, *value[:2]) for one, value, _ in meeting.there.values()
                ],
            )
        if meeting.kind == "vote":
            self.checks.witness(rank.life)
        done(values)

    def _ahead(self, rank: SimRank) -> bool:
        """Whether a peer closed its links to this epoch."""
        return any(
            other.epoch > rank.epoch and other.alive and self._knows(rank, other)
            for other in self.ranks
        )

    def break_off(self, rank: SimRank) -> None:
        """``rank`` latched or died: what it already sent may still arrive, or not."""
        if rank.meeting is None:
            return
        meeting = self._meetings[rank.meeting]
        rank.meeting = None
        if not meeting.over and self.sim.chance(0.5):
            meeting.broken = True

    def reset(self, rank: SimRank) -> None:
        """``rank`` closed all its links and is at a new epoch: who waits for it sees them end."""
        for other in self.ranks:
            if other.meeting is not None and other.epoch < rank.epoch and self._knows(other, rank):
                late_s = self.sim.between(0.001, 0.01)
                other.after(late_s, other.links_broke, other.turn, "links ended")

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
        """The process that holds ``rank`` in this life, if it lives."""
        for one in self.ranks:
            if one.life == (machine, generation) and one.rank == rank and one.alive:
                return one
        return None

    @staticmethod
    def _knows(rank: SimRank, other: SimRank) -> bool:
        seat = rank.membership.members[other.slot]
        return (seat.machine, seat.generation) == other.life and rank is not other

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
