"""Facts of the detector: findings with evidence. They move nobody; the planner's policy does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trainmover.job.numbers import Epoch
from trainmover.job.topology import Frozen

__all__ = [
    "AnalysisPlaced",
    "DetectorQuarantined",
    "IncidentClosed",
    "IncidentOpened",
    "IncidentUpdated",
]


class IncidentOpened(Frozen):
    """A detector finds that something is wrong.

    Attributes:
        id: The incident's id.
        kind: ``machine_failed``, ``straggler``, or a plugin's own class.
        machine: The culprit, or None when nobody can be named ("all slow").
        rank: The culprit's rank where one rank is to blame.
        slot: The culprit's slot at ``epoch``.
        epoch: The epoch at which the evidence was seen.
        confidence: 0 to 1.
        summary: One sentence for people.
        evidence: The numbers behind the finding, the window they were seen in.
        detector: Name of the detector.
        detector_version: Its version.
        mode: ``active`` incidents may lead to action, ``shadow`` ones never.
        advice: What the detector recommends: ``none``, ``move`` (a planned move) or ``recover``
            (treat the machine as dead). Policy decides.
        link: The culprit connection, as (sending rank, receiving rank), where one is to blame.
    """

    id: str
    kind: str
    machine: str | None
    rank: int | None = None
    slot: int | None = None
    epoch: Epoch
    confidence: float = Field(ge=0, le=1)
    summary: str
    evidence: dict[str, Any] = Field(default_factory=dict)
    detector: str
    detector_version: str = "1"
    mode: str = "active"
    advice: Literal["none", "move", "recover"] = "none"
    link: tuple[int, int] | None = None


class IncidentUpdated(Frozen):
    """More evidence for an open incident."""

    id: str
    confidence: float = Field(ge=0, le=1)
    summary: str
    evidence: dict[str, Any] = Field(default_factory=dict)


class IncidentClosed(Frozen):
    """The incident is over: its cause went away or was moved away."""

    id: str
    reason: str


class DetectorQuarantined(Frozen):
    """A detector raised, ran over its time budget, waited or flooded, and is no longer asked."""

    detector: str
    reason: str


class AnalysisPlaced(Frozen):
    """The detector chose which stages of the analysis of telemetry agents run in its place.

    An agent follows the latest one; one that heard none, or does not know a stage, runs none.

    Attributes:
        at_agents: Names of the stages that agents run, in their order; none: the detector runs all.
        machines: Machines that were heard.
        operations_s: Operations of the job's ranks in a second, by the median machine.
        detector_cpu: Processor seconds of the detector in a second, as expected of this choice.
        detector_cpu_central: The same where agents run no stage.
    """

    at_agents: tuple[Annotated[str, Field(max_length=64)], ...] = Field(max_length=16)
    machines: int = Field(ge=0)
    operations_s: float = Field(ge=0)
    detector_cpu: float = Field(ge=0)
    detector_cpu_central: float = Field(ge=0)
