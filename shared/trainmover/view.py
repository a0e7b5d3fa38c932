"""A job as its facts tell it: machines, membership, migrations and incidents, folded from events.

Pure: feed it envelopes in stream order. The CLI's tables, the demo and the report are views of it,
and it works with the planner dead, since facts outlive who stated them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from trainmover.events import executor, incident, machine, migration, operator
from trainmover.events.envelope import Envelope
from trainmover.plan import Move
from trainmover.topology import Frozen, Membership

__all__ = ["IncidentView", "JobView", "MachineView", "MigrationView", "trace_id"]

_OPEN_STATES: Final = ("proposed", "approved", "preparing", "ready", "switching")


def trace_id(event: Envelope) -> str | None:
    """The W3C trace id an event carries, 32 hex digits, or None."""
    parts = event.trace.get("traceparent", "").split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else None


@dataclass(slots=True)
class MachineView:
    """What is known of a machine.

    Attributes:
        role: ``registered``, ``active``, ``standby``, ``released``, ``lost``, ``quarantined``.
        slot: The slot it fills, for an active machine.
        ready_slots: Slots a standby could take at once.
        listens: For each slot a standby may take, where its processes for it listen.
        warm_limit: Most slots that it keeps warm; None: all.
        step: Completed steps of its slowest rank, as last reported.
        step_s: Median step time in seconds, as last reported.
    """

    name: str
    role: str = "registered"
    slot: int | None = None
    generation: int = 0
    host: str = ""
    pid: int = 0
    ready_slots: set[int] = field(default_factory=set)
    listens: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    warm_limit: int | None = None
    step: int | None = None
    step_s: float | None = None
    loss: float | None = None
    note: str = ""

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "machine": self.name,
            "role": self.role,
            "slot": self.slot,
            "generation": self.generation,
            "host": self.host,
            "pid": self.pid,
            "ready_slots": sorted(self.ready_slots),
            "warm_limit": self.warm_limit,
            "step": self.step,
            "step_s": self.step_s,
            "note": self.note,
        }


@dataclass(slots=True)
class MigrationView:
    """One migration from proposal to its end.

    Attributes:
        slot: The first slot that changes hands; ``leaver`` and ``joiner`` are those of this slot.
        told: All slots that change hands, as the planner said; see ``moves``.
        state: Latest phase; ``committed``, ``aborted``, ``failed`` and ``rejected`` are final.
        times: When each phase was announced.
        pauses_s: Pause in seconds per rank, from ``step.resumed``.
        phases_s: Seconds per phase, as the planner recorded them at the commit.
        requested_by: Who wanted it: ``policy`` or an operator.
        decided_by: Who approved it, or ended it before the switch.
    """

    id: str
    kind: str
    slot: int
    leaver: str
    cause: str
    joiner: str | None = None
    told: tuple[Move, ...] = ()
    state: str = "proposed"
    incident: str | None = None
    requested_by: str = "policy"
    decided_by: str = ""
    epoch: int | None = None
    step: int | None = None
    reason: str | None = None
    trace_id: str | None = None
    times: dict[str, datetime] = field(default_factory=dict)
    pauses_s: dict[int, float] = field(default_factory=dict)
    steps_redone: dict[int, int] = field(default_factory=dict)
    phases_s: dict[str, float] = field(default_factory=dict)

    @property
    def moves(self) -> tuple[Move, ...]:
        """Who replaces whom, by slot; joiners are empty until a plan names them."""
        if self.told or not self.leaver:
            return self.told
        return (Move(slot=self.slot, leaver=self.leaver, joiner=self.joiner or ""),)

    @property
    def words(self) -> str:
        """``worker-1 -> worker-4 in slot 1, worker-2 -> worker-5 in slot 2``."""
        return ", ".join(map(str, self.moves)) or "links formed again"

    @property
    def open(self) -> bool:
        """Whether it is still under way."""
        return self.state in _OPEN_STATES

    @property
    def waiting(self) -> bool:
        """Whether nobody has approved it yet."""
        return self.state == "proposed"

    @property
    def pause_s(self) -> float | None:
        """Longest pause of any rank in seconds; None until a rank has resumed."""
        return max(self.pauses_s.values(), default=None)

    def spans_s(self) -> dict[str, float]:
        """Seconds between the announcements of successive phases, keyed by the earlier phase."""
        return {
            name: (later - at).total_seconds()
            for (name, at), (_, later) in pairwise(self.times.items())
        }

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "id": self.id,
            "kind": self.kind,
            "cause": self.cause,
            "state": self.state,
            "requested_by": self.requested_by,
            "decided_by": self.decided_by,
            "slot": self.slot,
            "leaver": self.leaver,
            "joiner": self.joiner,
            "moves": [move.model_dump() for move in self.moves],
            "epoch": self.epoch,
            "step": self.step,
            "pause_s": self.pause_s,
            "steps_redone": max(self.steps_redone.values(), default=0),
            "phases_s": {**self.spans_s(), **self.phases_s},
            "times": {name: at.isoformat() for name, at in self.times.items()},
            "incident": self.incident,
            "trace_id": self.trace_id,
            "reason": self.reason,
        }


@dataclass(slots=True)
class IncidentView:
    """One claim of a detector."""

    id: str
    kind: str
    machine: str | None
    slot: int | None
    confidence: float
    summary: str
    opened: datetime
    closed: datetime | None = None
    evidence: dict[str, Any] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "id": self.id,
            "kind": self.kind,
            "machine": self.machine,
            "slot": self.slot,
            "confidence": self.confidence,
            "summary": self.summary,
            "opened": self.opened.isoformat(),
            "closed": None if self.closed is None else self.closed.isoformat(),
            "evidence": self.evidence,
        }


@dataclass(slots=True)
class JobView:
    """Everything the facts of one job add up to.

    Attributes:
        state: ``forming``, ``running``, ``held``, ``finished`` or ``failed``.
        last_event: The latest fact taken in.
        automation: ``automatic``, ``approval`` or ``paused``, as an operator last said.
        automation_words: Who said so, and why; empty where nobody did.
    """

    job: str
    state: str = "forming"
    membership: Membership | None = None
    machines: dict[str, MachineView] = field(default_factory=dict)
    migrations: dict[str, MigrationView] = field(default_factory=dict)
    incidents: dict[str, IncidentView] = field(default_factory=dict)
    step: int = 0
    reason: str = ""
    last_event: Envelope | None = None
    automation: operator.AutomationMode = "automatic"
    automation_words: str = ""

    @property
    def standbys(self) -> list[MachineView]:
        """Standbys, by name."""
        return sorted(
            (view for view in self.machines.values() if view.role == "standby"),
            key=lambda view: view.name,
        )

    def apply(self, event: Envelope) -> None:
        """Take in one fact."""
        self.last_event = event
        payload = event.payload
        self._apply_job(payload)
        self._apply_machine(payload)
        self._apply_progress(payload)
        self._apply_incident(event)
        self._apply_migration(event)

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "job": self.job,
            "state": self.state,
            "epoch": None if self.membership is None else self.membership.epoch,
            "step": self.step,
            "reason": self.reason,
            "automation": self.automation,
            "automation_words": self.automation_words,
            "machines": [view.as_data() for _, view in sorted(self.machines.items())],
            "migrations": [view.as_data() for view in self.migrations.values()],
            "incidents": [view.as_data() for view in self.incidents.values()],
        }

    def _machine(self, name: str) -> MachineView:
        return self.machines.setdefault(name, MachineView(name))

    def _apply_job(self, payload: Frozen) -> None:
        match payload:
            case migration.JobFormed(membership=membership, standbys=standbys):
                self.state = "running"
                self._seat(membership)
                for name in standbys:
                    self._machine(name).role = "standby"
            case migration.JobHeld(reason=reason):
                self.state, self.reason = "held", reason
            case migration.JobFinished(step=step):
                self.state, self.reason = "finished", ""
                self.step = max(self.step, step)
            case migration.JobFailed(reason=reason):
                self.state, self.reason = "failed", reason
            case operator.AutomationChanged(mode=mode, reason=reason, requested_by=who):
                self.automation, self.automation_words = mode, f"by {who}: {reason}"
            case _:
                pass

    def _apply_machine(self, payload: Frozen) -> None:
        match payload:
            case machine.MachineRegistered(machine=offered, pid=pid, host=host, warm_limit=most):
                view = self._machine(offered.name)
                view.warm_limit = most
                again = self.membership is not None and view.role != "quarantined"
                view.role = "standby" if again else view.role
                view.slot, view.ready_slots = None, set()
                view.step, view.step_s, view.note = None, None, ""  # those of an earlier life
                view.generation, view.pid, view.host = offered.generation, pid, host
            case machine.MachineWarming(machine=name, endpoints=endpoints):
                view = self._machine(name)  # a slot with another endpoint is not ready again yet
                view.ready_slots &= {s for s, at in endpoints.items() if view.listens.get(s) == at}
                view.listens = endpoints
            case machine.MachineReady(machine=name, slot=slot):
                view = self._machine(name)
                if view.role != "active":
                    view.role = "standby"
                    view.ready_slots.add(slot)
            case machine.MachineLost(machine=name, reason=reason):
                view = self._machine(name)
                view.role, view.slot, view.note = "lost", None, reason
                view.ready_slots = set()
            case machine.MachineQuarantined(machine=name, reason=reason):
                view = self._machine(name)
                view.role, view.slot, view.note = "quarantined", None, reason
                view.ready_slots = set()
            case operator.MachineReleased(machine=name, ready_slots=slots):
                view = self._machine(name)
                view.role, view.note = "standby" if slots else "released", ""
                view.ready_slots = set(slots)
            case _:
                pass

    def _apply_progress(self, payload: Frozen) -> None:
        match payload:
            case executor.StepProgress(machine=name, step=step, step_s=step_s, loss=loss):
                view = self._machine(name)
                view.step, view.step_s = step, step_s
                view.loss = view.loss if loss is None else loss
                self.step = max(self.step, step)
                if self.state == "held":
                    self.state, self.reason = "running", ""
            case executor.StepResumed(migration=id, rank=rank) as resumed:
                if (move := self.migrations.get(id)) is not None:
                    move.pauses_s[rank] = resumed.pause_s
                    move.steps_redone[rank] = resumed.steps_redone
                if self.state == "held":
                    self.state, self.reason = "running", ""
            case _:
                pass

    def _apply_incident(self, event: Envelope) -> None:
        match event.payload:
            case incident.IncidentOpened() as opened:
                self.incidents[opened.id] = IncidentView(
                    id=opened.id,
                    kind=opened.kind,
                    machine=opened.machine,
                    slot=opened.slot,
                    confidence=opened.confidence,
                    summary=opened.summary,
                    opened=event.time,
                    evidence=dict(opened.evidence),
                )
            case incident.IncidentUpdated() as update if update.id in self.incidents:
                view = self.incidents[update.id]
                view.confidence, view.summary = update.confidence, update.summary
                view.evidence = dict(update.evidence)
            case incident.IncidentClosed() as closed if closed.id in self.incidents:
                self.incidents[closed.id].closed = event.time
            case _:
                pass

    def _apply_migration(self, event: Envelope) -> None:
        payload = event.payload
        state = _MIGRATION_STATES.get(type(payload))
        if state is None:
            return
        # Every migration fact names these; the map above is the proof.
        fact: Any = payload
        view = self.migrations.setdefault(
            fact.migration,
            MigrationView(
                id=fact.migration,
                kind=fact.kind,
                slot=fact.slot,
                leaver=fact.leaver,
                cause=fact.cause,
            ),
        )
        view.state = state
        view.times.setdefault(state, event.time)
        view.trace_id = view.trace_id or trace_id(event)
        view.joiner = getattr(fact, "joiner", view.joiner)
        if not view.told or hasattr(fact, "joiner"):  # an end without a plan names no joiners
            view.told = fact.moves or view.told
        view.incident = getattr(fact, "incident", None) or view.incident
        view.reason = getattr(fact, "reason", view.reason)
        view.requested_by = getattr(fact, "requested_by", view.requested_by)
        view.decided_by = next(
            (getattr(fact, name) for name in _DECIDERS if hasattr(fact, name)), view.decided_by
        )
        view.epoch = getattr(fact, "epoch", view.epoch)
        if isinstance(payload, migration.MigrationCommitted):
            view.step = payload.step
            view.phases_s = dict(payload.phases_s)
            self._seat(payload.membership)

    def _seat(self, membership: Membership) -> None:
        self.membership = membership
        seated = {member.machine: slot for slot, member in enumerate(membership.members)}
        for view in self.machines.values():
            if view.role == "active" and view.name not in seated:
                view.role, view.slot = "released", None
        for name, slot in seated.items():
            view = self._machine(name)
            view.role, view.slot, view.ready_slots = "active", slot, set()


_DECIDERS: Final = ("approved_by", "rejected_by", "aborted_by")

_MIGRATION_STATES: Final[dict[type[Frozen], str]] = {
    migration.MigrationProposed: "proposed",
    migration.MigrationApproved: "approved",
    migration.MigrationRejected: "rejected",
    migration.MigrationPreparing: "preparing",
    migration.MigrationReady: "ready",
    migration.MigrationSwitching: "switching",
    migration.MigrationCommitted: "committed",
    migration.MigrationAborted: "aborted",
    migration.MigrationFailed: "failed",
}
