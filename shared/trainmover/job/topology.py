"""Who computes what: layout, machines, and the numbered map from slots to machines.

Pure data. A *slot* is a place in the job; slot ``s`` owns ranks ``[s * R, (s + 1) * R)`` with
``R`` ranks per slot. A *membership* maps every slot to the machine that fills it and is numbered
by an *epoch* that only grows (INV-EPOCH-MONOTONE).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainmover.errors import ConfigError
from trainmover.job.endpoints import Endpoint

__all__ = ["Frozen", "Layout", "Machine", "Member", "Membership", "job_size"]


class Frozen(BaseModel):
    """Base of everything that crosses a boundary: immutable; readers ignore unknown fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Layout(Frozen):
    """The shape of the job, fixed for its whole life.

    Attributes:
        slots: Number of slots, M.
        ranks_per_slot: Ranks on each machine, R. The world size is M * R.
    """

    slots: int = Field(ge=1)
    ranks_per_slot: int = Field(default=1, ge=1)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.slots * self.ranks_per_slot

    @property
    def third(self) -> int:
        """A third of the slots, rounded up: as many may change hands at once."""
        return -(-self.slots // 3)

    def ranks_of(self, slot: int) -> range:
        """Ranks that ``slot`` owns."""
        if not 0 <= slot < self.slots:
            raise IndexError(f"slot {slot} is outside 0..{self.slots - 1}")
        return range(slot * self.ranks_per_slot, (slot + 1) * self.ranks_per_slot)

    def slot_of(self, rank: int) -> int:
        """The slot that owns ``rank``."""
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} is outside 0..{self.world_size - 1}")
        return rank // self.ranks_per_slot


class Machine(Frozen):
    """A host with one agent.

    Attributes:
        name: Unique in the job; a subject token.
        generation: Grows each time the machine starts over with fresh workers, so that facts
            about an earlier incarnation of the same machine can be told apart.
        endpoints: ``host:port`` of each local rank's listening socket.
        labels: Free-form placement labels (rack, leaf, rail, accelerator, ...).
    """

    name: str
    generation: int = Field(ge=0)
    endpoints: tuple[Endpoint, ...]
    labels: Mapping[str, str] = Field(default_factory=dict)


class Member(Frozen):
    """A machine in a slot, with the endpoints of the processes that hold that slot's ranks."""

    machine: str
    generation: int = Field(ge=0)
    endpoints: tuple[Endpoint, ...]


