"""What a detector gets and what it says: windows, evidence, findings, and the interface itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from trainmover.job.topology import Frozen, Membership
from trainmover.telemetry.records import Sections

__all__ = [
    "API_VERSION",
    "Advice",
    "BaseDetector",
    "CollectiveWindow",
    "Detector",
    "DetectorConfig",
    "Evidence",
    "Finding",
]

API_VERSION = 1
"""Version of this interface; a detector names the one it was written for."""

Advice = Literal["none", "move", "recover"]
"""What a finding recommends. Policy decides: ``move`` is a planned move of a machine that still
takes part, ``recover`` treats it as dead, ``none`` is for people."""

Records = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class CollectiveWindow:
    """What one machine sent in one batch; the service hands on what is about its own ranks alone.

    Attributes:
        machine: Who sent it.
        epoch: The epoch it was recorded at.
        membership: The membership at that epoch.
        records: Completed operations, dtype ``trainmover.telemetry.records.RECORD``, oldest first.
        received_s: When the detector service got it (its own clock, seconds).
        more: The batch's other sections.
        groups: Ranks of groups, by id, where the batch says so.
        dropped: Records that were lost before they were sent.
    """

    machine: str
    epoch: int
    membership: Membership
    records: Records
    received_s: float
    more: Sections = field(default_factory=Sections)
    groups: Mapping[int, tuple[range, ...]] = field(default_factory=dict)
    dropped: int = 0

    @property
    def open(self) -> Records:
        """Operations that had not ended, dtype ``RECORD``."""
        return self.more.open

    @property
    def steps(self) -> Records:
        """Committed steps, dtype ``STEP``."""
        return self.more.steps

    @property
    def links(self) -> Records:
        """Counters of links, dtype ``LINK``."""
        return self.more.links

    @property
    def pulses(self) -> Records:
        """The latest sign of life of each rank, dtype ``PULSE``."""
        return self.more.pulses

    @property
    def heads(self) -> Records:
        """How far ranks that stand still are in their groups, dtype ``HEAD``."""
        return self.more.heads

    @property
    def activity(self) -> Records:
        """Ended operations, counted by the agent in place of ``records``, dtype ``ACTIVITY``."""
        return self.more.activity


@dataclass(frozen=True, slots=True)
class Evidence:
    """A discrete fact about liveness (exit report, link reset, notice) with its arrival time.

    Attributes:
        fact: The event payload (``WorkerExited``, ``LinkLost``, ``StepBroken``, ...).
        membership: The membership known when it arrived, None before the job formed.
        received_s: When the detector service got it (its own clock, seconds).
    """

    fact: Frozen
    membership: Membership | None
    received_s: float


@dataclass(frozen=True, slots=True)
class Finding:
    """What a detector found, with evidence.

    Attributes:
        kind: Class of the trouble (``straggler``, ``machine_failed``, ...).
        machine: The culprit; None when nobody can be named.
        rank: The culprit rank, where one is to blame.
        confidence: 0 to 1.
        summary: One sentence for people.
        evidence: The numbers; JSON-serialisable.
        closed: True to withdraw an earlier finding of the same kind, machine and link.
        advice: What the detector recommends.
        link: The culprit connection, as (sending rank, receiving rank), where one is to blame.
    """

    kind: str
    machine: str | None
    rank: int | None
    confidence: float
    summary: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    closed: bool = False
    advice: Advice = "none"
    link: tuple[int, int] | None = None


class DetectorConfig(BaseModel):
    """Base of a detector's settings: unknown and misspelt ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@runtime_checkable
class Detector(Protocol):
    """What a plugin implements; registered under the entry point ``trainmover.detectors``.

    A class that has a ``Config`` (a pydantic model) is made with one, else without arguments.
    One that has ``reads`` names the sections of a window that it looks at, as
    ``BaseDetector.reads`` does; one without gets all of them.
    """

    api_version: ClassVar[int]

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        """Take in one batch of telemetry."""
        ...

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        """Take in one fact."""
        ...

    def membership_changed(self, membership: Membership) -> None:
        """A new epoch began: forget what referred to who held which slot."""
        ...

    def tick(self, now_s: float) -> Iterable[Finding]:
        """Time passed; called about five times a second."""
        ...


class BaseDetector:
    """A detector that says nothing: override what you need.

    Attributes:
        reads: Names of the sections of a window that it looks at (``steps``, ``links``, ...).
            Agents may leave out ``records`` where no detector reads them. None: all sections.
    """

    api_version: ClassVar[int] = API_VERSION
    reads: ClassVar[frozenset[str] | None] = None

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        """Take in one batch of telemetry."""
        del window
        return ()

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        """Take in one fact."""
        del evidence
        return ()

    def membership_changed(self, membership: Membership) -> None:
        """A new epoch began."""
        del membership

    def tick(self, now_s: float) -> Iterable[Finding]:
        """Time passed."""
        del now_s
        return ()
