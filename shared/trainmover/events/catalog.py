"""The one registry of event types: CloudEvents type, entity, fact and model."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from trainmover import subjects
from trainmover.errors import MalformedEventError
from trainmover.events import executor, incident, machine, migration, operator
from trainmover.job.topology import Frozen, Machine

__all__ = ["CATALOG", "EventType", "Speaker", "lookup", "type_of"]

Speaker = Literal["planner", "detector", "machine", "pooled", "operator", "pool"]
"""Who may say a fact; the bus's permissions hold each to its own. ``operator`` stands for people
and for tools that speak for them, ``pooled`` for a machine of a pool and ``pool`` for who leads
it."""


@dataclass(frozen=True, slots=True)
class EventType:
    """One kind of fact.

    Attributes:
        entity: What the fact is about ("migration").
        fact: What happened, in the past tense ("committed").
        model: The payload.
        by: Who says it.
        kept_s: For how many seconds the bus keeps it; None for good. Facts that are said over and
            over would push out those that tell what the job is, and whoever begins with the first
            fact would read them all.
    """

    entity: str
    fact: str
    model: type[Frozen]
    by: Speaker
    kept_s: int | None = None

    @property
    def name(self) -> str:
        """``migration.committed``."""
        return f"{self.entity}.{self.fact}"

    @property
    def type(self) -> str:
        """The CloudEvents type, with the major version of the payload."""
        return f"dev.trainmover.{self.name}.v1"

    @property
    def schema(self) -> str:
        """The CloudEvents ``dataschema``: the ``$id`` of the payload's JSON schema."""
        return f"urn:trainmover:event:{self.name}:v1"

    @property
    def by_machines(self) -> bool:
        """Whether machines say it: the subject then ends in the name of the one that does."""
        return self.by in ("machine", "pooled")

    @property
    def template(self) -> str:
        """The subject without any id, for documents and names of spans."""
        return f"tm.v1.{{job}}.{self.name}" + (".{machine}" if self.by_machines else "")

    def subject(self, job: str, *, machine: str | None = None) -> str:
        """The subject on which a job's facts of this type are published.

        Args:
            job: Job name.
            machine: The machine that says it; needed for facts of machines, and only for those.
        """
        said_by = (machine or "") if self.by_machines else None
        return subjects.event(job, entity=self.entity, fact=self.fact, machine=said_by)

    def pattern(self, job: str) -> str:
        """Pattern over the subjects of this type."""
        every = subjects.events(job, entity=self.entity, fact=self.fact)
        return f"{every}.*" if self.by_machines else every

    def machine_of(self, payload: Frozen) -> str | None:
        """The machine that says ``payload``, None when no machine does."""
        if not self.by_machines:
            return None
        named: object = getattr(payload, "machine", "")
        return named.name if isinstance(named, Machine) else str(named)


_TYPES: Final = (
    EventType("job", "formed", migration.JobFormed, "planner"),
    EventType("job", "held", migration.JobHeld, "planner"),
    EventType("job", "finished", migration.JobFinished, "planner"),
    EventType("job", "failed", migration.JobFailed, "planner"),
    # Of the entity that agents read; said again where machines do not follow.
    EventType("job", "analysis_placed", incident.AnalysisPlaced, "detector", kept_s=600),
    EventType("machine", "registered", machine.MachineRegistered, "machine"),
    EventType("machine", "lent", machine.MachineLent, "pooled"),
    EventType("machine", "warming", machine.MachineWarming, "machine"),
    EventType("machine", "ready", machine.MachineReady, "machine"),
    EventType("machine", "warming_failed", machine.MachineWarmingFailed, "machine", kept_s=3600),
    EventType("machine", "data_differs", machine.MachineDataDiffers, "machine", kept_s=3600),
    EventType("machine", "lost", machine.MachineLost, "planner"),
    EventType("machine", "quarantined", machine.MachineQuarantined, "planner"),
    EventType("machine", "released", machine.MachineReleased, "planner"),
    EventType("machine", "noticed", machine.MachineNoticed, "operator"),
    EventType("machine", "unquarantined", operator.MachineUnquarantined, "planner"),
    EventType("automation", "changed", operator.AutomationChanged, "planner"),
    EventType("drain", "started", operator.DrainStarted, "planner"),
    EventType("drain", "changed", operator.DrainChanged, "planner"),
    EventType("drain", "ended", operator.DrainEnded, "planner"),
    EventType("policy", "changed", operator.PolicyChanged, "planner"),
    EventType("policy", "refused", operator.PolicyRefused, "planner"),
    EventType("policy", "compared", operator.PolicyCompared, "planner"),
    EventType("service", "restarted", operator.ServiceRestarted, "operator"),
    EventType("worker", "exited", machine.WorkerExited, "machine"),
    EventType("worker", "finished", executor.WorkerFinished, "machine"),
    EventType("worker", "saved", executor.CheckpointSaved, "machine"),
    EventType("worker", "layout", executor.JobLayoutKnown, "machine"),
    EventType("worker", "costs", executor.WorkerCosts, "machine"),
    EventType("worker", "followed", executor.StateFollowed, "machine"),
    EventType("link", "lost", machine.LinkLost, "machine"),
    EventType("plan", "prepared", executor.PlanPrepared, "machine"),
    EventType("plan", "switched", executor.PlanSwitched, "machine"),
    EventType("plan", "committed", executor.PlanCommitted, "machine"),
    EventType("plan", "failed", executor.PlanFailed, "machine"),
    EventType("step", "broken", executor.StepBroken, "machine"),
    EventType("step", "progress", executor.StepProgress, "machine", kept_s=5),
    EventType("step", "resumed", executor.StepResumed, "machine"),
    EventType("incident", "opened", incident.IncidentOpened, "detector"),
    EventType("incident", "updated", incident.IncidentUpdated, "detector", kept_s=600),
    EventType("incident", "closed", incident.IncidentClosed, "detector"),
    EventType("detector", "quarantined", incident.DetectorQuarantined, "detector"),
    EventType("migration", "proposed", migration.MigrationProposed, "planner"),
    EventType("migration", "approved", migration.MigrationApproved, "planner"),
    EventType("migration", "rejected", migration.MigrationRejected, "planner"),
    EventType("migration", "preparing", migration.MigrationPreparing, "planner"),
    EventType("migration", "ready", migration.MigrationReady, "planner"),
    EventType("migration", "switching", migration.MigrationSwitching, "planner"),
    EventType("migration", "committed", migration.MigrationCommitted, "planner"),
    EventType("migration", "aborted", migration.MigrationAborted, "planner"),
    EventType("migration", "failed", migration.MigrationFailed, "planner"),
    EventType("pool", "seen", machine.PoolMachineSeen, "pooled", kept_s=10),
    EventType("pool", "assigned", machine.PoolMachineAssigned, "pool"),
    EventType("pool", "recalled", machine.PoolMachineRecalled, "pool"),
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
            "reader? See docs/events for the types of this version.",
            kind="foreign",
        ) from None


def type_of(payload: Frozen) -> EventType:
    """The catalogue entry of a payload."""
    return _BY_MODEL[type(payload)]
