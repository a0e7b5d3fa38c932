"""The detector without I/O: facts, telemetry and time in; incident facts out.

Knows who sits where, asks every detector, and turns findings into incidents: one open incident
per kind, machine and epoch, however often it is found.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from trainmover.detection import CollectiveWindow, Evidence, Finding
from trainmover.detection.guard import Alarm, Guarded
from trainmover.detection.membership import MembershipTracker
from trainmover.events.incident import (
    AnalysisPlaced,
    DetectorQuarantined,
    IncidentClosed,
    IncidentOpened,
    IncidentUpdated,
)
from trainmover.events.machine import MachineRegistered
from trainmover.events.migration import (
    JobFailed,
    JobFinished,
    MigrationCommitted,
)
from trainmover.job.topology import Frozen, Membership
from trainmover.telemetry.records import Batch
from trainmover_detector.measures.inbox import FEW_RANKS
from trainmover_detector.placement.chooser import Chooser
from trainmover_detector.placement.costs import allowed_by

__all__ = ["DetectorCore", "key_of"]

_UPDATE_EVERY_S = 5.0
_BUNCH: Final = 64
"""So many batches of a large job are shown together: there it is the number of calls that costs."""
_ADVICE: Final = ("none", "move", "recover")
_Key = tuple[str, str | None, str, tuple[int, int] | None]
"""(kind, machine, mode, link): a finding in shadow mode must not hide an active one."""


@dataclass(frozen=True, slots=True)
class _Open:
    opened: IncidentOpened
    updated_s: float


class DetectorCore:
    """State of the detector service.

    Args:
        detectors: Whom to ask.
        alarm: Gets the process out of a detector that does not return.
        places: Whether agents may run stages of the analysis; otherwise all of it stays here.
    """

    def __init__(
        self, detectors: list[Guarded], *, alarm: Alarm | None = None, places: bool = True
    ) -> None:
        self._detectors = detectors
        self._chooser = Chooser(self._at_agents if places else lambda: ())
        for guarded in detectors:
            guarded.alarm = alarm
        self._armed = alarm.armed if alarm is not None else contextlib.nullcontext
        self._told: set[str] = set()
        self._open: dict[_Key, _Open] = {}
        self._count = 0
        self._tracker = MembershipTracker()
        self._unseen: list[CollectiveWindow] = []
        self._over = False

    @property
    def membership(self) -> Membership | None:
        """That of the latest epoch that is known to have begun."""
        return self._tracker.membership

    def on_fact(self, fact: Frozen, now_s: float) -> list[Frozen]:
        """Take in a fact; the incident facts that follow from it."""
        if self._over:
            return []
        said = self._show(now_s) + self._learn(fact)
        if isinstance(fact, JobFinished | JobFailed):
            self._over = True
            return [*said, *self._close_all("the job is over")]
        evidence = Evidence(fact=fact, membership=self.membership, received_s=now_s)
        return said + self._ask(lambda guarded: guarded.notice(evidence), now_s)

    def on_batch(self, batch: Batch, now_s: float) -> list[Frozen]:
        """Take in telemetry; a batch of another epoch is a sign of life and no more."""
        window = None if self._over else self._tracker.window(batch, now_s)
        if window is None:
            return []
        if self._tracker.holds_slot(batch.machine):
            self._chooser.take(window)
        self._unseen.append(window)
        large = window.membership.layout.world_size > FEW_RANKS
        return self._show(now_s) if len(self._unseen) >= (_BUNCH if large else 1) else []

    def tick(self, now_s: float) -> list[Frozen]:
        """Let time pass; call it five times a second."""
        if self._over or self.membership is None:
            return self._quarantines()
        said = self._show(now_s) + self._ask(lambda guarded: guarded.tick(now_s), now_s)
        return said + self._chooser.look(now_s)

    def _at_agents(self) -> tuple[str, ...]:
        return allowed_by([guarded.reads for guarded in self._detectors])

    @property
    def incidents(self) -> list[IncidentOpened]:
        """Incidents that are open."""
        return [one.opened for one in self._open.values()]

    def remember(self, fact: IncidentOpened | IncidentClosed) -> None:
        """Take in what an earlier run of this service published."""
        match fact:
            case IncidentOpened():
                self._open[key_of(fact)] = _Open(fact, 0.0)
                number = re.search(r"(\d+)$", fact.id)
                self._count = max(self._count, int(number[1]) if number else 0)
            case IncidentClosed(id=id):
                for key in [key for key, one in self._open.items() if one.opened.id == id]:
                    del self._open[key]

    # -- membership ------------------------------------------------------------------------------

    def _learn(self, fact: Frozen) -> list[Frozen]:
        if (membership := self._tracker.learn(fact)) is not None:
            early = self._tracker.early()
            for guarded in self._detectors:
                with self._armed():  # each for itself: one that does not return ends for itself
                    guarded.membership_changed(membership)
                    guarded.observe(early)
        match fact:
            case MigrationCommitted(membership=membership, moves=moves):
                back = {move.joiner for move in moves}
                return [*self._close_left(membership), *self._close_deaths(back, membership)]
            case AnalysisPlaced():
                self._chooser.remember(fact)
            case MachineRegistered(machine=machine):
                if not self._tracker.holds_slot(machine.name):
                    failed = [
                        key
                        for key, one in self._open.items()
                        if one.opened.machine == machine.name and _is_death(one.opened)
                    ]
                    return [self._close(key, f"{machine.name} started over") for key in failed]
            case _:
                pass
        return []

    # -- incidents -------------------------------------------------------------------------------

    def _show(self, now_s: float) -> list[Frozen]:
        """Show the detectors what came."""
        windows, self._unseen = self._unseen, []
        return self._ask(lambda guarded: guarded.observe(windows), now_s) if windows else []

    def _ask(self, ask: Callable[[Guarded], list[Finding]], now_s: float) -> list[Frozen]:
        said: list[Frozen] = []
        with self._armed():
            for guarded in self._detectors:
                if findings := ask(guarded):
                    said += self._judge(guarded, findings, now_s)
        return said + self._quarantines()

    def _judge(self, guarded: Guarded, findings: list[Finding], now_s: float) -> list[Frozen]:
        said: list[Frozen] = []
        for finding in findings:
            key = (finding.kind, finding.machine, guarded.mode, finding.link)
            known = self._open.get(key)
            if finding.closed:
                if known is not None:
                    said.append(self._close(key, finding.summary))
            elif known is None or self._is_outdated(known.opened, finding):
                if known is not None:
                    reason = f"found again at epoch {self._tracker.epoch}, advice {finding.advice}"
                    said.append(self._close(key, reason))
                said.append(self._publish(guarded, finding, now_s))
            elif now_s - known.updated_s >= _UPDATE_EVERY_S:
                self._open[key] = replace(known, updated_s=now_s)
                said.append(
                    IncidentUpdated(
                        id=known.opened.id,
                        confidence=finding.confidence,
                        summary=finding.summary,
                        evidence=dict(finding.evidence),
                    )
                )
        return said

    def _is_outdated(self, opened: IncidentOpened, finding: Finding) -> bool:
        """Whether a finding says more than the open incident: a new epoch, or more advice."""
        grown = _ADVICE.index(finding.advice) > _ADVICE.index(opened.advice)
        return opened.epoch < self._tracker.epoch or grown

    def _publish(self, guarded: Guarded, finding: Finding, now_s: float) -> IncidentOpened:
        self._count += 1
        membership = self.membership
        slot = (
            None
            if membership is None or not finding.machine
            else membership.slot_of_machine(finding.machine)
        )
        opened = IncidentOpened(
            id=f"i-{self._count:04d}",
            kind=finding.kind,
            machine=finding.machine,
            rank=finding.rank,
            slot=slot,
            epoch=self._tracker.epoch,
            confidence=finding.confidence,
            summary=finding.summary,
            evidence=dict(finding.evidence),
            detector=guarded.name,
            detector_version=guarded.version,
            mode=guarded.mode,
            advice=finding.advice,
            link=finding.link,
        )
        self._open[key_of(opened)] = _Open(opened, now_s)
        return opened

    def _close(self, key: _Key, reason: str) -> IncidentClosed:
        return IncidentClosed(id=self._open.pop(key).opened.id, reason=reason)

    def _close_left(self, membership: Membership) -> list[Frozen]:
        said: list[Frozen] = []
        waiting = {o.machine for o in self.incidents if o.slot is None}
        for key, one in list(self._open.items()):
            machine, link = one.opened.machine, one.opened.link
            # What was announced about a standby stays true wherever others sit.
            held = machine is not None and not (one.opened.kind == "notice" and key[1] in waiting)
            if held and membership.slot_of_machine(machine or "") is None:
                said.append(
                    self._close(key, f"{machine} holds no slot since epoch {membership.epoch}")
                )
            elif link is not None and one.opened.epoch < membership.epoch:
                said.append(self._close(key, f"its ends may have moved at {membership.epoch}"))
        return said

    def _close_deaths(self, back: set[str], membership: Membership) -> list[Frozen]:
        """A machine that was started over took its own slot again."""
        return [
            self._close(key, f"{one.opened.machine} is back since epoch {membership.epoch}")
            for key, one in list(self._open.items())
            if (one.opened.machine or "") in back
            and one.opened.epoch < membership.epoch
            and _is_death(one.opened)
        ]

    def _close_all(self, reason: str) -> list[Frozen]:
        return [self._close(key, reason) for key in list(self._open)]

    def _quarantines(self) -> list[Frozen]:
        said: list[Frozen] = []
        for guarded in self._detectors:
            if guarded.quarantined and guarded.name not in self._told:
                self._told.add(guarded.name)
                reason = guarded.quarantined
                said.append(DetectorQuarantined(detector=guarded.name, reason=reason))
                keys = [k for k, o in self._open.items() if o.opened.detector == guarded.name]
                said += [self._close(k, f"{guarded.name} is quarantined") for k in keys]
        return said


def _is_death(opened: IncidentOpened) -> bool:
    return opened.kind == "machine_failed" or opened.advice == "recover"


def key_of(opened: IncidentOpened) -> _Key:
    """What may be open once at a time."""
    return opened.kind, opened.machine, opened.mode, opened.link
