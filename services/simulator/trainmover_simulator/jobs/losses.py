"""How often a job's facts say that machines were lost, and how long until others came. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from trainmover.events import machine, migration, operator
from trainmover.events.envelope import Envelope
from trainmover.job.topology import Membership
from trainmover.policy.model import REBALANCE

__all__ = ["Losses"]

TOGETHER: Final = timedelta(seconds=30)
"""Machines that are given up within so long were lost by one failure."""


@dataclass(slots=True)
class Losses:
    """Losses and returns of a job's machines, from when it formed to its end or its latest fact.

    Attributes:
        slots: Slots of the job; None: it has not formed.
        watched_s: Seconds since it formed.
        failures: Machines with slots that each failure took, the oldest first.
        moves: Machines that policy moved away because of an incident.
        away_s: Machine-seconds for which machines were away: lost or put into quarantine by
            policy, and no other was warm in their place yet. Those that an operator keeps out do
            not count.
        returns: Machines that came in the place of those.
    """

    slots: int | None = None
    watched_s: float = 0.0
    failures: list[int] = field(default_factory=list)
    moves: int = 0
    away_s: float = 0.0
    returns: int = 0
    _now: datetime | None = None
    _failed: datetime | None = None
    _away: int = 0
    _over: bool = False
    _members: frozenset[str] = frozenset()
    _present: set[str] = field(default_factory=set)
    _of_incidents: set[str] = field(default_factory=set)
    _set_aside: set[str] = field(default_factory=set)
    """Machines that an operator keeps out: neither lost nor repaired."""

    @classmethod
    def of(cls, facts: Iterable[Envelope]) -> Losses:
        """From all facts of a job, in their order."""
        found = cls()
        for fact in facts:
            found._apply(fact)
        return found

    @property
    def failure_s(self) -> float | None:
        """Mean seconds between two failures of one machine; None where none was seen."""
        return None if not self.failures else self.machine_s / len(self.failures)

    @property
    def machine_s(self) -> float:
        """Seconds of all slots for which the job was watched."""
        return self.watched_s * (self.slots or 0)

    @property
    def repair_s(self) -> float | None:
        """Mean seconds until a lost machine has a successor; None where none came.

        Those that are still awaited count with the time for which they were.
        """
        return None if not self.returns or not self.away_s else self.away_s / self.returns

    @property
    def standbys(self) -> int | None:
        """Standbys that are there now; None where the job is over, or has not formed."""
        return None if self._over or self.slots is None else len(self._present - self._members)

    @property
    def group(self) -> int:
        """Machines that a failure took where it took several, on average; 1: none did."""
        several = [size for size in self.failures if size > 1]
        return round(sum(several) / len(several)) if several else 1

    @property
    def group_share(self) -> float:
        """Share of the failures that took several."""
        several = [size for size in self.failures if size > 1]
        return len(several) / len(self.failures) if several else 0.0

    def _apply(self, fact: Envelope) -> None:
        if self._over:
            return
        self._pass(fact.time)
        match fact.payload:
            case migration.JobFormed(membership=membership, standbys=standbys):
                self.slots, self._now = len(membership.members), fact.time
                self._present |= set(standbys)
                self._hold_slots(membership)
            case migration.JobFinished() | migration.JobFailed():
                self._over = True
            case migration.MigrationProposed(migration=id, incident=str(), cause=cause):
                # Who is exchanged to rebalance is a standby again a moment later.
                if not cause.startswith(REBALANCE):
                    self._of_incidents.add(id)
            case migration.MigrationCommitted() as committed:
                if committed.kind == "planned" and committed.migration in self._of_incidents:
                    self.moves += len(committed.moves) or 1
                self._hold_slots(committed.membership)
            case _:
                self._apply_machine(fact)

    def _apply_machine(self, fact: Envelope) -> None:
        match fact.payload:
            case machine.MachineLost(machine=name):
                if name in self._members and name in self._present:
                    self._fail(fact.time)
                self._leave(name)
            case machine.MachineQuarantined(machine=name, requested_by="policy"):
                self._leave(name)
            case machine.MachineQuarantined(machine=name) | machine.MachineReleased(machine=name):
                self._set_aside.add(name)
                self._present.discard(name)
            case machine.MachineReady(machine=name):
                self._come(name)
            case operator.MachineUnquarantined(machine=name, ready_slots=ready) if ready:
                self._come(name)
            case _:
                pass

    def _pass(self, at: datetime) -> None:
        """Time goes on; facts of different machines may be out of order by their clocks."""
        if self.slots is None or self._now is None or at <= self._now:
            return
        passed_s = (at - self._now).total_seconds()
        self.watched_s += passed_s
        self.away_s += self._away * passed_s
        self._now = at

    def _fail(self, at: datetime) -> None:
        if self._failed is not None and at - self._failed <= TOGETHER:
            self.failures[-1] += 1
            return
        self._failed = at
        self.failures.append(1)

    def _hold_slots(self, membership: Membership) -> None:
        self._members = frozenset(member.machine for member in membership.members)
        for name in self._members:
            self._come(name)

    def _leave(self, name: str) -> None:
        if name in self._present and self.slots is not None:
            self._away += 1
        self._present.discard(name)

    def _come(self, name: str) -> None:
        if name in self._present:
            return
        self._present.add(name)
        if name in self._set_aside:
            self._set_aside.discard(name)
        elif self._away:  # otherwise the pool has grown
            self._away -= 1
            self.returns += 1
