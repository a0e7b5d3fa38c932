"""Which machine is persistently late? From the waits of all ranks, in fractions of a step; pure.

In each step a rank's lateness is how much less it waited than the ranks of other machines
(median), as a fraction of the step. A rank is named when its median lateness over some window is
large, steady, and well above what the noise of this very job explains. Short windows find gross
slowness soon; long ones find what only patience shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from trainmover.detection import CollectiveWindow, Evidence, Verdict
from trainmover.topology import Membership
from trainmover_detector.timing import StepRow, StepTable

__all__ = ["Rule", "StragglerDetector"]

_MAD_TO_SIGMA: Final = 1.4826
_KEPT_ROWS: Final = 4096
_JUDGE_EVERY_S: Final = 0.05
_NOISE_ROWS: Final = 128


@dataclass(frozen=True, slots=True)
class Rule:
    """When a rank counts as late.

    Attributes:
        steps: Number of latest steps looked at.
        span_s: They must last at least this long together, or more of them are awaited.
        lateness: Least median lateness, as a fraction of a step.
    """

    steps: int
    span_s: float
    lateness: float


RULES: Final = (
    Rule(steps=8, span_s=0.8, lateness=0.25),
    Rule(steps=12, span_s=1.2, lateness=0.25),
    Rule(steps=16, span_s=1.6, lateness=0.22),
    Rule(steps=24, span_s=3.0, lateness=0.12),
    Rule(steps=48, span_s=6.0, lateness=0.12),
)
_SHARE: Final = 0.85
"""Share of the steps in which the rank must have been later than the others at all."""
_SIGMAS: Final = 6.0
"""How far a median must stand out of the noise of a median of so many steps."""
_MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median, as a multiple of sigma / sqrt(n)."""


