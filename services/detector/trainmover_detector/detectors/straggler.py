"""Which machine is persistently late? From the waits of all ranks, in fractions of a step; pure.

In each step a rank's lateness is how much less it waited than the ranks that do the same work on
other machines (median), as a fraction of the step. Waits add up along the chain: whoever waited for
a late rank, in whatever group, waited as long as everybody else, so that in a hybrid job the rank
that waited for nobody stands out and its victims do not.

A rank is named when its median lateness over some window is large, steady, and well above what the
noise of this very job explains. Short windows find gross slowness soon; long ones find what only
patience shows, as a change against the rank's own past.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import comb
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from trainmover.detection import CollectiveWindow, DetectorConfig, Evidence, Finding
from trainmover.events.operator import PolicyChanged
from trainmover.job.topology import Membership
from trainmover_detector.detectors.slowest import Slowest
from trainmover_detector.measures.baselines import MEDIAN_ERROR, successive_sigma
from trainmover_detector.measures.causes import explain
from trainmover_detector.measures.inbox import StepInbox
from trainmover_detector.measures.roles import Roles
from trainmover_detector.measures.steps import StepMatrix, WholeStep
from trainmover_detector.measures.timing import StepRow, StepTable

__all__ = ["Rule", "StragglerConfig", "StragglerDetector"]

_KEPT_ROWS: Final = 256
_JUDGE_EVERY_S: Final = 0.05
_NOISE_ROWS: Final = 128
_NOISE_RANKS: Final = 256
_REFERENCE_ROWS: Final = 48
_ROLES_EVERY: Final = 64

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rule:
    """When a rank counts as late.

    Attributes:
        steps: Number of latest steps looked at.
        span_s: They must last at least this long together, or more of them are awaited.
        lateness: Least median lateness, as a fraction of a step.
        each: Least lateness in every one of them but one in ten.
        change: Whether it is a change against the rank's own past that must be so large.
    """

    steps: int
    span_s: float
    lateness: float
    each: float = 0.0
    change: bool = False


RULES: Final = (
    Rule(steps=4, span_s=0.8, lateness=0.33, each=0.22),
    Rule(steps=8, span_s=0.8, lateness=0.25),
    Rule(steps=12, span_s=1.2, lateness=0.25),
    Rule(steps=14, span_s=3.0, lateness=0.11),
    Rule(steps=14, span_s=3.0, lateness=0.07, change=True),
    Rule(steps=24, span_s=3.0, lateness=0.12),
    Rule(steps=48, span_s=6.0, lateness=0.12),
    Rule(steps=64, span_s=8.0, lateness=0.055, change=True),
)
_SHARE: Final = 0.85
"""Share of the steps in which the rank must have been later than the others at all."""
_ONCE_IN: Final = 1e7
"""Chance alone may make a rule hold once in so many looks at a rank."""
_LEAST_PAST: Final = 32
_CALM_NOISE: Final = 0.04
"""In a job as quiet as that, a third of a rule's span is long enough."""
_STAYS: Final = 32
_STAY: Final = 0.05
"""A stay outside is long when it takes such a fraction of a step more than the usual one."""
_INTERRUPTIONS: Final = 3
"""Long stays that come more often than so many times in 32 steps are the job's usual way."""


class StragglerConfig(DetectorConfig):
    """Settings of ``straggler``.

    Attributes:
        quiet_steps: Steps that are not looked at after a membership change, nor after the program
            was elsewhere for unusually long (a checkpoint, an evaluation): uploads and cold caches
            pass.
        least: Lateness below this makes no finding, as a fraction of a step.
        sigmas: How far a median must stand out of the noise of a median of so many steps.
        calm: A named machine is taken back when its median lateness falls below this fraction.
    """

    quiet_steps: int = Field(default=8, ge=0)
    least: float = Field(default=0.05, gt=0)
    sigmas: float = Field(default=6.0, gt=0)
    calm: float = Field(default=0.04, gt=0)


