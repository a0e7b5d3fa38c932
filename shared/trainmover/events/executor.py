"""Facts about the execution of a plan and of steps; published by agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal

from pydantic import Field

from trainmover.job.numbers import Count, Epoch, Rank
from trainmover.job.redundancy import Redundancy
from trainmover.job.spans import Spans, as_spans
from trainmover.job.topology import Frozen

__all__ = [
    "CheckpointSaved",
    "JobLayoutKnown",
    "PlanCommitted",
    "PlanFailed",
    "PlanPrepared",
    "PlanSwitched",
    "Span",
    "StateFollowed",
    "StepBroken",
    "StepProgress",
    "StepResumed",
    "WorkerCosts",
    "WorkerFinished",
]


class Span(Frozen):
    """Ranks at equal distances: ``first``, ``first + step``, and so on to ``last``."""

    first: Rank
    last: Rank
    step: int = Field(default=1, ge=1)

    @staticmethod
    def of(ranks: Iterable[int]) -> tuple[Span, ...]:
        """The spans that hold these ranks."""
        spans = as_spans(ranks)
        return tuple(Span(first=span[0], last=span[-1], step=span.step) for span in spans)


class JobLayoutKnown(Frozen):
    """The session of one rank says which ranks hold the same state (``redundancy``).

    Attributes:
        replicas: The ranks of ``alike`` one by one, as they were said before there were spans: in
            a large job that is as many bytes as it has ranks, from each of them.
        redundancy: Where the state is to survive the machine.
        obstacle: Why it is no better kind, for people; empty when it is as asked for.
        alike: All ranks, this one included, that hold bitwise the same model and optimizer state,
            ascending. Only this rank when the state is sharded without replicas.
    """

    machine: str
    rank: Rank
    replicas: tuple[Rank, ...] = ()
    redundancy: Redundancy = "replica"
    obstacle: str = ""
    alike: tuple[Span, ...] = ()

    @cached_property
    def spans(self) -> Spans:
        """The ranks that hold the same state, as ranges."""
        every = (range(one.first, one.last + 1, one.step) for one in self.alike)
        return tuple(span for span in every if span) or as_spans(self.replicas)


class StateFollowed(Frozen):
    """The state of ``rank`` is followed: ``follower`` on ``machine`` keeps a copy of it current.

    Attributes:
        machine: Where the copy is.
        epoch: Epoch at which the copy was complete and had been compared.
    """

    machine: str
    rank: Rank
    follower: Rank
    epoch: Epoch


class PlanPrepared(Frozen):
    """Phase 1 is complete for one rank: links dialled and parked (joiner: warm and reachable)."""

    migration: str
    machine: str
    rank: Rank
    epoch: Epoch
    prepare_s: float


class PlanSwitched(Frozen):
    """One rank completed phase 2 after ``step`` and is at the new epoch.

    Attributes:
        step: Number of completed steps at the switch.
        phases_s: Seconds of each part of phase 2 ("links", "state", "verify", ...).
        state_bytes: Bytes of state that this rank sent or received.
        copied_because: Why the state was copied at the switch instead of followed before it; empty
            where it was followed, and at ranks that handed nothing over.
    """

    migration: str
    machine: str
    rank: Rank
    epoch: Epoch
    step: Count
    phases_s: Mapping[str, float] = Field(max_length=64)
    state_bytes: int = 0
    copied_because: str = ""


class PlanCommitted(Frozen):
    """The first vote of the new epoch passed at this rank: the way back is closed."""

    migration: str
    machine: str
    rank: Rank
    epoch: Epoch
    step: Count


class PlanFailed(Frozen):
    """One rank cannot carry out the plan; training is as it was when ``step_safe`` is true.

    Attributes:
        links_broke: Links to other ranks broke: the cause may be a peer that died, not this rank.
    """

    migration: str
    machine: str
    rank: Rank
    epoch: Epoch
    reason: str
    step_safe: bool
    links_broke: bool = False


class StepBroken(Frozen):
    """A rank's step was aborted by a communication error; it waits in ``recovering``.

    Attributes:
        committed_step: Number of steps this rank knows to be completed.
    """

    machine: str
    rank: Rank
    epoch: Epoch
    committed_step: Count
    reason: str


class StepProgress(Frozen):
    """Once a second while a machine trains: how far it is.

    Attributes:
        rank: The rank that speaks for the machine: the lowest one that lives.
        step: Number of completed steps.
        step_s: Median duration of the latest steps, in seconds.
        loss: Latest loss that this rank's session was told of, if any.
    """

    machine: str
    rank: Rank
    epoch: Epoch
    step: Count
    step_s: float
    loss: float | None = None


class StepResumed(Frozen):
    """The first step after a switch or recovery completed at this rank.

    Attributes:
        pause_s: Time from the last completed step before to the first one after, less one
            median step time; at least 0.
        steps_redone: Steps that were started again.
    """

    machine: str
    rank: Rank
    epoch: Epoch
    step: Count
    pause_s: float
    step_s: float
    steps_redone: int
    migration: str


class CheckpointSaved(Frozen):
    """A rank saved a checkpoint because the planner asked for one (``save_checkpoint``).

    Attributes:
        epoch: The epoch that was asked about.
        step: Steps that are in it.
        path: Where, as the program's own hook calls it; empty when nothing was saved.
        obstacle: Why nothing was saved; empty when it was.
    """

    machine: str
    rank: Rank
    epoch: Epoch
    step: Count
    path: str
    obstacle: str = ""


class WorkerCosts(Frozen):
    """What it costs a rank that its machine can be replaced; said again when that changes.

    Attributes:
        vote: ``front``: in front of the optimizer, nothing large is kept. ``end``: at the end of
            the body. None where a standby says it.
        kept_bytes: Parameters and optimizer state that are kept in every step until it is
            committed; 0 for ``front``.
        keep_s: Seconds of each step that this takes.
        because: Why the vote is at the end, for people.
        drawn: Loaders that a joiner can follow only by drawing what was used, for people.
        drawing_s: Seconds that this standby has spent in drawing it.
        behind: Batches that this standby has still to draw before it is where its rank is. A crash
            of the rank would pause the job for as long as that takes.
        state_bytes: Parameters and optimizer state of the rank: what a joiner has to be given; 0
            where a standby says it.
    """

    machine: str
    rank: Rank
    vote: Literal["front", "end"] | None = None
    kept_bytes: Count = 0
    keep_s: float = 0.0
    because: str = ""
    drawn: str = ""
    drawing_s: float = 0.0
    behind: Count = 0
    state_bytes: Count = 0


class WorkerFinished(Frozen):
    """A rank's program ended normally."""

    machine: str
    rank: Rank
    epoch: Epoch
    step: Count
