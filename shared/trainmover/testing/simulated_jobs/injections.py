"""What goes wrong in a simulated job, what is only noise, and what a detector should have said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from trainmover.testing.simulated_jobs.shape import Shape

__all__ = ["Healthy", "Injection", "Kind", "Truth"]

Kind = Literal[
    "compute",
    "host",
    "loader",
    "slow_link",
    "slow_sender",
    "slow_receiver",
    "hang",
    "frozen",
    "link_hang",
    "crash",
    "silence",
    "all_slow",
    "slow_network",
    "mismatch",
    "nan",
    "corruption",
    "notice",
]

_FINDINGS: Final[dict[str, str]] = {
    "compute": "straggler",
    "host": "straggler",
    "loader": "straggler",
    "slow_link": "link_slow",
    "slow_sender": "link_slow",
    "slow_receiver": "link_slow",
    "hang": "hang",
    "frozen": "hang",
    "link_hang": "link_hang",
    "crash": "machine_failed",
    "silence": "machine_failed",
    "all_slow": "degraded",
    "slow_network": "degraded",
    "mismatch": "mismatch",
    "nan": "numeric",
    "corruption": "numeric",
    "notice": "notice",
}


@dataclass(frozen=True, slots=True)
class Truth:
    """What a perfect detector would say about an injection.

    Attributes:
        kind: Kind of the finding.
        machine: The culprit; None where nobody is to be named.
        rank: The culprit rank, where one is to blame.
        link: The culprit connection.
        since_step: First step that it touches.
        since_s: When it began.
        cause: For stragglers: compute, host or loader.
        injected: The kind of the injection.
    """

    kind: str
    machine: str | None
    rank: int | None = None
    link: tuple[int, int] | None = None
    since_step: int = 0
    since_s: float = 0.0
    cause: str = ""
    injected: str = ""


@dataclass(frozen=True, slots=True)
class Injection:
    """One thing that goes wrong.

    Attributes:
        kind: What.
        step: From which step on.
        ranks: Whom it strikes.
        factor: How many times as long something takes; of ``nan``: 2 or more where it is born in
            the backward pass, so that the loss of that step is still a number.
        link: The connection it strikes.
        last: The last step that it touches.
    """

    kind: Kind
    step: int
    ranks: tuple[int, ...] = ()
    factor: float = 2.0
    link: tuple[int, int] | None = None
    last: int = 1 << 60

    def strikes(self, step: int) -> bool:
        """Whether it is there at ``step``."""
        return self.step <= step <= self.last

    def truth(self, shape: Shape, *, now_s: float) -> Truth:
        """What should be said about it."""
        machine: str | None = shape.machine_of(self.ranks[0]) if self.ranks else None
        rank = self.ranks[0] if len(self.ranks) == 1 else None
        if self.kind in {"slow_link", "link_hang", "all_slow", "slow_network"}:
            machine = rank = None
        return Truth(
            kind=_FINDINGS[self.kind],
            machine=machine,
            rank=rank,
            link=self.link,
            since_step=self.step,
            since_s=now_s,
            cause=self.kind if self.kind in {"compute", "host", "loader"} else "",
            injected=self.kind,
        )


@dataclass(frozen=True, slots=True)
class Healthy:
    """What a healthy job does all the same.

    Attributes:
        jitter: Standard deviation of each rank's computing time, as a fraction.
        imbalance: Lasting differences between ranks: the largest, as a fraction.
        spikes: Chance that a rank takes two to four times as long, once.
        pauses_every: Steps between garbage collections of some rank, 0 for none.
        pause_steps: How long one lasts, in steps.
        checkpoint_every: Steps between checkpoints that rank 0 writes while all wait; 0 for none.
        checkpoint_s: How long one takes, in seconds.
        evaluate_every: Steps between evaluations by every rank; 0 for none.
        evaluate_s: How long one takes, in seconds.
        drift: How much slower everybody gets with each step, as a fraction.
        batch_variation: Steps differ by this much for everybody alike, as a fraction.
        lost: Chance that a batch is lost.
        repeated: Chance that a batch comes twice.
    """

    jitter: float = 0.02
    imbalance: float = 0.0
    spikes: float = 0.0
    pauses_every: int = 0
    pause_steps: float = 1.0
    checkpoint_every: int = 0
    checkpoint_s: float = 3.0
    evaluate_every: int = 0
    evaluate_s: float = 5.0
    drift: float = 0.0
    batch_variation: float = 0.0
    lost: float = 0.0
    repeated: float = 0.0
    epochs_at: tuple[int, ...] = field(default_factory=tuple)