class StragglerDetector:
    """Names machines that make all others wait."""

    api_version: ClassVar[int] = 1
    # Operations are its way out where an agent sends no steps: then it sends operations.
    reads: ClassVar[frozenset[str]] = frozenset({"steps"})
    Config = StragglerConfig

    def __init__(self, config: StragglerConfig = StragglerConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._membership: Membership | None = None
        self._slowest = Slowest()
        self._begin(0, 1)

    def _begin(self, world: int, ranks_per_slot: int) -> None:
        self._slots: npt.NDArray[np.int64] = np.arange(world) // ranks_per_slot
        self._table = StepTable(world)
        self._matrix = StepMatrix(world)
        self._inbox = StepInbox(world)
        self._detailed = False
        self._groups: dict[int, tuple[range, ...]] = {}
        self._roles: Roles | None = None
        self._roles_age = 0
        self._first: int | None = None
        self._rows: deque[tuple[StepRow, Floats]] = deque(maxlen=_KEPT_ROWS)
        self._reference: list[Floats] = []
        self._own: list[Floats] = []
        self._stays_s: deque[float] = deque(maxlen=_STAYS)
        self._long_stays: deque[bool] = deque(maxlen=_STAYS)
        self._settles_at = -1
        self._unjudged_s = 0.0
        self._named: set[str] = set()

    def membership_changed(self, membership: Membership) -> None:
        """A new membership, a new warm-up: nothing of before counts."""
        self._membership = membership
        self._slowest.membership_changed()
        self._begin(membership.layout.world_size, membership.layout.ranks_per_slot)

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        """Take in steps; judge once for each that became whole."""
        membership = self._membership
        if membership is None or window.epoch != membership.epoch:
            return ()
        if window.groups:
            self._groups.update(window.groups)
        if len(window.steps):
            self._detailed = True
            self._inbox.put(window.steps)
            return self._look(membership) if self._inbox.at_once else ()
        if not self._detailed and len(window.records):
            return self._look_at(self._table.add(window.records), membership)
        return ()

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        """Learn what a policy declares about rebalancing; liveness is not its business."""
        if isinstance(evidence.fact, PolicyChanged):
            self._slowest.declare(evidence.fact.policy.rebalance, evidence.received_s)
        return ()

    def tick(self, now_s: float) -> Iterable[Finding]:
        """Look at what waits, and once an interval at all of it."""
        if self._membership is None:
            return ()
        found = self._look(self._membership) if self._inbox else []
        return [*found, *self._slowest.look(self._membership, now_s)]

    def _look(self, membership: Membership) -> list[Finding]:
        return self._look_at(self._matrix.add(self._inbox.take()), membership)

    def _look_at(self, rows: Iterable[StepRow], membership: Membership) -> list[Finding]:
        findings: dict[str, Finding] = {}
        for row in rows:
            if self._first is None:
                self._first = row.step
            if row.step < self._first + self._config.quiet_steps or self._is_unsettled(row):
                continue
            self._take(row)
            if self._unjudged_s < _JUDGE_EVERY_S:
                continue  # steps of a millisecond need not be judged one by one
            self._unjudged_s = 0.0
            for finding in self._judge(membership):
                findings[finding.machine or ""] = finding
        return list(findings.values())

    def _is_unsettled(self, row: StepRow) -> bool:
        """Whether the program was elsewhere in front of this step, or a few steps ago."""
        if not isinstance(row, WholeStep):
            return False
        stay_s = float(row.outside_s.max())
        usual_s = float(np.median(self._stays_s)) if self._stays_s else stay_s
        is_long = stay_s - usual_s > _STAY * max(0.0, row.step_s - stay_s)
        if is_long and sum(self._long_stays) < _INTERRUPTIONS:
            self._settles_at = row.step + self._config.quiet_steps
        self._stays_s.append(stay_s)
        self._long_stays.append(is_long)
        return row.step < self._settles_at

    # -- lateness --------------------------------------------------------------------------------

    def _take(self, row: StepRow) -> None:
        roles = self._roles_of(row)
        late = roles.others_median(row.wait_s) - row.wait_s
        if roles.alone.any():
            own = row.step_s - row.wait_s
            late = np.where(roles.alone, self._against_own_past(own), late)
        late = np.nan_to_num(late) / row.step_s
        self._rows.append((row, late))
        self._slowest.take(late, step=row.step, step_s=row.step_s)
        if len(self._reference) < _REFERENCE_ROWS:
            self._reference.append(late)
        self._unjudged_s += row.step_s

    def _roles_of(self, row: StepRow) -> Roles:
        self._roles_age += 1
        if self._roles is None or self._roles_age >= _ROLES_EVERY:
            signature, messages = np.zeros(len(row.wait_s), np.uint64), False
            if isinstance(row, WholeStep):
                signature, messages = row.signature, row.messages
            self._roles = Roles.find(signature, self._slots, self._groups, messages=messages)
            self._roles_age = 0
        return self._roles

    def _against_own_past(self, own: Floats) -> Floats:
        """How much more a rank works than it did, beyond what everybody does."""
        if len(self._own) < _REFERENCE_ROWS:
            self._own.append(own)
            return np.zeros(len(own))
        past = np.median(self._own, axis=0)
        return own - past * float(np.median(own / np.maximum(past, 1e-9)))

    # -- judgement -------------------------------------------------------------------------------

    def _judge(self, membership: Membership) -> Iterable[Finding]:
        found: dict[str, Finding] = {}
        recent = np.array([late for _, late in islice(reversed(self._rows), 4)])
        suspects = np.flatnonzero(recent.mean(axis=0) >= 0.8 * self._config.least)
        noise = self._noise() if len(suspects) or self._named else 0.0
        for rule in RULES if len(suspects) else ():
            rows = self._window(rule, noise)
            if rows is None:
                continue
            late = np.array([each[suspects] for _, each in rows])
            for index, middle in self._guilty(rule, late, suspects, noise):
                rank = int(suspects[index])
                machine = membership.machine_of(rank)
                known = found.get(machine)
                if known is None or middle > known.evidence["lateness"]:
                    found[machine] = _finding(
                        machine, rank, rows, self._roles, self._usual(rank), noise=noise
                    )
        self._named |= found.keys()
        return [*found.values(), *self._withdrawn(membership, found.keys())]

    def _usual(self, rank: int) -> list[WholeStep]:
        """Steps in which a rank was not late."""
        calm = self._config.least / 2
        return [row for row, late in self._rows if late[rank] < calm and isinstance(row, WholeStep)]

    def _by_chance(self, count: int) -> float:
        """Lateness that the median of ``count`` steps of a healthy rank hardly ever reaches.

        For the median to be so large, half of the steps must be. The past of all ranks tells how
        often one is, whatever its distribution: pauses count, and so do ranks that take turns. The
        median over ranks keeps those out that were late all the time.
        """
        past = [late for _, late in islice(reversed(self._rows), count, count + _NOISE_ROWS)]
        if len(past) < _LEAST_PAST:
            return 0.0
        half = count // 2
        share = (comb(count, half) * _ONCE_IN) ** (-1 / half)
        stride = max(1, len(self._slots) // _NOISE_RANKS)
        each = np.quantile(np.array(past)[:, ::stride], 1 - share, axis=0)
        return float(np.median(each))

    def _guilty(
        self, rule: Rule, late: Floats, suspects: npt.NDArray[np.int64], noise: float
    ) -> list[tuple[int, float]]:
        middle = np.median(late, axis=0)
        least = max(rule.lateness, self._config.least, self._by_chance(len(late)))
        least = max(least, self._config.sigmas * MEDIAN_ERROR * noise / len(late) ** 0.5)
        guilty = (middle >= least) & ((late > 0).mean(axis=0) >= _SHARE)
        if rule.each:
            guilty &= (late >= rule.each).mean(axis=0) >= 0.9
        if rule.change:
            if len(self._reference) < _REFERENCE_ROWS:
                return []
            past = np.median([each[suspects] for each in self._reference], axis=0)
            guilty &= middle - past >= least
        return [(int(index), float(middle[index])) for index in np.flatnonzero(guilty)]

    def _noise(self) -> float:
        """Standard deviation of a rank's lateness from step to step, as a fraction of a step."""
        stride = max(1, len(self._slots) // _NOISE_RANKS)
        recent = np.array([late[::stride] for _, late in islice(reversed(self._rows), _NOISE_ROWS)])
        if len(recent) < 2:
            return 1.0
        unsure = 1 + 8 / len(recent)  # a few steps may look calmer than the job is
        return unsure * successive_sigma(recent)

    def _window(self, rule: Rule, noise: float) -> list[tuple[StepRow, Floats]] | None:
        """The latest steps that a rule looks at, newest first; None: there are not enough."""
        rows: list[tuple[StepRow, Floats]] = []
        span_s = rule.span_s if noise > _CALM_NOISE else rule.span_s / 3
        lasted = 0.0
        for row, late in reversed(self._rows):
            rows.append((row, late))
            lasted += row.step_s
            if len(rows) >= rule.steps and lasted >= span_s:
                return rows
        return None

    def _withdrawn(self, membership: Membership, late_now: Iterable[str]) -> list[Finding]:
        findings = []
        for machine in sorted(self._named - set(late_now)):
            slot = membership.slot_of_machine(machine)
            rows = self._window(RULES[-2], 1.0)
            if slot is None or rows is None:
                continue
            ranks = list(membership.layout.ranks_of(slot))
            middle = float(np.median([late[ranks] for _, late in rows], axis=0).max())
            if middle < self._config.calm:
                self._named.discard(machine)
                summary = f"{machine} keeps up again: late by {middle:.0%} of a step"
                evidence = {"lateness": round(middle, 4)}
                findings.append(
                    Finding("straggler", machine, None, 0.9, summary, evidence, closed=True)
                )
        return findings


def _finding(
    machine: str,
    rank: int,
    rows: list[tuple[StepRow, Floats]],
    roles: Roles | None,
    usual: list[WholeStep],
    *,
    noise: float,
) -> Finding:
    late = np.array([each for _, each in rows])
    middle = np.median(late, axis=0)
    mine = float(middle[rank])
    step_s = float(np.median([row.step_s for row, _ in rows]))
    steady = float((late[:, rank] > 0).mean())
    evidence: dict[str, Any] = {
        "lateness": round(mine, 4),
        "lateness_of_others": round(float(np.median(np.delete(middle, rank))), 4),
        "late_steps_share": round(steady, 3),
        "noise": round(noise, 4),
        "steps": len(late),
        "from_step": rows[-1][0].step,
        "to_step": rows[0][0].step,
        "step_s": round(step_s, 6),
        "wait_caused_s": round(mine * step_s, 6),
    }
    if len(middle) <= 64:
        evidence["lateness_by_rank"] = [round(float(value), 4) for value in middle]
    cause: Mapping[str, Any] = {}
    slow = [row for row, each in rows if each[rank] >= mine / 2 and isinstance(row, WholeStep)]
    if slow and roles is not None:
        cause = explain(rank, slow, roles, usual)
        evidence |= cause
    why = f"; it spends it on {cause['cause']}" if cause.get("cause") else ""
    certainty = 1 - min(1.0, noise / max(mine, 1e-9))
    return Finding(
        kind="straggler",
        machine=machine,
        rank=rank,
        confidence=round(min(0.99, 0.5 + 0.5 * steady * certainty), 3),
        summary=f"{machine}: rank {rank} comes late: its peers spend {mine:.0%} of each step more "
        f"in collectives ({mine * step_s * 1e3:.0f} of {step_s * 1e3:.0f} ms) for {len(late)} "
        f"steps{why}",
        evidence=evidence,
        advice="move",
    )
