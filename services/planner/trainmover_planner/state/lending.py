"""Which machines of pools may offer themselves to this job. Pure data.

The key of such a machine holds for every job of the bus, since nobody knows which one it will
serve. So its offer counts where the leader of its pool assigned it last, and nowhere else. The two
words may come in either order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trainmover.events.machine import MachineLent, PoolMachineAssigned
from trainmover.job.tables import Table

__all__ = ["Lending"]

_MOST = 1024
"""Offers that are remembered: whose machine is never assigned here must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Lending:
    """What leaders of pools said, and offers that they did not speak of yet.

    Attributes:
        assigned: Each machine's latest assignment: the term of the leader, and the job.
        offers: The latest offer of machines that are not assigned to this job.
    """

    assigned: Table[str, tuple[int, str]] = field(default_factory=Table)
    offers: Table[str, MachineLent] = field(default_factory=Table)

    def holds(self, machine: str, job: str) -> bool:
        """Whether a machine of a pool may take part in ``job``."""
        known = self.assigned.get(machine)
        return known is not None and known[1] == job

    def note(self, fact: PoolMachineAssigned) -> Lending:
        """Take in an assignment; that of a leader that leads no more changes nothing."""
        known = self.assigned.get(fact.machine)
        if known is not None and fact.term < known[0]:
            return self
        return replace(self, assigned=self.assigned.put(fact.machine, (fact.term, fact.job)))

    def wait(self, fact: MachineLent) -> Lending:
        """Remember an offer until its machine is assigned."""
        name = fact.machine.name
        if name not in self.offers and len(self.offers) >= _MOST:
            return self
        return replace(self, offers=self.offers.put(name, fact))

    def take(self, machine: str) -> tuple[Lending, MachineLent | None]:
        """The offer of a machine, which is remembered no more."""
        offer: MachineLent | None = self.offers.get(machine)
        return (self if offer is None else replace(self, offers=self.offers.drop(machine))), offer
