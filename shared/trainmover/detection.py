"""The detector SDK: windows of collective timing and liveness evidence in, verdicts out.

A detector is synchronous and does no I/O, owns no clock and no thread: time comes in, verdicts go
out. That is what lets it be replayed, simulated and run beside others. A verdict moves nobody;
the planner's policy decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from trainmover.topology import Frozen, Membership

__all__ = ["CollectiveWindow", "Detector", "Evidence", "Verdict"]


@dataclass(frozen=True, slots=True)
class CollectiveWindow:
    """Records of collectives that one machine sent in one batch.

    Attributes:
        machine: Who sent it.
        epoch: The epoch it was recorded at.
        membership: The membership at that epoch.
        records: Structured array of dtype ``trainmover.telemetry.RECORD``, oldest first.
        received_s: When the detector service got it (its own clock, seconds).
    """

    machine: str
    epoch: int
    membership: Membership
    records: npt.NDArray[np.void]
    received_s: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """A discrete fact about liveness (exit report, link reset, lease) with its arrival time.

    Attributes:
        fact: The event payload (``WorkerExited``, ``LinkLost``, ``StepBroken``, ...).
        membership: The membership known when it arrived, None before the job formed.
        received_s: When the detector service got it (its own clock, seconds).
    """

    fact: Frozen
    membership: Membership | None
    received_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim with evidence.

    Attributes:
        kind: Class of the trouble (``straggler``, ``machine_failed``, ...).
        machine: The culprit; None when nobody can be named.
        rank: The culprit rank, where one is to blame.
        confidence: 0 to 1.
        summary: One sentence for people.
        evidence: The numbers; JSON-serialisable.
        closed: True to withdraw an earlier claim of the same kind and machine.
    """

    kind: str
    machine: str | None
    rank: int | None
    confidence: float
    summary: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    closed: bool = False


@runtime_checkable
class Detector(Protocol):
    """What a plugin implements; registered under the entry point ``trainmover.detectors``."""

    api_version: ClassVar[int]

    def observe(self, window: CollectiveWindow) -> Iterable[Verdict]:
        """Take in one batch of collective records."""
        ...

    def notice(self, evidence: Evidence) -> Iterable[Verdict]:
        """Take in one liveness fact."""
        ...

    def membership_changed(self, membership: Membership) -> None:
        """A new epoch began: forget what referred to who sat where."""
        ...

    def tick(self, now_s: float) -> Iterable[Verdict]:
        """Time passed."""
        ...
