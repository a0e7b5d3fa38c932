"""What happened when, as bars: from facts to spans of a trace and to a trace file for Perfetto.

Pure. A fact says when it was stated and how long what it tells of took, so a bar ends at the fact.
Bars of different machines are as comparable as the machines' clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from trainmover.events import executor, incident, machine, migration
from trainmover.events.catalog import type_of
from trainmover.events.envelope import Envelope
from trainmover.job.topology import Frozen

__all__ = ["Bar", "Phases", "bars_of", "timeline"]

_PLANNER: Final = "planner"
_DETECTOR: Final = "detector"
_MIGRATIONS: Final = "migrations"
_FINAL: Final = ("committed", "aborted", "failed", "rejected")
_BEFORE: Final = timedelta(seconds=60)
"""So long before a migration's proposal a fact may be part of its cause."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that took some time.

    Attributes:
        who: ``planner``, ``detector`` or the name of a machine.
        lane: What goes on beside other things there ("rank 2").
        name: What it was; never with an id in it.
        end: When it was over.
        seconds: How long it took; 0 for a moment.
        details: JSON-ready values.
    """

    who: str
    lane: str
    name: str
    end: datetime
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def start(self) -> datetime:
        """When it began."""
        return self.end - timedelta(seconds=self.seconds)


class Phases:
    """Turns a migration's announcements into the bars between them.

    Feed it facts in order; a phase is over when the next one is announced.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[tuple[str, datetime]]] = {}

    def take(self, event: Envelope) -> list[Bar]:
        """The bars that are complete with this fact."""
        kind = type_of(event.payload)
        id_ = getattr(event.payload, "migration", None)
        if kind.entity != "migration" or id_ is None:
            return []
        seen = self._open.setdefault(id_, [])
        bars = []
        details = {"migration": id_, "job": event.job}
        if seen:
            name, began = seen[-1]
            bars.append(_between(name, began, event.time, details))
        seen.append((kind.fact, event.time))
        if kind.fact in _FINAL:
            del self._open[id_]
            outcome = {**details, "outcome": kind.fact, **_told(event.payload, "reason", "step")}
            bars.append(_between("migration", seen[0][1], event.time, outcome))
        return bars


def _between(name: str, began: datetime, ended: datetime, details: Mapping[str, Any]) -> Bar:
    lane = _MIGRATIONS if name == "migration" else "phases"
    seconds = max(0.0, (ended - began).total_seconds())
    return Bar(_PLANNER, lane, name, ended, seconds, details)


def bars_of(event: Envelope) -> list[Bar]:
    """What one fact tells of, the planner's announcements excepted: those are ``Phases``."""
    kind = type(event.payload)
    if (name := _MOMENTS.get(kind)) is not None:
        return [_of_rank(event, name)]
    draw = _DRAWN.get(kind)
    return [] if draw is None else draw(event)


def _of_rank(event: Envelope, name: str, *, seconds: float = 0.0, after_s: float = 0.0) -> Bar:
    """A bar on the lane of the rank that reports; ``after_s`` is what followed it."""
    payload: Any = event.payload
    details = payload.model_dump(mode="json", exclude={"machine", "phases_s"})
    end = event.time - timedelta(seconds=after_s)
    return Bar(payload.machine, f"rank {payload.rank}", name, end, max(0.0, seconds), details)


def _prepared(event: Envelope) -> list[Bar]:
    payload: Any = event.payload
    return [_of_rank(event, "phase 1", seconds=payload.prepare_s)]


def _switched(event: Envelope) -> list[Bar]:
    """The parts of phase 2 one after the other, up to the report."""
    payload: Any = event.payload
    rest = sum(payload.phases_s.values())
    bars = []
    for name, seconds in payload.phases_s.items():
        rest -= seconds
        bars.append(_of_rank(event, f"phase 2: {name}", seconds=seconds, after_s=rest))
    return [*bars, _of_rank(event, "switched")]


