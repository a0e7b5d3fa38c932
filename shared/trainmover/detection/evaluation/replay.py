"""Plays what happened to detectors and collects the incidents that they would open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from trainmover.detection.evaluation.recording import Entry
from trainmover.detection.evaluation.scoring import Label, TimedFinding
from trainmover.detection.membership import MembershipTracker
from trainmover.detection.model import CollectiveWindow, Detector, Evidence, Finding
from trainmover.job.topology import Frozen, Membership
from trainmover.telemetry.records import Batch

__all__ = ["Player", "play"]

TICK_S: Final = 0.2
_GAP_S: Final = 30.0
"""A longer pause of the recording itself is not ticked through."""

_Key = tuple[str, str, str | None, tuple[int, int] | None]


@dataclass(slots=True)
class Player:
    """Hands windows, facts and time to detectors, as the service does.

    Attributes:
        detectors: By name.
        findings: Incidents in the order in which they were opened.
        errors: What a detector raised, by its name; it is not asked again.
    """

    detectors: Mapping[str, Detector]
    findings: list[TimedFinding] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    _open: set[_Key] = field(default_factory=set)
    _ticked_s: float = 0.0
    _step: int = 0

    def advance(self, now_s: float) -> None:
        """Let time pass."""
        if now_s - self._ticked_s > _GAP_S:
            self._ticked_s = now_s - TICK_S
        while self._ticked_s + TICK_S <= now_s:
            self._ticked_s += TICK_S
            at_s = self._ticked_s
            self._each(at_s, lambda detector, at_s=at_s: detector.tick(at_s))  # type: ignore[misc]

    def membership_changed(self, membership: Membership) -> None:
        """A new epoch begins."""

        def tell(detector: Detector) -> Iterable[Finding]:
            detector.membership_changed(membership)
            return ()

        self._each(self._ticked_s, tell)
        self._open = {key for key in self._open if key[3] is None}

    def window(self, window: CollectiveWindow) -> None:
        """A batch comes."""
        if len(window.steps):
            self._step = max(self._step, int(window.steps["step"].max()) + 1)
        self._each(window.received_s, lambda detector: detector.observe(window))

    def fact(self, fact: Frozen, membership: Membership | None, now_s: float) -> None:
        """A fact comes."""
        evidence = Evidence(fact=fact, membership=membership, received_s=now_s)
        self._each(now_s, lambda detector: detector.notice(evidence))

    def _each(self, now_s: float, ask: Callable[[Detector], Iterable[Finding]]) -> None:
        for name, detector in self.detectors.items():
            if name in self.errors:
                continue
            try:
                findings = list(ask(detector))
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything; it is named
                self.errors[name] = error
                continue
            for finding in findings:
                self._hear(name, finding, now_s)

    def _hear(self, name: str, finding: Finding, now_s: float) -> None:
        key = (name, finding.kind, finding.machine, finding.link)
        if finding.closed:
            self._open.discard(key)
        elif key not in self._open:
            self._open.add(key)
            self.findings.append(TimedFinding(now_s, self._step, finding, name))


def play(entries: Iterable[Entry], detectors: Mapping[str, Detector]) -> tuple[Player, list[Label]]:
    """Play a recording; what was found, and the labels that it has."""
    player, labels = Player(detectors), []
    for now_s, what, window, tracker in _steps(entries):
        player.advance(now_s)
        match what:
            case Label():
                labels.append(what)
            case Membership():
                player.membership_changed(what)
            case Frozen():
                player.fact(what, tracker.membership, now_s)
            case _:
                pass
        if window is not None:
            player.window(window)
    return player, labels


def _steps(
    entries: Iterable[Entry],
) -> Iterator[tuple[float, Frozen | Label | None, CollectiveWindow | None, MembershipTracker]]:
    tracker = MembershipTracker()
    for entry in entries:
        now_s, what = entry.now_s, entry.what
        if isinstance(what, Batch):
            yield now_s, None, tracker.window(what, now_s), tracker
            continue
        if isinstance(what, Label):
            yield now_s, what, None, tracker
            continue
        if (fresh := tracker.learn(what)) is not None:
            yield now_s, fresh, None, tracker
            for early in tracker.early():
                yield now_s, None, early, tracker
        yield now_s, what, None, tracker
