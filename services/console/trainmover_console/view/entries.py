"""What facts add up to for one machine, one migration, one incident."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from trainmover.job.plan import Forecast, Move
from trainmover_console.view.standbys import NotReady, grouped

__all__ = ["IncidentView", "MachineView", "MigrationView"]

_OPEN_STATES: Final = ("proposed", "approved", "preparing", "ready", "switching")


@dataclass(slots=True)
class MachineView:
    """What is known of a machine.

    Attributes:
        role: ``registered``, ``active``, ``standby``, ``released``, ``lost``, ``quarantined``.
        slot: The slot it fills, for an active machine.
        ready_slots: Slots a standby could take at once.
        failures: Why it is not ready for other slots, as far as its processes failed.
        listens: For each slot a standby may take, where its processes for it listen.
        warm_limit: Most slots that it keeps warm; None: all.
        step: Completed steps of its slowest rank, as last reported.
        step_s: Median step time in seconds, as last reported.
        data_differs: What a standby said of the data that it would be given; empty: nothing.
    """

    name: str
    role: str = "registered"
    slot: int | None = None
    generation: int = 0
    host: str = ""
    pid: int = 0
    ready_slots: set[int] = field(default_factory=set)
    failures: dict[int, NotReady] = field(default_factory=dict)
    listens: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    warm_limit: int | None = None
    step: int | None = None
    step_s: float | None = None
    loss: float | None = None
    note: str = ""
    data_differs: str = ""

    @property
    def not_ready(self) -> list[NotReady]:
        """Why a standby is not ready, each reason once."""
        return grouped(self.failures.values()) if self.role == "standby" else []

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
            "not_ready": [one.as_data() for one in self.not_ready],
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
        forecast: What it was expected to cost and to save; None where nobody foresaw that.
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
    forecast: Forecast | None = None

    @property
    def moves(self) -> tuple[Move, ...]:
        """Who replaces whom, by slot; joiners are empty until a plan names them."""
        if self.told or not self.leaver:
            return self.told
        return (Move(slot=self.slot, leaver=self.leaver, joiner=self.joiner or ""),)

    @property
    def words(self) -> str:
        """``node-1 -> node-4 in slot 1, node-2 -> node-5 in slot 2``."""
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

    @property
    def forecast_held(self) -> bool | None:
        """Whether the pause was within what was foreseen for nine of ten; None: not known."""
        if self.forecast is None or self.pause_s is None or self.kind != "planned":
            return None
        return self.pause_s <= self.forecast.pause_most_s

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
            "forecast": None if self.forecast is None else self.forecast.model_dump(),
            "steps_redone": max(self.steps_redone.values(), default=0),
            "phases_s": {**self.spans_s(), **self.phases_s},
            "times": {name: at.isoformat() for name, at in self.times.items()},
            "incident": self.incident,
            "trace_id": self.trace_id,
            "reason": self.reason,
        }


@dataclass(slots=True)
class DrainView:
    """Machines that an operator wants out of their slots.

    Attributes:
        outcome: ``finished`` or ``aborted``; empty while it is under way.
    """

    id: str
    machines: tuple[str, ...]
    requested_by: str
    paused: bool = False
    outcome: str = ""


@dataclass(slots=True)
class IncidentView:
    """What a detector found."""

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
