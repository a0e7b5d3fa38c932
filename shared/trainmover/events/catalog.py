"""The one registry of event types: CloudEvents type, entity, fact and model."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from trainmover import subjects
from trainmover.errors import MalformedEventError
from trainmover.events import executor, incident, machine, migration, operator
from trainmover.topology import Frozen

__all__ = ["CATALOG", "EventType", "lookup", "type_of"]


@dataclass(frozen=True, slots=True)
class EventType:
    """One kind of fact.

    Attributes:
        entity: What the fact is about ("migration").
        fact: What happened, in the past tense ("committed").
        model: The payload.
    """

    entity: str
    fact: str
    model: type[Frozen]

    @property
    def type(self) -> str:
        """The CloudEvents type, with the major version of the payload."""
        return f"dev.trainmover.{self.entity}.{self.fact}.v1"

    def subject(self, job: str) -> str:
        """The subject on which a job's facts of this type are published."""
        return subjects.event(job, entity=self.entity, fact=self.fact)


_TYPES: Final = (
    EventType("job", "formed", migration.JobFormed),
    EventType("job", "held", migration.JobHeld),
    EventType("job", "finished", migration.JobFinished),
    EventType("job", "failed", migration.JobFailed),
    EventType("machine", "registered", machine.MachineRegistered),
    EventType("machine", "warming", machine.MachineWarming),
    EventType("machine", "ready", machine.MachineReady),
    EventType("machine", "lost", machine.MachineLost),
    EventType("machine", "quarantined", machine.MachineQuarantined),
    EventType("machine", "released", operator.MachineReleased),
    EventType("automation", "changed", operator.AutomationChanged),
    EventType("worker", "exited", machine.WorkerExited),
    EventType("worker", "finished", executor.WorkerFinished),
    EventType("worker", "layout", executor.JobLayoutKnown),
    EventType("worker", "followed", executor.StateFollowed),
    EventType("link", "lost", machine.LinkLost),
    EventType("plan", "prepared", executor.PlanPrepared),
    EventType("plan", "switched", executor.PlanSwitched),
    EventType("plan", "committed", executor.PlanCommitted),
    EventType("plan", "failed", executor.PlanFailed),
    EventType("step", "broken", executor.StepBroken),
    EventType("step", "progress", executor.StepProgress),
    EventType("step", "resumed", executor.StepResumed),
    EventType("incident", "opened", incident.IncidentOpened),
    EventType("incident", "updated", incident.IncidentUpdated),
    EventType("incident", "closed", incident.IncidentClosed),
    EventType("detector", "quarantined", incident.DetectorQuarantined),
    EventType("migration", "proposed", migration.MigrationProposed),
    EventType("migration", "approved", migration.MigrationApproved),
    EventType("migration", "rejected", migration.MigrationRejected),
    EventType("migration", "preparing", migration.MigrationPreparing),
    EventType("migration", "ready", migration.MigrationReady),
    EventType("migration", "switching", migration.MigrationSwitching),
    EventType("migration", "committed", migration.MigrationCommitted),
    EventType("migration", "aborted", migration.MigrationAborted),
    EventType("migration", "failed", migration.MigrationFailed),
)

CATALOG: Final = MappingProxyType({event.type: event for event in _TYPES})
_BY_MODEL: Final = MappingProxyType({event.model: event for event in _TYPES})


def lookup(type_: str) -> EventType:
    """The catalogue entry of a CloudEvents type.

    Raises:
        MalformedEventError: The type is not in the catalogue.
    """
    try:
        return CATALOG[type_]
    except KeyError:
        raise MalformedEventError(
            f"event type {type_!r} is not in the catalogue; is the publisher newer than this "
            "reader? See docs/events for the types of this version."
        ) from None


def type_of(payload: Frozen) -> EventType:
    """The catalogue entry of a payload."""
    return _BY_MODEL[type(payload)]
