"""One migration told in order: which machine, why believed, what was done, what it cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from trainmover.errors import ConfigError
from trainmover.events.envelope import Envelope
from trainmover.events.migration import MigrationApproved
from trainmover.tracing.timeline import Bar, timeline
from trainmover_console.view import IncidentView, JobView, MigrationView

__all__ = ["Cost", "Report", "duration"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What the job paid.

    Attributes:
        pause_s: Longest pause of a rank beyond one step, seconds; None where none was reported.
        pauses_s: Pause of each rank that reported one.
        steps_redone: Steps that were done a second time.
        phases_s: Seconds of each phase of the migration, in order.
        switch_s: Seconds of each part of phase 2, at the slowest rank.
        beside_s: Seconds that ran beside training: proposal to switch.
    """

    pause_s: float | None
    pauses_s: dict[int, float]
    steps_redone: int
    phases_s: dict[str, float]
    switch_s: dict[str, float]
    beside_s: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that an operator asks about one migration.

    Attributes:
        incident: What a detector found, where that was the cause.
        approval: Why an operator approved it, if they said so.
        bars: What happened when; see ``trainmover.tracing.timeline``.
    """

    job: str
    migration: MigrationView
    incident: IncidentView | None
    approval: str
    bars: tuple[Bar, ...]

    @classmethod
    def of(cls, facts: Iterable[Envelope], wanted: str, *, job: str) -> Self:
        """From the facts of a job.

        Raises:
            ConfigError: No migration, or several, begin with ``wanted``.
        """
        known = list(facts)
        view = JobView(job)
        for fact in known:
            view.apply(fact)
        found = pick(view, wanted)
        return cls(
            job=job,
            migration=found,
            incident=view.incidents.get(found.incident or ""),
            approval=_approval(known, found.id),
            bars=tuple(timeline(known, found.id)),
        )

    @property
    def cost(self) -> Cost:
        """What the job paid."""
        move = self.migration
        times = move.times
        started = next(iter(times.values()), None)
        switched = times.get("switching") or times.get("committed")
        planned = move.kind == "planned" and started is not None and switched is not None
        return Cost(
            pause_s=move.pause_s,
            pauses_s=dict(sorted(move.pauses_s.items())),
            steps_redone=max(move.steps_redone.values(), default=0),
            phases_s=move.spans_s(),
            switch_s=dict(move.phases_s) or _slowest(self.bars),
            beside_s=_between(started, switched) if planned else None,
        )

    @property
    def decision(self) -> str:
        """Who wanted it and who decided, as a sentence."""
        move = self.migration
        words = f"asked for by {move.requested_by}"
        decided = move.decided_by or "nobody yet"
        verb = {"rejected": "rejected", "aborted": "given up"}.get(move.state, "approved")
        words += f", {verb} by {decided}"
        return f"{words}: {self.approval}" if self.approval else words

    @property
    def headline(self) -> str:
        """Which machine, in one line."""
        move = self.migration
        return f"{move.id} {move.state}: {move.kind} move, {move.words}"

    def evidence(self) -> list[tuple[str, str]]:
        """Why it was believed: name and value, for people."""
        if self.incident is None:
            return []
        sure = f"{self.incident.confidence:.0%}"
        rows = [("finding", self.incident.summary), ("confidence", sure)]
        for name, value in self.incident.evidence.items():
            if value not in (None, "", []):
                rows.append((name.replace("_", " "), _words(value)))
        return rows

    def foreseen(self) -> list[tuple[str, str]]:
        """What was expected of it, beside what was measured: name and words, for people."""
        forecast = self.migration.forecast
        if forecast is None:
            return []
        words = forecast.cost_words
        if (held := self.migration.forecast_held) is not None:
            words += "; it was" if held else "; it was not"
        return [("expected", words), ("gain", forecast.gain_words)]

    def as_data(self) -> dict[str, Any]:
        """JSON-ready: the migration, and the rest of its story."""
        cost = self.cost
        return {
            **self.migration.as_data(),
            "approval": self.approval,
            "forecast_held": self.migration.forecast_held,
            "decision": self.decision,
            "finding": None if self.incident is None else self.incident.as_data(),
            "cost": {
                "pause_s": cost.pause_s,
                "pauses_s": {str(rank): pause for rank, pause in cost.pauses_s.items()},
                "steps_redone": cost.steps_redone,
                "phases_s": cost.phases_s,
                "switch_s": cost.switch_s,
                "beside_training_s": cost.beside_s,
            },
            "timeline": [
                {
                    "who": bar.who,
                    "lane": bar.lane,
                    "name": bar.name,
                    "start": bar.start.isoformat(),
                    "seconds": bar.seconds,
                }
                for bar in self.bars
            ],
        }


def pick(view: JobView, wanted: str) -> MigrationView:
    """The migration with this id, or the only one whose id begins like this.

    Raises:
        ConfigError: There is none, or there are several.
    """
    if wanted in view.migrations:
        return view.migrations[wanted]
    found = [one for id, one in view.migrations.items() if id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{wanted!r} is the beginning of {len(found)} migrations: add a letter.")
    raise ConfigError(
        f"job {view.job!r} has no migration {wanted!r}. 'trainmover migration ls' lists them."
    )


def duration(seconds: float) -> str:
    """``12.3 ms``, ``1.20 s``, ``3 min 20 s``."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def _approval(facts: Sequence[Envelope], id: str) -> str:
    for fact in facts:
        match fact.payload:
            case MigrationApproved(plan=plan, approval=why) if plan.id == id:
                return why
            case _:
                pass
    return ""


def _slowest(bars: Sequence[Bar]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for bar in bars:
        if bar.name.startswith("phase 2: "):
            name = bar.name.removeprefix("phase 2: ")
            parts[name] = max(parts.get(name, 0.0), bar.seconds)
    return parts


def _between(began: datetime | None, ended: datetime | None) -> float | None:
    return None if began is None or ended is None else max(0.0, (ended - began).total_seconds())


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