class StragglerDetector:
    """Names machines that make all others wait.

    Args:
        quiet_steps: Steps after a membership change that are not looked at.
        rules: Any of them is enough.
        calm: A named machine is taken back when its median lateness falls below this fraction.
    """

    api_version: ClassVar[int] = 1

    def __init__(
        self,
        *,
        quiet_steps: int = 8,
        rules: tuple[Rule, ...] = RULES,
        calm: float = 0.08,
    ) -> None:
        self._quiet_steps = quiet_steps
        self._rules = rules
        self._calm = calm
        self._membership: Membership | None = None
        self._machines: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._table = StepTable(0)
        self._first: int | None = None
        self._rows: deque[tuple[StepRow, npt.NDArray[np.float64]]] = deque(maxlen=_KEPT_ROWS)
        self._unjudged_s = 0.0
        self._named: set[str] = set()

    def membership_changed(self, membership: Membership) -> None:
        """New seats, new warm-up: nothing of before counts."""
        layout = membership.layout
        self._membership = membership
        self._machines = np.arange(layout.world_size) // layout.ranks_per_slot
        self._table = StepTable(layout.world_size)
        self._first = None
        self._rows.clear()
        self._named.clear()

    def observe(self, window: CollectiveWindow) -> Iterable[Verdict]:
        """Take in records; judge once for each step that became whole."""
        membership = self._membership
        if membership is None or window.epoch != membership.epoch or not len(window.records):
            return ()
        verdicts: dict[str, Verdict] = {}
        for row in self._table.add(window.records):
            if self._first is None:
                self._first = row.step
            if row.step < self._first + self._quiet_steps:
                continue
            self._rows.append((row, self._lateness(row)))
            self._unjudged_s += row.step_s
            if self._unjudged_s < _JUDGE_EVERY_S:
                continue  # steps of a millisecond need not be judged one by one
            self._unjudged_s = 0.0
            for verdict in self._judge(membership):
                verdicts[verdict.machine or ""] = verdict
        return list(verdicts.values())

    def notice(self, evidence: Evidence) -> Iterable[Verdict]:
        """Liveness is not its business."""
        del evidence
        return ()

    def tick(self, now_s: float) -> Iterable[Verdict]:
        """Time alone changes nothing."""
        del now_s
        return ()

    def _lateness(self, row: StepRow) -> npt.NDArray[np.float64]:
        """Fraction of the step that each rank made the ranks of other machines wait."""
        late = np.zeros(len(row.wait_s))
        for machine in np.unique(self._machines):
            mine = self._machines == machine
            if not mine.all():
                late[mine] = np.median(row.wait_s[~mine]) - row.wait_s[mine]
        return late / row.step_s

    def _judge(self, membership: Membership) -> Iterable[Verdict]:
        found: dict[str, Verdict] = {}
        noise = self._noise()
        for rule in self._rules:
            window = self._window(rule)
            if window is None:
                break
            late, step_s = window
            middle = np.median(late, axis=0)
            least = max(rule.lateness, _SIGMAS * _MEDIAN_ERROR * noise / len(late) ** 0.5)
            guilty = (middle >= least) & ((late > 0).mean(axis=0) >= _SHARE)
            for rank in np.flatnonzero(guilty).tolist():
                machine = membership.machine_of(rank)
                known = found.get(machine)
                if known is None or middle[rank] > known.evidence["lateness"]:
                    found[machine] = _verdict(machine, rank, late, step_s=step_s, noise=noise)
        self._named |= found.keys()
        return [*found.values(), *self._withdrawn(membership, found.keys())]

    def _noise(self) -> float:
        """Standard deviation of a rank's lateness from step to step, as a fraction of a step.

        Taken from differences of successive steps, so that a rank that became slow does not count
        as noise.
        """
        recent = np.array([late for _, late in islice(reversed(self._rows), _NOISE_ROWS)])
        if len(recent) < 2:
            return 1.0
        steps = np.abs(np.diff(recent, axis=0))
        unsure = 1 + 8 / len(recent)  # a few steps may look calmer than the job is
        return unsure * _MAD_TO_SIGMA * float(np.median(steps)) / 2**0.5

    def _window(self, rule: Rule) -> tuple[npt.NDArray[np.float64], float] | None:
        """Lateness of the latest steps (steps x ranks) and their median duration in seconds."""
        rows: list[npt.NDArray[np.float64]] = []
        lasted: list[float] = []
        for row, late in reversed(self._rows):
            rows.append(late)
            lasted.append(row.step_s)
            if len(rows) >= rule.steps and sum(lasted) >= rule.span_s:
                return np.array(rows), float(np.median(lasted))
        return None

    def _withdrawn(self, membership: Membership, late_now: Iterable[str]) -> list[Verdict]:
        verdicts = []
        for machine in sorted(self._named - set(late_now)):
            slot = membership.slot_of_machine(machine)
            window = self._window(self._rules[-1])
            if slot is None or window is None:
                continue
            ranks = list(membership.layout.ranks_of(slot))
            middle = float(np.median(window[0][:, ranks], axis=0).max())
            if middle < self._calm:
                self._named.discard(machine)
                summary = f"{machine} keeps up again: late by {middle:.0%} of a step"
                evidence = {"lateness": round(middle, 4)}
                verdicts.append(
                    Verdict("straggler", machine, None, 0.9, summary, evidence, closed=True)
                )
        return verdicts


def _verdict(
    machine: str,
    rank: int,
    late: npt.NDArray[np.float64],
    *,
    step_s: float,
    noise: float,
) -> Verdict:
    middle = np.median(late, axis=0)
    mine = float(middle[rank])
    others = float(np.median(np.delete(middle, rank)))
    steady = float((late[:, rank] > 0).mean())
    return Verdict(
        kind="straggler",
        machine=machine,
        rank=rank,
        confidence=round(
            min(0.99, 0.5 + 0.5 * steady * (1 - min(1.0, noise / max(mine, 1e-9)))), 3
        ),
        summary=f"{machine}: rank {rank} makes the others wait {mine:.0%} of each step "
        f"({mine * step_s * 1e3:.0f} of {step_s * 1e3:.0f} ms) for {len(late)} steps",
        evidence={
            "lateness": round(mine, 4),
            "lateness_of_others": round(others, 4),
            "lateness_by_rank": [round(float(value), 4) for value in middle],
            "late_steps_share": round(steady, 3),
            "noise": round(noise, 4),
            "steps": len(late),
            "step_s": round(step_s, 6),
            "wait_caused_s": round(mine * step_s, 6),
        },
    )
