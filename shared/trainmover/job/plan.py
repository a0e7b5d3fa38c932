"""The plan of a migration: who replaces whom, from which epoch to which, and where state is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from trainmover.job.topology import Frozen, Membership

__all__ = ["Candidate", "MigrationKind", "Move", "Plan"]

MigrationKind = Literal["planned", "failure"]


class Move(Frozen):
    """One slot that changes hands.

    Attributes:
        joiner: Empty while no plan has named one.
    """

    slot: int = Field(ge=0)
    leaver: str
    joiner: str

    def __str__(self) -> str:
        return f"{self.leaver} -> {self.joiner or '?'} in slot {self.slot}"


class Candidate(Frozen):
    """A machine that could have taken a slot.

    Attributes:
        chosen: Whether the plan gives it the slot.
        costs: What speaks against it, in points by term (``cold``, ``leaving``, ``trouble``,
            ``far``, ``fresh``, ``former``); what is not named is nothing.
    """

    slot: int = Field(ge=0)
    machine: str
    chosen: bool
    costs: Mapping[str, int] = {}

    @property
    def cost(self) -> int:
        """In points, all terms together."""
        return sum(self.costs.values())


class Plan(Frozen):
    """Everything the machines need to know about one migration.

    Attributes:
        id: The migration's id, used once (INV-EPOCH-MONOTONE).
        kind: ``planned`` switches at a voted step boundary, ``failure`` recovers a broken step.
        from_epoch: The epoch the job is at; a machine at another epoch refuses the plan.
        membership: The membership after the switch; its epoch is the target epoch.
        moves: The slots that change hands; empty only in a failure plan that re-forms the links
            of an unchanged membership.
        sources: For each joining rank, the rank that hands it the replicated state. In a planned
            move this is the leaver's own rank, that is, the same number. In a failure plan it is
            never another joining rank; the same number says that its process holds it already.
        candidates: Of each slot that a standby takes, the chosen one and the next best.
    """

    id: str
    job: str
    kind: MigrationKind
    from_epoch: int = Field(ge=1)
    membership: Membership
    moves: tuple[Move, ...]
    sources: Mapping[int, int]
    candidates: tuple[Candidate, ...] = ()

    @property
    def epoch(self) -> int:
        """The epoch after the switch."""
        return self.membership.epoch

    @model_validator(mode="after")
    def _is_consistent(self) -> Plan:
        if self.epoch <= self.from_epoch:
            raise ValueError(f"epoch must grow: {self.from_epoch} -> {self.epoch}")
        if self.kind == "planned" and not self.moves:
            raise ValueError("a planned migration moves at least one slot")
        slots = [move.slot for move in self.moves]
        if len(set(slots)) != len(slots):
            raise ValueError(f"a slot changes hands twice: {slots}")
        for move in self.moves:
            if self.membership.members[move.slot].machine != move.joiner:
                raise ValueError(f"membership does not put {move.joiner} into slot {move.slot}")
        wanted = {r for m in self.moves for r in self.membership.layout.ranks_of(m.slot)}
        if set(self.sources) != wanted:
            raise ValueError(f"sources {sorted(self.sources)} must name ranks {sorted(wanted)}")
        empty = {source for rank, source in self.sources.items() if source != rank} & wanted
        if empty:
            raise ValueError(f"ranks {sorted(empty)} join themselves: they have no state to give")
        return self

    @property
    def joining_ranks(self) -> frozenset[int]:
        """Ranks that change process."""
        return frozenset(self.sources)