def _resumed(event: Envelope) -> list[Bar]:
    payload: Any = event.payload
    return [
        _of_rank(event, "pause", seconds=payload.pause_s, after_s=payload.step_s),
        _of_rank(event, "first step", seconds=payload.step_s),
    ]


def _warmed(event: Envelope) -> list[Bar]:
    payload: Any = event.payload
    details = _told(payload, "slot", "shadow_iterations", "generation")
    seconds = max(0.0, payload.warm_s)
    return [Bar(payload.machine, "standby", "shadow iterations", event.time, seconds, details)]


def _given_up(event: Envelope) -> list[Bar]:
    name = type_of(event.payload).name.replace(".", " ")
    return [Bar(_PLANNER, _MIGRATIONS, name, event.time, 0.0, event.payload.model_dump())]


def _incident(event: Envelope) -> list[Bar]:
    details = _told(event.payload, "id", "kind", "machine", "summary", "confidence", "reason")
    name = f"incident {type_of(event.payload).fact}"
    return [Bar(_DETECTOR, "incidents", name, event.time, 0.0, details)]


_MOMENTS: Final[Mapping[type[Frozen], str]] = {
    executor.PlanCommitted: "committed",
    executor.PlanFailed: "plan failed",
    executor.StepBroken: "step broken",
    machine.LinkLost: "link lost",
    machine.WorkerExited: "worker exited",
}

_DRAWN: Final[Mapping[type[Frozen], Callable[[Envelope], list[Bar]]]] = {
    executor.PlanPrepared: _prepared,
    executor.PlanSwitched: _switched,
    executor.StepResumed: _resumed,
    machine.MachineReady: _warmed,
    machine.MachineLost: _given_up,
    machine.MachineQuarantined: _given_up,
    incident.IncidentOpened: _incident,
    incident.IncidentUpdated: _incident,
    incident.IncidentClosed: _incident,
}


def timeline(events: Iterable[Envelope], migration_id: str) -> list[Bar]:
    """Everything that belongs to one migration, in order of its beginning.

    Args:
        events: Facts of the job, in stream order.
        migration_id: Which migration.
    """
    facts = list(events)
    mine = [event for event in facts if getattr(event.payload, "migration", "") == migration_id]
    causes = _causes(facts, mine)
    phases = Phases()
    bars = [bar for event in mine for bar in (*phases.take(event), *bars_of(event))]
    bars += [bar for event in causes for bar in bars_of(event)]
    return sorted(bars, key=lambda bar: (bar.start, bar.end))


def _causes(facts: Sequence[Envelope], mine: Sequence[Envelope]) -> list[Envelope]:
    """Facts without the migration's id that lead to it or prepare it."""
    if not mine:
        return []
    first, last = mine[0].time, mine[-1].time
    proposals = [e.payload for e in mine if isinstance(e.payload, migration.MigrationProposed)]
    plans = [e.payload.plan for e in mine if isinstance(e.payload, migration.MigrationApproved)]
    incidents = {each.incident for each in proposals} - {None}
    epochs = {plan.from_epoch for plan in plans}
    moves = {(move.joiner, move.slot) for plan in plans for move in plan.moves}
    leavers = {each.leaver for each in proposals} | {m.leaver for p in plans for m in p.moves}

    def belongs(event: Envelope) -> bool:
        payload = event.payload
        recent = first - _BEFORE <= event.time <= last
        match payload:
            case incident.IncidentOpened() | incident.IncidentUpdated() | incident.IncidentClosed():
                return payload.id in incidents
            case executor.StepBroken() | machine.LinkLost() | machine.WorkerExited():
                return recent and payload.epoch in epochs
            case machine.MachineLost() | machine.MachineQuarantined():
                return recent and payload.machine in leavers
            case machine.MachineReady():
                return (payload.machine, payload.slot) in moves and event.time <= last
            case _:
                return False

    return [event for event in facts if belongs(event)]


def _told(payload: Frozen, *names: str) -> dict[str, Any]:
    """Some fields, those that there are."""
    return payload.model_dump(mode="json", include=set(names))
