"""The plan of a migration: who replaces whom, from which epoch to which, and where state is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from trainmover.job.topology import Frozen, Membership

__all__ = ["Candidate", "Crossings", "Forecast", "MigrationKind", "Move", "Plan"]

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


class Forecast(Frozen):
    """What a planned move is expected to cost and to save, as the planner saw it then.

    Attributes:
        pause_s: Pause of all ranks beyond one step that is as likely exceeded as not, in seconds.
        pause_most_s: Pause that nine of ten moves stay within.
        measured: Earlier planned moves of the job that both are from; 0: there was none, and both
            are assumed from ``state_bytes``.
        state_bytes: Parameters and optimizer state of the largest rank that moves; 0: not known.
        lateness: Share of each step for which the machine keeps the others waiting; None: no
            finding says so.
        horizon_s: For how long the machine would go on like that, in seconds, as declared.
        gain_s: Training time that the move saves within the horizon; None where ``lateness`` is.
    """

    pause_s: float = Field(ge=0)
    pause_most_s: float = Field(ge=0)
    measured: int = Field(ge=0)
    state_bytes: int = Field(default=0, ge=0)
    lateness: float | None = None
    horizon_s: float = Field(ge=0)
    gain_s: float | None = None

    @property
    def pays(self) -> bool:
        """Whether it saves more than it costs; what nobody measured is not weighed."""
        return self.gain_s is None or self.gain_s > self.pause_most_s

    @property
    def cost_words(self) -> str:
        """``a pause of 0.12 s, within 0.3 s in nine of ten cases (3 earlier moves)``."""
        words = f"a pause of {self.pause_s:.2g} s, within {self.pause_most_s:.2g} s in nine of ten"
        if self.measured:
            return f"{words} (of {self.measured} earlier move{'s' * (self.measured > 1)})"
        of = f", {self.state_bytes / 1e9:.2g} GB of state" if self.state_bytes else ""
        return f"{words} (assumed: no earlier move{of})"

    @property
    def gain_words(self) -> str:
        """``720 s saved within 3600 s, as the others wait for 20 % of each step``."""
        if self.gain_s is None or self.lateness is None:
            return "not known: no finding says for how long the others wait"
        return (
            f"{self.gain_s:.3g} s saved within {self.horizon_s:.6g} s, as the others wait for "
            f"{self.lateness * 100:.3g} % of each step"
        )


class Crossings(Frozen):
    """How many links of the ring of slots leave a leaf, a pod: they cross what others share.

    Attributes:
        levels: Labels that say where machines are, the nearest level first.
        links: Links of the ring, one from each slot to the next.
        before: For each level, the links between machines that are apart at it or further out,
            before the change; when a job forms, in the order of the slots' numbers.
        after: The same after it.
        least: The same in the best order of the machines after it.
    """

    levels: tuple[str, ...]
    links: int = Field(ge=0)
    before: tuple[int, ...]
    after: tuple[int, ...]
    least: tuple[int, ...]

    @model_validator(mode="after")
    def _counts_each_level(self) -> Crossings:
        if not len(self.levels) == len(self.before) == len(self.after) == len(self.least):
            raise ValueError(f"one count for each of {self.levels}")
        return self

    @property
    def words(self) -> tuple[str, ...]:
        """``4 of 16 links leave their leaf (2 before; 2 is the least)``, for each level."""
        counts = zip(self.levels, self.before, self.after, self.least, strict=True)
        return tuple(
            f"{after} of {self.links} links leave their {level} "
            f"({before} before; {least} is the least)"
            for level, before, after, least in counts
        )


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
        forecast: What a planned move is expected to cost and to save; None after a failure.
        crossings: What a planned move does to the ring; None after a failure, and where no machine
            says where it is.
    """

    id: str
    job: str
    kind: MigrationKind
    from_epoch: int = Field(ge=1)
    membership: Membership
    moves: tuple[Move, ...]
    sources: Mapping[int, int]
    candidates: tuple[Candidate, ...] = ()
    forecast: Forecast | None = None
    crossings: Crossings | None = None

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
