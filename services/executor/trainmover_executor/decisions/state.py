"""What a rank knows: frozen data, replaced as a whole at every step of the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainmover.commands import SaveCheckpoint
from trainmover.job.plan import Plan

__all__ = ["Phase", "Undecided", "WorkerState"]

Phase = Literal[
    "starting",
    "warm",
    "joining",
    "training",
    "voting",
    "switching",
    "left",
    "broken",
    "agreeing",
    "recovering",
]

Undecided = Literal["", "step", "between"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """Everything the core decides by.

    Attributes:
        machine: Where this rank runs.
        rank: Which it is.
        epoch: The epoch it is at.
        standby: Whether it waits to join; False once it has the state.
        committed: Steps completed by the job, as far as this rank knows.
        origin: Steps that the checkpoint had completed from which the job started.
        votes_at_end: Whether the next vote is at the end of the body; the same at all ranks.
        between: Pieces of work between steps that the job completed, likewise.
        broken: Why the communication of an epoch is broken; None while it is whole.
        broken_at: That epoch. It may be the next one: whoever watches a neighbour may learn of it
            before the training thread says that it got there.
        undecided: What this rank's vote broke about, until the survivors have agreed.
        preparing: Epochs whose phase 1 was begun here.
        prepared: The plan to vote for: phase 1 is complete.
        leading: The plan whose joiner this rank, its leaver, has to bring up to date.
        joining: The planned move that this standby joins.
        recovery: The newest recovery plan heard of.
        voted_on: What the vote under way is about; it cannot be aborted meanwhile.
        aborted: It was aborted meanwhile, and is dropped if the vote decides otherwise.
        switching: Voted for, to be carried out at the step boundary.
        recovering: Agreed about, to be carried out at the step boundary.
        unconfirmed: The plan that led to this epoch, until a step of it is committed.
        confirmed: That plan, from then until somebody took note.
        refusal: Why this rank cannot take part any more: its state is not the job's.
        save: The job may have to end: what to save while waiting for a plan.
    """

    machine: str
    rank: int
    epoch: int
    standby: bool
    phase: Phase
    committed: int = 0
    origin: int = 0
    votes_at_end: bool = False
    between: int = 0
    broken: str | None = None
    broken_at: int = 0
    undecided: Undecided = ""
    preparing: frozenset[int] = frozenset()
    prepared: Plan | None = None
    leading: Plan | None = None
    joining: Plan | None = None
    recovery: Plan | None = None
    voted_on: Plan | None = None
    aborted: bool = False
    switching: Plan | None = None
    recovering: Plan | None = None
    unconfirmed: Plan | None = None
    confirmed: Plan | None = None
    refusal: str = ""
    save: SaveCheckpoint | None = None

    @classmethod
    def first(cls, *, machine: str, rank: int, epoch: int, standby: bool) -> WorkerState:
        """What a process knows when it is started."""
        phase: Phase = "starting" if standby else "training"
        return cls(machine=machine, rank=rank, epoch=epoch, standby=standby, phase=phase)

    @property
    def pending(self) -> bool:
        """Whether a membership change waits for the step boundary."""
        return self.switching is not None or self.recovering is not None

    @property
    def next_recovery(self) -> Plan | None:
        """The recovery plan that takes the job on from this epoch."""
        plan = self.recovery
        return plan if plan is not None and plan.epoch > self.epoch else None

    @property
    def wanted(self) -> Plan | None:
        """The plan that needs this standby."""
        plan = self.joining
        later = plan if plan is not None and plan.epoch > self.epoch else None
        return self.next_recovery or later

    def withdrawn(self, plan: Plan) -> bool:
        """Whether ``plan``, which this standby joins, has been aborted or superseded."""
        if self.recovery is not None and self.recovery.epoch > plan.epoch:
            return True
        return plan not in (self.joining, self.recovery)
