"""Finds detectors by entry point and keeps each from harming the others.

A detector that raises, returns nonsense or is slow is not asked again; the service goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from trainmover.detection import CollectiveWindow, Detector, Evidence, Verdict
from trainmover.errors import TrainMoverError
from trainmover.topology import Membership

__all__ = ["API_VERSION", "GROUP", "Guarded", "load"]

GROUP: Final = "trainmover.detectors"
API_VERSION: Final = 1


@dataclass(slots=True)
class Guarded:
    """A detector behind a guard.

    Attributes:
        name: Name of its entry point.
        detector: The detector, or None when it could not be made.
        version: Version of the distribution it comes from.
        mode: ``active``, or ``shadow``: its claims lead to no action.
        budget_s: Longest time one call may take, in seconds.
        clock: Measures that time, in seconds.
        quarantined: Why it is not asked any more; empty while it is.
    """

    name: str
    detector: Detector | None
    version: str = "1"
    mode: str = "active"
    budget_s: float = 0.25
    clock: Callable[[], float] = field(default=time.thread_time)
    quarantined: str = ""

    def observe(self, window: CollectiveWindow) -> list[Verdict]:
        """``Detector.observe``; nothing when quarantined."""
        return self._call(lambda detector: detector.observe(window))

    def notice(self, evidence: Evidence) -> list[Verdict]:
        """``Detector.notice``; nothing when quarantined."""
        return self._call(lambda detector: detector.notice(evidence))

    def tick(self, now_s: float) -> list[Verdict]:
        """``Detector.tick``; nothing when quarantined."""
        return self._call(lambda detector: detector.tick(now_s))

    def membership_changed(self, membership: Membership) -> None:
        """``Detector.membership_changed``; nothing when quarantined."""

        def tell(detector: Detector) -> Iterable[Verdict]:
            detector.membership_changed(membership)
            return ()

        self._call(tell)

    def _call(self, call: Callable[[Detector], Iterable[Verdict]]) -> list[Verdict]:
        if self.quarantined or self.detector is None:
            return []
        # Processor time of this thread: a busy machine must not count against the detector.
        started_s = self.clock()
        try:
            verdicts = list(call(self.detector))
            for verdict in verdicts:
                _check(verdict)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; it is named
            self.quarantined = f"{type(error).__name__}: {error}"
            return []
        took_s = self.clock() - started_s
        if took_s > self.budget_s:
            self.quarantined = f"one call took {took_s:.3f} s, the budget is {self.budget_s} s"
            return []
        return verdicts


def load(
    *,
    names: Iterable[str] | None = None,
    shadow: Iterable[str] = (),
    found: Iterable[EntryPoint] | None = None,
) -> list[Guarded]:
    """Make one instance of each registered detector.

    One that cannot be imported or made, or was built against another version of the SDK, comes
    back quarantined with the reason.

    Args:
        names: Only these; all when omitted.
        shadow: Detectors whose claims must lead to no action.
        found: The entry points, for tests; the installed ones when omitted.
    """
    wanted, quiet = None if names is None else set(names), set(shadow)
    loaded = []
    points = entry_points(group=GROUP) if found is None else found
    for point in sorted(points, key=lambda point: point.name):
        if wanted is not None and point.name not in wanted:
            continue
        mode = "shadow" if point.name in quiet else "active"
        version = point.dist.version if point.dist is not None else "1"
        try:
            detector = _make(point)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; it is named
            reason = f"{type(error).__name__}: {error}"
            loaded.append(Guarded(point.name, None, version, mode, quarantined=reason))
        else:
            loaded.append(Guarded(point.name, detector, version, mode))
    return loaded


def _make(point: EntryPoint) -> Detector:
    kind = point.load()
    version = getattr(kind, "api_version", None)
    if version != API_VERSION:
        raise TrainMoverError(
            f"detector {point.name} speaks version {version} of the SDK, this service speaks "
            f"{API_VERSION}. Install a version of it that matches."
        )
    detector = kind()
    if not isinstance(detector, Detector):
        raise TrainMoverError(
            f"detector {point.name} ({point.value}) lacks methods of trainmover.detection.Detector"
        )
    return detector


def _check(verdict: Verdict) -> None:
    if not isinstance(verdict, Verdict):
        raise TypeError(f"a verdict was expected, not {type(verdict).__name__}")
    if not 0.0 <= verdict.confidence <= 1.0:
        raise ValueError(f"confidence {verdict.confidence} is not within 0 and 1")
    json.dumps(dict(verdict.evidence), allow_nan=False)
