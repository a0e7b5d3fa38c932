"""Who computes what with whom: data, pipeline and tensor parallel ranks on machines."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

from trainmover.job.topology import Layout, Member, Membership

__all__ = ["Shape"]


@dataclass(frozen=True)
class Shape:
    """A job's ranks: tensor parallel ones are neighbours, then pipeline stages, then replicas.

    Attributes:
        slots: Machines.
        ranks_per_slot: Ranks on each.
        tp: Ranks of a tensor parallel group.
        pp: Pipeline stages.
        mesh: Every pair of ranks of a data parallel group has a link (as mixtures of experts do);
            else only ring neighbours.
    """

    slots: int = 4
    ranks_per_slot: int = 1
    tp: int = 1
    pp: int = 1
    mesh: bool = False

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.slots * self.ranks_per_slot

    @property
    def replicas(self) -> int:
        """Size of a data parallel group."""
        return self.world // (self.tp * self.pp)

    @property
    def hybrid(self) -> bool:
        """Whether there is more than data parallelism."""
        return self.tp > 1 or self.pp > 1

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return rank // self.tp % self.pp

    def machine_of(self, rank: int) -> str:
        """The machine that a rank starts on."""
        return f"w-{rank // self.ranks_per_slot}"

    @cached_property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """Ranks of each group, by name."""
        groups = {"_control": tuple(range(self.world))}
        stride = self.tp * self.pp
        for inner in range(stride):
            groups[f"dp{inner}"] = tuple(range(inner, self.world, stride))
        for first in range(0, self.world, self.tp):
            groups[f"tp{first}"] = tuple(range(first, first + self.tp))
        for first in range(0, self.world, stride):
            for position in range(self.tp):
                stages = range(first + position, first + stride, self.tp)
                groups[f"pp{first + position}"] = tuple(stages)
        return {name: ranks for name, ranks in groups.items() if len(ranks) > 1}

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id of each group, by name."""
        return {name: zlib.crc32(name.encode()) for name in self.groups}

    @cached_property
    def links(self) -> list[tuple[int, int, str]]:
        """(sending rank, receiving rank, group) of every link that carries large messages."""
        found = []
        for name, ranks in self.groups.items():
            if name == "_control":
                continue
            for index, rank in enumerate(ranks):
                if name.startswith("dp") and self.mesh:
                    found += [(rank, peer, name) for peer in ranks if peer != rank]
                else:
                    found.append((rank, ranks[(index + 1) % len(ranks)], name))
        return found

    def membership(self, *, epoch: int = 1, replaced: tuple[str, ...] = ()) -> Membership:
        """The membership; machines in ``replaced`` gave theirs to ``NAME-next``."""
        names = [f"w-{slot}" for slot in range(self.slots)]
        names = [f"{name}-next" if name in replaced else name for name in names]
        return Membership(
            epoch=epoch,
            layout=Layout(slots=self.slots, ranks_per_slot=self.ranks_per_slot),
            members=tuple(
                Member(
                    machine=name,
                    generation=0,
                    endpoints=tuple(f"{name}:{local}" for local in range(self.ranks_per_slot)),
                )
                for name in names
            ),
        )
