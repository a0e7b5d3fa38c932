"""A whole job, folded from its facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

from trainmover.events import executor, incident, machine, migration, operator
from trainmover.events.envelope import Envelope
from trainmover.job.plan import Forecast
from trainmover.job.topology import Frozen, Membership
from trainmover_console.view.entries import DrainView, IncidentView, MachineView, MigrationView
from trainmover_console.view.standbys import NotReady

__all__ = ["JobView", "trace_id"]


def trace_id(event: Envelope) -> str | None:
    """The W3C trace id an event carries, 32 hex digits, or None."""
    parts = event.trace.get("traceparent", "").split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else None


@dataclass(slots=True)
class JobView:
    """Everything the facts of one job add up to.

    Attributes:
        state: ``forming``, ``running``, ``held``, ``finished`` or ``failed``.
        last_event: The latest fact taken in.
        automation: ``automatic``, ``approval`` or ``paused``, as an operator last said.
        automation_words: Who said so, and why; empty where nobody did.
        drain: The latest drain.
        declared: What the policy in force says of it.
        told_costs: What ranks said last of what they pay, those of machines that left included.
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
    declared: operator.AutomationMode = "automatic"
    drain: DrainView | None = None
    told_costs: dict[tuple[str, int], executor.WorkerCosts] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether it has ended, well or badly."""
        return self.state in {"finished", "failed"}

    @property
    def standbys(self) -> list[MachineView]:
        """Standbys, by name."""
        return sorted(
            (view for view in self.machines.values() if view.role == "standby"),
            key=lambda view: view.name,
        )

    @property
    def costs(self) -> list[executor.WorkerCosts]:
        """What ranks and standbys of now said last of what they pay, by machine and rank."""
        here = {name for name, one in self.machines.items() if one.role in {"active", "standby"}}
        return [one for (name, _), one in sorted(self.told_costs.items()) if name in here]

    def apply(self, event: Envelope) -> None:
        """Take in one fact."""
        self.last_event = event
        payload = event.payload
        self._apply_job(payload)
        self._apply_operator(payload)
        self._apply_machine(event)
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
            "costs": [one.model_dump(mode="json") for one in self.costs],
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
                self._hold_slots(membership)
                for name in standbys:
                    self._machine(name).role = "standby"
            case migration.JobHeld(reason=reason):
                self.state, self.reason = "held", reason
            case migration.JobFinished(step=step):
                self.state, self.reason = "finished", ""
                self.step = max(self.step, step)
            case migration.JobFailed(reason=reason):
                self.state, self.reason = "failed", reason
            case _:
                pass

    def _apply_operator(self, payload: Frozen) -> None:
        match payload:
            case operator.PolicyChanged(policy=policy, source=source):
                if policy.automation != self.declared:
                    self.declared = self.automation = policy.automation
                    self.automation_words = f"declared in {source}"
            case operator.DrainStarted():
                self.drain = DrainView(payload.drain, payload.machines, payload.requested_by)
            case operator.DrainChanged(paused=paused) if self.drain is not None:
                self.drain.paused = paused
            case operator.DrainEnded(outcome=outcome) if self.drain is not None:
                self.drain.outcome = outcome
            case operator.AutomationChanged(mode=mode, reason=reason, requested_by=who):
                self.automation, self.automation_words = mode, f"by {who}: {reason}"
            case _:
                pass

    def _apply_machine(self, event: Envelope) -> None:
        payload = event.payload
        match payload:
            case machine.MachineRegistered(machine=offered, pid=pid, host=host, warm_limit=most):
                view = self._machine(offered.name)
                view.warm_limit = most
                again = self.membership is not None and view.role != "quarantined"
                view.role = "standby" if again else view.role
                view.slot, view.ready_slots, view.failures = None, set(), {}
                view.step, view.step_s = None, None  # those of an earlier life
                view.note = view.data_differs = ""
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
                    view.failures.pop(slot, None)
            case machine.MachineWarmingFailed(machine=name, slot=slot) as failed:
                view = self._machine(name)
                if view.role != "active":
                    view.ready_slots.discard(slot)
                    view.failures[slot] = NotReady.of(failed, said=event.time)
            case machine.MachineDataDiffers(machine=name, rank=rank, where=where):
                view, at = self._machine(name), PurePath(where).name
                view.note = view.data_differs = f"other data than rank {rank} at {at}"
            case _:
                self._apply_kept_out(payload)

    def _apply_kept_out(self, payload: Frozen) -> None:
        """Machines that are given no slot any more, or may be given one again."""
        match payload:
            case machine.MachineLost(machine=name, reason=reason):
                view = self._machine(name)
                view.role, view.slot, view.note = "lost", None, reason
                view.ready_slots, view.failures = set(), {}
            case machine.MachineReleased(machine=name, reason=reason):
                view = self._machine(name)
                view.role, view.slot, view.note = "released", None, reason
                view.ready_slots, view.failures = set(), {}
            case machine.MachineQuarantined(machine=name, reason=reason):
                view = self._machine(name)
                view.role, view.slot, view.note = "quarantined", None, reason
                view.ready_slots, view.failures = set(), {}
            case operator.MachineUnquarantined(machine=name, ready_slots=slots):
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
            case executor.WorkerCosts(machine=name, rank=rank) as costs:
                self.told_costs[name, rank] = costs
            case executor.StepBroken(committed_step=step):
                self.step = max(self.step, step)
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
        view.forecast = _forecast(payload) or view.forecast
        if isinstance(payload, migration.MigrationCommitted):
            view.step = payload.step
            self.step = max(self.step, payload.step)
            view.phases_s = dict(payload.phases_s)
            self._hold_slots(payload.membership)

    def _hold_slots(self, membership: Membership) -> None:
        self.membership = membership
        slot_by_name = {member.machine: slot for slot, member in enumerate(membership.members)}
        for view in self.machines.values():
            if view.role == "active" and view.name not in slot_by_name:
                view.role, view.slot = "released", None
        for name, slot in slot_by_name.items():
            view = self._machine(name)
            view.role, view.slot = "active", slot
            view.ready_slots, view.failures = set(), {}


def _forecast(payload: Frozen) -> Forecast | None:
    """The latest is that of the plan."""
    match payload:
        case migration.MigrationProposed(forecast=forecast):
            return forecast
        case migration.MigrationApproved(plan=plan):
            return plan.forecast
        case _:
            return None


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