class Membership(Frozen):
    """The map slot -> machine at one epoch.

    Attributes:
        epoch: Its number.
        layout: The job's shape.
        members: Of each slot.
        ring: All slots in the order in which rings go round them; empty: by number. It is named
            when the job forms and never changes, because sums are taken in it (INV-SAME-BITS).
    """

    epoch: int = Field(ge=1)
    layout: Layout
    members: tuple[Member, ...]
    ring: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> Membership:
        if "_slots" in self.__dict__:
            return self  # checked already: a command to each machine holds the same membership
        if len(self.members) != self.layout.slots:
            raise ValueError(f"{len(self.members)} members for {self.layout.slots} slots")
        ranks = self.layout.ranks_per_slot
        for member in self.members:
            if len(member.endpoints) != ranks:
                raise ValueError(
                    f"machine {member.machine} has {len(member.endpoints)} endpoints, "
                    f"the layout wants {ranks}"
                )
        if len(self._slots) != len(self.members):
            every = sorted(member.machine for member in self.members)
            raise ValueError(f"a machine fills two slots: {every}")
        if self.ring and sorted(self.ring) != list(range(self.layout.slots)):
            raise ValueError(f"a ring names each of {self.layout.slots} slots once: {self.ring}")
        return self

    def endpoint_of(self, rank: int) -> str:
        """``host:port`` on which ``rank`` listens."""
        slot = self.layout.slot_of(rank)
        return self.members[slot].endpoints[rank - slot * self.layout.ranks_per_slot]

    def machine_of(self, rank: int) -> str:
        """Name of the machine that computes ``rank``."""
        return self.members[self.layout.slot_of(rank)].machine

    def holds(self, machine: str, rank: int) -> bool:
        """Whether ``machine`` computes ``rank``; no rank outside of the job is anybody's."""
        slot = self._slots.get(machine)
        return slot is not None and rank // self.layout.ranks_per_slot == slot

    def slot_of_machine(self, machine: str) -> int | None:
        """The slot ``machine`` fills, or None when it fills none."""
        return self._slots.get(machine)

    def beside(self, slot: int) -> frozenset[int]:
        """The slots before and after ``slot`` in the ring; one where there are two in all."""
        at, count = self._places[slot], self.layout.slots
        around = self.ring or range(count)
        return frozenset({around[at - 1], around[(at + 1) % count]} - {slot})

    def around(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Which of ``ranks`` follows which in a ring: their indices, in order.

        Ranks of one slot stay together, as they stand in ``ranks``; where no ring is named, all do.
        """
        indices = range(len(ranks))
        if not self.ring:
            return tuple(indices)
        places, slot_of = self._places, self.layout.slot_of
        return tuple(sorted(indices, key=lambda index: places[slot_of(ranks[index])]))

    @cached_property
    def _places(self) -> Sequence[int]:
        """Where each slot is in the ring."""
        if not self.ring:
            return range(self.layout.slots)
        places = [0] * self.layout.slots
        for place, slot in enumerate(self.ring):
            places[slot] = place
        return places

    @cached_property
    def _slots(self) -> Mapping[str, int]:
        return {member.machine: slot for slot, member in enumerate(self.members)}

    def replace(self, joiners: Mapping[int, Member], *, epoch: int | None = None) -> Membership:
        """The membership after ``joiners`` took their slots.

        Args:
            joiners: The new member of each slot that changes hands.
            epoch: The new epoch; one more than this one's when omitted.
        """
        members = list(self.members)
        for slot, member in joiners.items():
            members[slot] = member
        return Membership(
            epoch=self.epoch + 1 if epoch is None else epoch,
            layout=self.layout,
            members=tuple(members),
            ring=self.ring,
        )

    def changed_slots(self, later: Membership) -> frozenset[int]:
        """Slots whose process differs between this membership and ``later`` (the delta)."""
        return frozenset(
            slot
            for slot, (old, new) in enumerate(zip(self.members, later.members, strict=True))
            if old is not new and old != new
        )

    def changed_ranks(self, later: Membership) -> frozenset[int]:
        """Ranks whose process differs between this membership and ``later``."""
        return frozenset(
            rank for slot in self.changed_slots(later) for rank in self.layout.ranks_of(slot)
        )


def job_size(*, slots: int | None, standbys: int | None, nnodes: str | None) -> tuple[int, int]:
    """Slots, and slots plus standbys, of what a command line says.

    Args:
        slots: Machines that train; 1 when nothing is said.
        standbys: Machines beside them.
        nnodes: The same as torchrun writes it: ``"4"``, or ``"4:6"`` for at least four and at most
            six machines. The first four train, the others are standbys.

    Raises:
        ConfigError: It is said in both ways, or the numbers make no job.
    """
    if nnodes is None:
        trains = 1 if slots is None else slots
        return trains, trains + (standbys or 0)
    if slots is not None or standbys is not None:
        raise ConfigError(f"--nnodes {nnodes} says slots and standbys: leave out the other options")
    low, separator, high = nnodes.partition(":")
    numbers = low.isdecimal() and (high.isdecimal() or not separator)
    least, most = (int(low), int(high or low)) if numbers else (0, 0)
    if not 1 <= least <= most:
        raise ConfigError(
            f"--nnodes {nnodes!r} is not a number of machines. Write --slots 4 --standbys 2, or as "
            "for torchrun --nnodes 4:6."
        )
    return least, most
