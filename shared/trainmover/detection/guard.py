"""Keeps each detector from harming the others.

One that raises, returns nonsense, is slow, waits or floods is not asked again; the service goes on.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import Final

from trainmover.detection.model import BaseDetector, CollectiveWindow, Detector, Evidence, Finding
from trainmover.job.topology import Membership

__all__ = ["Alarm", "Guarded"]

_MOST_AT_ONCE: Final = 256
_MOST_FINDINGS: Final = 2_000
_FINDINGS_S: Final = 10.0
_OVERRUNS: Final = 3
_OVERRUNS_S: Final = 10.0
_ADVICE: Final = frozenset({"none", "move", "recover"})


class BlockedError(BaseException):
    """Raised inside a detector that does not come back.

    A BaseException, so that no ``except Exception`` of a plugin can catch it.
    """


class Alarm:
    """Gets the process out of a detector that waits or loops for ever, by ``SIGALRM``.

    Only for a process of its own, in its main thread; elsewhere do without one.

    Args:
        limit_s: Seconds of real time that detectors may take together before one is interrupted.
    """

    def __init__(self, *, limit_s: float = 2.0) -> None:
        self.limit_s = limit_s
        self.inside = False

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Watch what happens in here."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self.limit_s, self.limit_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.inside:
            raise BlockedError


@dataclass(slots=True)
class Guarded:
    """A detector behind a guard.

    Attributes:
        name: Name of its entry point.
        detector: The detector, or None when it could not be made.
        version: Version of the distribution it comes from.
        mode: ``active``, or ``shadow``: its findings lead to no action.
        budget_s: Longest time a call may take, in seconds. Once in a while it may take longer, as
            when the interpreter collects garbage in the midst of it; three times in ten
            seconds is too often.
        clock: Measures that time, in seconds.
        alarm: What gets us out of a call that never returns; None to do without.
        quarantined: Why it is not asked any more; empty while it is.
    """

    name: str
    detector: Detector | None
    version: str = "1"
    mode: str = "active"
    budget_s: float = 0.25
    clock: Callable[[], float] = field(default=time.thread_time)
    alarm: Alarm | None = None
    quarantined: str = ""
    _found_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_FINDINGS))
    _now_s: float = -math.inf
    _overruns: deque[float] = field(default_factory=lambda: deque(maxlen=_OVERRUNS))
    _watches: bool = field(init=False)
    """Whether it looks at telemetry, not at facts alone."""

    def __post_init__(self) -> None:
        watch = getattr(type(self.detector), "observe", None)
        self._watches = watch is not BaseDetector.observe

    @property
    def reads(self) -> frozenset[str] | None:
        """Names of the sections that it looks at; None where it may look at any."""
        if not self._watches or self.quarantined or self.detector is None:
            return frozenset()
        # What a class declares is not true of one that builds on it and has an observe of its own.
        known = (vars(each) for each in type(self.detector).__mro__)
        said = next((names for names in known if names.keys() & {"observe", "reads"}), None)
        declared = None if said is None else said.get("reads")
        return declared if isinstance(declared, frozenset) else None

    def observe(self, windows: Sequence[CollectiveWindow]) -> list[Finding]:
        """``Detector.observe`` for each of some windows, oldest first; nothing when quarantined."""
        if not (self._watches and windows):
            return []

        def look(detector: Detector) -> Iterator[Finding]:
            for window in windows:
                yield from detector.observe(window)

        return self._call(look, windows[-1].received_s)

    def notice(self, evidence: Evidence) -> list[Finding]:
        """``Detector.notice``; nothing when quarantined."""
        return self._call(lambda detector: detector.notice(evidence), evidence.received_s)

    def tick(self, now_s: float) -> list[Finding]:
        """``Detector.tick``; nothing when quarantined."""
        return self._call(lambda detector: detector.tick(now_s), now_s)

    def membership_changed(self, membership: Membership) -> None:
        """``Detector.membership_changed``; nothing when quarantined."""

        def tell(detector: Detector) -> Iterable[Finding]:
            detector.membership_changed(membership)
            return ()

        self._call(tell, self._now_s)

    def _call(self, call: Callable[[Detector], Iterable[Finding]], now_s: float) -> list[Finding]:
        if self.quarantined or self.detector is None:
            return []
        self._now_s = now_s
        # Processor time of this thread: a busy machine must not count against the detector.
        started_s = self.clock()
        try:
            findings = self._ask(self.detector, call)
            for finding in findings:
                _check(finding)
        except BlockedError:
            limit_s = self.alarm.limit_s if self.alarm is not None else 0.0
            self.quarantined = f"a call did not return in {limit_s:g} s"
            return []
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; it is named
            self.quarantined = f"{type(error).__name__}: {error}"
            return []
        took_s = self.clock() - started_s
        if self._drags(took_s):
            return []
        if findings and self._floods(len(findings)):
            return []
        return findings

    def _ask(
        self, detector: Detector, call: Callable[[Detector], Iterable[Finding]]
    ) -> list[Finding]:
        if self.alarm is None:
            return list(islice(call(detector), _MOST_AT_ONCE + 1))
        self.alarm.inside = True
        try:
            return list(islice(call(detector), _MOST_AT_ONCE + 1))
        finally:
            self.alarm.inside = False

    def _drags(self, took_s: float) -> bool:
        if took_s <= self.budget_s:
            return False
        self._overruns.append(self._now_s)
        full = len(self._overruns) == _OVERRUNS
        if not full or self._now_s - self._overruns[0] >= _OVERRUNS_S:
            return False
        self.quarantined = (
            f"too slow: {_OVERRUNS} calls within {_OVERRUNS_S:g} s took longer than "
            f"{self.budget_s:g} s, the last {took_s:.3f} s"
        )
        return True

    def _floods(self, count: int) -> bool:
        self._found_s.extend([self._now_s] * count)
        full = len(self._found_s) == _MOST_FINDINGS and self._now_s - self._found_s[0] < _FINDINGS_S
        if count > _MOST_AT_ONCE or full:
            self.quarantined = (
                f"it floods: more than {_MOST_AT_ONCE} findings in one call"
                if count > _MOST_AT_ONCE
                else f"it floods: {_MOST_FINDINGS} findings in less than {_FINDINGS_S:g} s"
            )
            return True
        return False


def _check(finding: Finding) -> None:
    if not isinstance(finding, Finding):
        raise TypeError(f"a finding was expected, not {type(finding).__name__}")
    if not (math.isfinite(finding.confidence) and 0.0 <= finding.confidence <= 1.0):
        raise ValueError(f"confidence {finding.confidence} is not within 0 and 1")
    if finding.advice not in _ADVICE:
        raise ValueError(f"advice {finding.advice!r} is none of {', '.join(sorted(_ADVICE))}")
    json.dumps(dict(finding.evidence), allow_nan=False)
