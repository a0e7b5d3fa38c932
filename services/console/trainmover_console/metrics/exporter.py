"""What Prometheus scrapes: a job as numbers, computed from its facts when somebody asks.

Counters come from the stored facts, so an exporter that starts over counts the same. The label that
names the job is ``training_job``: Prometheus keeps ``job`` for itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from trainmover_console.view import IncidentView, JobView, MigrationView
from trainmover_console.view.live import Watched

__all__ = ["JobCollector", "false_alarms", "settled"]

_PAUSE_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STATES: Final = ("forming", "running", "held", "finished", "failed")
_ROLES: Final = ("registered", "active", "standby", "released", "quarantined", "lost")
_MODES: Final = ("automatic", "approval", "paused")
_OUTCOMES: Final = ("committed", "aborted", "failed", "rejected")
_KINDS: Final = ("planned", "failure")
_LATE_STEPS: Final = 10
_MOST_RANKS: Final = 512
"""Of more ranks than these no lateness is shown: a series for each would swamp the scraper."""

_MOST_READINESS: Final = 2048
"""Likewise of more standbys times slots."""

_REPORTS_S: Final = 10.0
"""Ranks that did not report their pause so long after the commit never will."""


class JobCollector(Collector):
    """Computes the numbers of one job.

    Args:
        watched: The job; read, never changed.
        clock: The time, for what is still under way.
    """

    def __init__(self, watched: Watched, *, clock: Callable[[], datetime]) -> None:
        self._watched = watched
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """All families."""
        now = self._clock()
        yield from self._job(now)
        yield from self._machines()
        yield from self._migrations(now)
        yield from self._incidents()

    def _job(self, now: datetime) -> Iterator[Metric]:
        view = self._watched.view
        epoch = 0 if view.membership is None else view.membership.epoch
        yield self._gauge("epoch", "Epoch of the latest membership.", epoch)
        yield self._gauge("step", "Completed steps.", view.step)
        rate = self._watched.rate(now)
        yield self._gauge("steps_per_second", "Pace of the last 20 s.", rate or 0.0)
        step_s = self._watched.step_s()
        if step_s is not None:
            yield self._gauge("step_seconds", "Step time of the slowest machine.", step_s)
        up = float(self._watched.connected)
        yield self._gauge("bus_up", "1 while the bus answers the exporter.", up)
        if self._watched.planner is not None:
            answers = float(self._watched.planner)
            yield self._gauge("planner_up", "1 while the planner answers the exporter.", answers)
        if self._watched.unprotected is not None:
            words = "Ranks whose state would be lost with their machine."
            yield self._gauge("ranks_unprotected", words, self._watched.unprotected)
        yield self._one_of("job_state", "1 for the state the job is in.", _STATES, view.state)
        words = "1 for what policy may do about stragglers."
        yield self._one_of("automation", words, _MODES, view.automation)
        family = self._counter("facts", "Facts read so far.")
        family.add_metric([view.job], self._watched.told)
        yield family

    def _machines(self) -> Iterator[Metric]:
        view = self._watched.view
        roles = Counter(one.role for one in view.machines.values())
        family = self._gauges("machines", "Machines by role.", "role")
        for role in _ROLES:
            family.add_metric([view.job, role], roles[role])
        yield family
        slots = 0 if view.membership is None else view.membership.layout.slots
        ready = sum(
            len(one.ready_slots) >= min(slots, one.warm_limit or slots) > 0 for one in view.standbys
        )
        words = "Standbys that are warm for all slots, or as many as they keep warm."
        yield self._gauge("standbys_ready", words, ready)
        yield self._gauge("slots", "Slots of the job.", slots)
        yield self._readiness(slots)
        members = view.membership
        if members is None or members.layout.world_size > _MOST_RANKS:
            return
        late = GaugeMetricFamily(
            "trainmover_rank_lateness_seconds",
            f"How long a rank kept the others waiting, mean of {_LATE_STEPS} steps.",
            labels=["training_job", "rank", "machine"],
        )
        for rank in range(members.layout.world_size):
            recent = self._watched.late_s(rank, _LATE_STEPS)
            if recent:
                labels = [view.job, str(rank), members.machine_of(rank)]
                late.add_metric(labels, sum(recent) / len(recent))
        yield late

    def _readiness(self, slots: int) -> Metric:
        view = self._watched.view
        words = "1 where a standby can take the slot at once, 0 where it cannot."
        family = self._gauges("standby_slot_ready", words, "machine", "slot")
        if slots * len(view.standbys) <= _MOST_READINESS:
            for one in view.standbys:
                for slot in range(slots):
                    ready = float(slot in one.ready_slots)
                    family.add_metric([view.job, one.name, str(slot)], ready)
        return family

    def _migrations(self, now: datetime) -> Iterator[Metric]:
        view = self._watched.view
        moves = list(view.migrations.values())
        family = self._counter("migrations", "Migrations that ended.", "kind", "outcome")
        ended = Counter((one.kind, one.state) for one in moves if not one.open)
        for kind in _KINDS:
            for outcome in _OUTCOMES:
                family.add_metric([view.job, kind, outcome], ended[kind, outcome])
        yield family
        waiting = sum(one.waiting and one.requested_by == "policy" for one in moves)
        yield self._gauge("approvals_waiting", "Moves that wait for an operator.", waiting)
        under_way = sum(one.open and not one.waiting for one in moves)
        yield self._gauge("migrations_under_way", "Migrations under way.", under_way)
        redone = self._counter("steps_redone", "Steps that were done a second time.")
        redone.add_metric(
            [view.job], sum(max(one.steps_redone.values(), default=0) for one in moves)
        )
        yield redone
        done = [one for one in moves if settled(one, view, now)]
        yield self._pauses(done)
        yield self._phases(done)
        yield from self._forecasts(done)

    def _forecasts(self, moves: Sequence[MigrationView]) -> Iterator[Metric]:
        """How well pauses are foreseen: nine of ten should be within what was said."""
        held = self._counter(
            "pause_forecasts", "Planned moves by whether their pause was as foreseen.", "held"
        )
        outcomes = Counter(one.forecast_held for one in moves)
        for outcome, name in ((True, "yes"), (False, "no")):
            held.add_metric([self._watched.job, name], outcomes[outcome])
        yield held
        error = SummaryMetricFamily(
            "trainmover_pause_forecast_error_seconds",
            "How far pauses were from what was foreseen as likely, either way.",
            labels=["training_job"],
        )
        missed = [
            abs(one.pause_s - one.forecast.pause_s)
            for one in moves
            if one.kind == "planned" and one.pause_s is not None and one.forecast is not None
        ]
        error.add_metric([self._watched.job], len(missed), sum(missed))
        yield error

    def _pauses(self, moves: Sequence[MigrationView]) -> Metric:
        family = HistogramMetricFamily(
            "trainmover_migration_pause_seconds",
            "Pause of a migration beyond one step, at its slowest rank.",
            labels=["training_job", "kind"],
        )
        for kind in _KINDS:
            found = [one.pause_s for one in moves if one.kind == kind and one.pause_s is not None]
            counts = Counter(bisect_left(_PAUSE_BUCKETS_S, pause) for pause in found)
            buckets, total = [], 0
            for index, bound in enumerate(_PAUSE_BUCKETS_S):
                total += counts[index]
                buckets.append((str(bound), float(total)))
            buckets.append(("+Inf", float(len(found))))
            family.add_metric([self._watched.job, kind], buckets, sum(found))
        return family

    def _phases(self, moves: Sequence[MigrationView]) -> Metric:
        family = SummaryMetricFamily(
            "trainmover_migration_phase_seconds",
            "Time that committed migrations spent in each phase.",
            labels=["training_job", "kind", "phase"],
        )
        spent: dict[tuple[str, str], list[float]] = {}
        for one in moves:
            for phase, seconds in one.spans_s().items():
                spent.setdefault((one.kind, phase), []).append(max(0.0, seconds))
        for (kind, phase), each in sorted(spent.items()):
            family.add_metric([self._watched.job, kind, phase], len(each), sum(each))
        return family

    def _incidents(self) -> Iterator[Metric]:
        view = self._watched.view
        incidents = list(view.incidents.values())
        total = self._counter("incidents", "Incidents that detectors opened.", "kind")
        current = self._gauges("incidents_open", "Incidents that are open.", "kind")
        wrong = self._counter(
            "false_alarms", "Incidents that closed although their machine kept its slot.", "kind"
        )
        alarms = Counter(one.kind for one in false_alarms(view))
        for kind in sorted({one.kind for one in incidents}):
            mine = [one for one in incidents if one.kind == kind]
            total.add_metric([view.job, kind], len(mine))
            current.add_metric([view.job, kind], sum(one.closed is None for one in mine))
            wrong.add_metric([view.job, kind], alarms[kind])
        yield from (total, current, wrong)

    def _gauge(self, name: str, words: str, value: float) -> Metric:
        family = self._gauges(name, words)
        family.add_metric([self._watched.job], value)
        return family

    def _gauges(self, name: str, words: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"trainmover_{name}", words, labels=["training_job", *labels])

    def _counter(self, name: str, words: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"trainmover_{name}", words, labels=["training_job", *labels])

    def _one_of(self, name: str, words: str, values: Iterable[str], now: str) -> Metric:
        family = self._gauges(name, words, "is")
        for value in values:
            family.add_metric([self._watched.job, value], float(value == now))
        return family


def settled(move: MigrationView, view: JobView, now: datetime) -> bool:
    """Whether a committed migration's figures will not change any more. Pure.

    A histogram must never take an observation back, and a pause is the longest of all ranks.
    """
    if move.state != "committed" or view.membership is None:
        return False
    layout = view.membership.layout
    stayers = layout.world_size - len(move.moves) * layout.ranks_per_slot
    late = (now - move.times["committed"]).total_seconds() > _REPORTS_S
    return late or len(move.pauses_s) >= stayers


def false_alarms(view: JobView) -> list[IncidentView]:
    """Incidents that closed although their machine kept its slot. Pure."""
    left: dict[str, list[datetime]] = {}
    for one in view.migrations.values():
        if one.state == "committed":
            for move in one.moves:
                left.setdefault(move.leaver, []).append(one.times["committed"])
    return [
        one
        for one in view.incidents.values()
        if one.closed is not None
        and one.machine is not None
        and not any(at >= one.opened for at in left.get(one.machine, ()))
    ]
