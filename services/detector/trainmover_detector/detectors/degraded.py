"""Has everybody become slower alike? Then say so, and move nobody; pure.

A step that takes longer is split into what every rank works more, what the network takes more (the
wait of the last to arrive, which waits for nobody), and what ranks wait for one another. Only when
the last part does not explain it is nobody to blame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from trainmover.detection import CollectiveWindow, DetectorConfig, Evidence, Finding
from trainmover.job.topology import Membership
from trainmover.telemetry.records import Flag
from trainmover_detector.measures.baselines import MEDIAN_ERROR, Cusum, median_and_sigma
from trainmover_detector.measures.inbox import StepInbox

__all__ = ["DegradedConfig", "DegradedDetector"]

_REDONE: Final = int(Flag.REDONE)
_KEPT: Final = 512
_COLLECTED: Final = 8
_REFERENCE: Final = 96
_GAP: Final = 16
_LATEST: Final = 12

Floats = npt.NDArray[np.float64]


class DegradedConfig(DetectorConfig):
    """Settings of ``degraded``.

    Attributes:
        quiet_steps: Steps after a membership change that are not looked at.
        least: Least increase of the step's duration, as a fraction.
        sigmas: How far it must stand out of the noise.
    """

    quiet_steps: int = Field(default=16, ge=0)
    least: float = Field(default=0.15, gt=0)
    sigmas: float = Field(default=6.0, gt=0)


@dataclass(slots=True)
class _Pending:
    duration: list[Floats] = field(default_factory=list)
    wait: list[Floats] = field(default_factory=list)
    ranks: int = 0
    redone: bool = False


class DegradedDetector:
    """Says that the whole job is slower than it was."""

    api_version: ClassVar[int] = 1
    reads: ClassVar[frozenset[str]] = frozenset({"steps"})
    Config = DegradedConfig

    def __init__(self, config: DegradedConfig = DegradedConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._membership: Membership | None = None
        self._reset()

    def _reset(self) -> None:
        world = 0 if self._membership is None else self._membership.layout.world_size
        self._inbox = StepInbox(world)
        self._pending: dict[int, _Pending] = {}
        self._rows: deque[tuple[float, float, float]] = deque(maxlen=_KEPT)
        self._cusum = Cusum(slack=self._config.least / 2, limit=4 * self._config.least)
        self._level: tuple[float, float, float] | None = None
        self._done = -1
        self._seen = 0
        self._found = False

    def membership_changed(self, membership: Membership) -> None:
        """A new membership, a new level."""
        self._membership = membership
        self._reset()

    def observe(self, window: CollectiveWindow) -> Iterable[Finding]:
        """Take in steps."""
        membership = self._membership
        if membership is None or window.epoch != membership.epoch or not len(window.steps):
            return ()
        self._inbox.put(window.steps)
        return self._look(membership) if self._inbox.at_once else ()

    def notice(self, evidence: Evidence) -> Iterable[Finding]:
        """Facts change nothing."""
        del evidence
        return ()

    def tick(self, now_s: float) -> Iterable[Finding]:
        """Look at what waits."""
        del now_s
        return self._look(self._membership) if self._membership and self._inbox else ()

    def _look(self, membership: Membership) -> list[Finding]:
        steps = self._inbox.take()
        findings: list[Finding] = []
        for step in [int(steps["step"][0])] if len(steps) == 1 else np.unique(steps["step"]):
            if step <= self._done:
                continue
            mine = steps[steps["step"] == step]
            pending = self._pending.setdefault(int(step), _Pending())
            # What the program does between steps (checkpoints, evaluations) is not the job's pace.
            inside = mine["duration_ns"] - mine["outside_ns"]
            pending.duration.append(inside * 1e-9)
            pending.wait.append(mine["wait_ns"] * 1e-9)
            pending.ranks += len(mine)
            pending.redone |= bool((mine["flags"] & _REDONE).any())
            if pending.ranks >= membership.layout.world_size:
                del self._pending[int(step)]
                self._done = int(step)
                findings += self._take(pending)
        for old in sorted(self._pending)[:-_COLLECTED]:
            del self._pending[old]
        return findings

    def _take(self, pending: _Pending) -> list[Finding]:
        self._seen += 1
        if pending.redone or self._seen <= self._config.quiet_steps:
            return []
        duration = float(np.median(np.concatenate(pending.duration)))
        wait = np.concatenate(pending.wait)
        self._rows.append((duration, float(wait.min()), float(np.median(wait))))
        if len(self._rows) < _REFERENCE // 3 + _GAP:
            return []
        rows = np.array(self._rows)
        if self._level is None:
            self._level = _medians(rows[:-_GAP][-_REFERENCE:])
        change = duration / max(self._level[0], 1e-9) - 1
        beyond = self._cusum.add(change)
        if not beyond:
            if self._cusum.since == 0:
                # Nothing is suspected: the level follows slow drifts.
                self._level = _medians(rows[:-_GAP][-_REFERENCE:])
            return self._over(rows) if self._found else []
        return self._judge(rows)

    def _judge(self, rows: Floats) -> list[Finding]:
        assert self._level is not None  # noqa: S101 - set before anything is judged
        before_s, before_network_s, before_wait_s = self._level
        now_s, network_s, wait_s = _medians(rows[-_LATEST:])
        rise = now_s / max(before_s, 1e-9) - 1
        _, sigma = median_and_sigma(rows[: -_LATEST - 1][-_REFERENCE:, 0] / max(before_s, 1e-9))
        least = max(self._config.least, self._config.sigmas * MEDIAN_ERROR * sigma / _LATEST**0.5)
        if rise < least:
            return []
        rise_s = now_s - before_s
        network_rise_s = network_s - before_network_s
        unequal_s = (wait_s - network_s) - (before_wait_s - before_network_s)
        if unequal_s >= 0.4 * rise_s:
            return []  # they wait for somebody: another detector's business
        part = "network" if network_rise_s >= 0.5 * rise_s else "every rank's own work"
        self._found = True
        return [
            Finding(
                kind="degraded",
                machine=None,
                rank=None,
                confidence=0.85,
                summary=f"all ranks are slower alike: a step takes {now_s:.3f} s, {rise:.0%} more "
                f"than before; it is {part}, nobody is to blame",
                evidence={
                    "step_s": round(now_s, 6),
                    "before_s": round(before_s, 6),
                    "rise": round(rise, 4),
                    "network_rise_s": round(network_rise_s, 6),
                    "unequal_waits_rise_s": round(unequal_s, 6),
                    "part": part,
                    "steps": _LATEST,
                    "indistinguishable": "a change of the program's own work from slower machines",
                },
            )
        ]

    def _over(self, rows: Floats) -> list[Finding]:
        assert self._level is not None  # noqa: S101 - set before anything is judged
        now_s = _medians(rows[-_LATEST:])[0]
        if now_s > self._level[0] * (1 + self._config.least / 2):
            return []
        self._found = False
        summary = f"a step takes {now_s:.3f} s again"
        evidence: dict[str, Any] = {"step_s": round(now_s, 6)}
        return [Finding("degraded", None, None, 0.85, summary, evidence, closed=True)]


def _medians(rows: Floats) -> tuple[float, float, float]:
    duration, network, wait = np.median(rows, axis=0).tolist()
    return duration, network, wait
