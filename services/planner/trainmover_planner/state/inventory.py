"""Which machines there are, and what each standby is ready for. Pure data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from trainmover.events.machine import (
    MachineLent,
    MachineReady,
    MachineRegistered,
    MachineWarming,
)
from trainmover.job.tables import Table
from trainmover.job.topology import Machine, Member

__all__ = ["Host", "Incarnation", "Inventory", "incarnation_of", "natural"]

Incarnation = tuple[str, int]
"""(machine, generation): a machine from one start to the next."""

_EMPTY: Mapping[int, tuple[str, ...]] = MappingProxyType({})


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that puts ``node-10`` after ``node-9``."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(p)) if p.isdigit() else (1, p) for p in parts if p)


def incarnation_of(member: Member) -> Incarnation:
    """The incarnation that fills a slot."""
    return member.machine, member.generation


@dataclass(frozen=True, slots=True)
class Host:
    """One machine in its latest incarnation.

    Attributes:
        nnodes: (min, max) as its launcher was told.
        warm_limit: Most slots that it keeps processes for; None: all.
        lent: Whether it is from a pool, which may have it back.
        warming: For each slot it may take, the endpoints of its process for it, started or not.
        ready: Slots it can take at once.
        behind: Ranks that it would take, for which it has still to draw data.
    """

    machine: Machine
    nnodes: tuple[int, int]
    registered_s: float
    warm_limit: int | None = None
    lent: bool = False
    warming: Mapping[int, tuple[str, ...]] = field(default_factory=lambda: _EMPTY)
    ready: Table[int, None] = field(default_factory=Table)
    behind: Table[int, None] = field(default_factory=Table)

    @property
    def incarnation(self) -> Incarnation:
        """(machine, generation)."""
        return self.machine.name, self.machine.generation

    def member(self, slot: int) -> Member:
        """It as a member in ``slot``; only where it is warming or ready."""
        return Member(
            machine=self.machine.name,
            generation=self.machine.generation,
            endpoints=self.warming[slot],
        )


@dataclass(frozen=True, slots=True)
class Inventory:
    """The machines that registered, each in its latest incarnation, and the latest that are gone.

    Attributes:
        quarantined: Machine and why it is not used any more.
        refused: Machines whose shape does not fit the job.
    """

    hosts: Table[str, Host] = field(default_factory=Table)
    quarantined: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    refused: Table[Incarnation, None] = field(default_factory=Table)

    def get(self, machine: str) -> Host | None:
        """The machine in its latest incarnation, or None."""
        host: Host | None = self.hosts.get(machine)
        return host

    def sorted(self, names: Iterable[str] | None = None) -> list[Host]:
        """Machines in natural order of their names: all, or those with these names."""
        if names is None:
            hosts = list(self.hosts.values())
        else:
            hosts = [host for name in names if (host := self.hosts.get(name)) is not None]
        return sorted(hosts, key=lambda host: natural(host.machine.name))

    def register(self, fact: MachineRegistered, now_s: float) -> Inventory:
        """Take a machine up; an earlier or the same incarnation again changes nothing."""
        known = self.hosts.get(fact.machine.name)
        if known is not None and known.machine.generation >= fact.machine.generation:
            return self
        nnodes = (fact.nnodes_min, fact.nnodes_max)
        host = Host(
            fact.machine,
            nnodes,
            registered_s=now_s,
            warm_limit=fact.warm_limit,
            lent=isinstance(fact, MachineLent),
        )
        return self._with(host)

    def refuse(self, incarnation: Incarnation) -> Inventory:
        """Never use this incarnation."""
        return replace(self, refused=self.refused.put(incarnation, None))

    def forget(self, incarnation: Incarnation) -> Inventory:
        """The machine is gone in this incarnation, and for good."""
        return replace(
            self, hosts=self.hosts.drop(incarnation[0]), refused=self.refused.drop(incarnation)
        )

    def quarantine(self, machine: str, reason: str) -> Inventory:
        """Do not use the machine again, whatever its generation."""
        return replace(self, quarantined=MappingProxyType({**self.quarantined, machine: reason}))

    def release(self, machine: str) -> Inventory:
        """The machine may be used again."""
        left = {name: why for name, why in self.quarantined.items() if name != machine}
        return replace(self, quarantined=MappingProxyType(left))

    def warmed(self, fact: MachineWarming) -> Inventory:
        """A standby announced its endpoints."""
        host = self._alive(fact.machine, fact.generation)
        if host is None:
            return self
        endpoints = {slot: tuple(ports) for slot, ports in fact.endpoints.items()}
        # It is the whole truth of this moment: a process that started over is not ready again yet.
        same = [s for s in host.ready if host.warming.get(s, endpoints.get(s)) == endpoints.get(s)]
        return self._with(replace(host, warming=MappingProxyType(endpoints), ready=Table.of(same)))

    def readied(self, fact: MachineReady) -> Inventory:
        """A standby can take a slot."""
        host = self._alive(fact.machine, fact.generation)
        if host is None:
            return self
        return self._with(replace(host, ready=host.ready.put(fact.slot, None)))

    def followed(self, machine: str, rank: int, slot: int, *, behind: bool) -> Inventory:
        """A standby for ``slot`` said whether it has still to draw data for ``rank``."""
        host = self.get(machine)
        if host is None or slot not in host.warming or behind == (rank in host.behind):
            return self
        others = host.behind.put(rank, None) if behind else host.behind.drop(rank)
        return self._with(replace(host, behind=others))

    def cooled(self, machine: str, generation: int, slots: Iterable[int]) -> Inventory:
        """The processes for ``slots`` are gone."""
        host, gone = self._alive(machine, generation), frozenset(slots)
        if host is None or not any(slot in host.ready or slot in host.warming for slot in gone):
            return self
        left = MappingProxyType({s: e for s, e in host.warming.items() if s not in gone})
        ready = Table.of(slot for slot in host.ready if slot not in gone)
        return self._with(replace(host, warming=left, ready=ready))

    def spent(self, incarnations: Iterable[Incarnation]) -> Inventory:
        """These incarnations filled a slot, or tried to: they are standbys for nothing any more."""
        inventory = self
        for machine, generation in incarnations:
            host = inventory.hosts.get(machine)
            if host is not None and host.machine.generation == generation:
                slots = frozenset(host.warming) | frozenset(host.ready)
                inventory = inventory.cooled(machine, generation, slots)
        return inventory

    def usable(self, host: Host, *, dead: Mapping[Incarnation, object]) -> bool:
        """Whether the incarnation may be given a slot."""
        return (
            host.incarnation not in dead
            and host.incarnation not in self.refused
            and host.machine.name not in self.quarantined
        )

    def count(self, *, dead: Mapping[Incarnation, object]) -> int:
        """How many incarnations may be given a slot; few are none of them."""
        odd = {name for name, _ in (*dead, *self.refused)} | self.quarantined.keys()
        hosts = [host for name in odd if (host := self.hosts.get(name)) is not None]
        return len(self.hosts) - sum(not self.usable(host, dead=dead) for host in hosts)

    def _alive(self, machine: str, generation: int) -> Host | None:
        host = self.hosts.get(machine)
        return host if host is not None and host.machine.generation == generation else None

    def _with(self, host: Host) -> Inventory:
        return replace(self, hosts=self.hosts.put(host.machine.name, host))
