"""How good are findings, given what was really wrong? Precision, recall, culprits, delay; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainmover.detection.model import Finding

__all__ = ["Label", "Score", "TimedFinding", "score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a perfect detector would say.

    Attributes:
        kind: Kind of the finding.
        since_s: When the trouble began.
        machine: The culprit; None where nobody is to be named.
        link: The culprit connection.
        until_s: When it ended; infinite when it did not.
        since_step: Steps that were complete when it began.
        excuses: Kinds of findings that are not wrong while this lasts: a slow connection makes the
            whole job slower, too.
    """

    kind: str
    since_s: float
    machine: str | None = None
    link: tuple[int, int] | None = None
    until_s: float = float("inf")
    since_step: int = 0
    excuses: frozenset[str] = frozenset()

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        until_s = None if self.until_s == float("inf") else self.until_s
        return {
            "kind": self.kind,
            "since_s": self.since_s,
            "machine": self.machine,
            "link": self.link,
            "until_s": until_s,
            "since_step": self.since_step,
            "excuses": sorted(self.excuses),
        }

    @staticmethod
    def of(data: Mapping[str, Any]) -> Label:
        """What ``as_data`` made.

        Raises:
            KeyError: It has no kind or time.
        """
        link = data.get("link")
        until_s = data.get("until_s")
        return Label(
            kind=str(data["kind"]),
            since_s=float(data["since_s"]),
            machine=data.get("machine"),
            link=(int(link[0]), int(link[1])) if link else None,
            until_s=float("inf") if until_s is None else float(until_s),
            since_step=int(data.get("since_step", 0)),
            excuses=frozenset(data.get("excuses", ())),
        )


@dataclass(frozen=True, slots=True)
class TimedFinding:
    """An incident as a detector would open it.

    Attributes:
        at_s: When it was opened.
        step: Steps that the job had completed by then.
        finding: The first finding.
        detector: Who says so.
    """

    at_s: float
    step: int
    finding: Finding
    detector: str = ""

    def fits(self, label: Label) -> bool:
        """Whether it is about this trouble, whoever it names."""
        return self.finding.kind == label.kind and label.since_s <= self.at_s <= label.until_s + 60

    def names(self, label: Label) -> bool:
        """Whether it names the right culprit."""
        return self.finding.machine == label.machine and self.finding.link == label.link


@dataclass(slots=True)
class Score:
    """How findings of one kind, or of all, stand against the labels.

    Attributes:
        labels: Troubles that were there.
        found: Of them, those that were found.
        right: Of those, the ones whose culprit was named.
        findings: Findings that were made.
        true: Of them, those that name a trouble that was there.
        delays_s: From the beginning of each trouble to its finding, in seconds.
        steps: The same in steps, the one that was under way included.
    """

    labels: int = 0
    found: int = 0
    right: int = 0
    findings: int = 0
    true: int = 0
    delays_s: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    @property
    def precision(self) -> float:
        """Share of findings that are true; 1 when nothing was found."""
        return self.true / self.findings if self.findings else 1.0

    @property
    def recall(self) -> float:
        """Share of troubles that were found; 1 when there was none."""
        return self.found / self.labels if self.labels else 1.0

    @property
    def culprit_accuracy(self) -> float:
        """Share of the troubles found whose culprit was named."""
        return self.right / self.found if self.found else 1.0

    def steps_p95(self) -> float | None:
        """95th percentile of the steps to a finding."""
        return float(np.quantile(self.steps, 0.95)) if self.steps else None

    def as_data(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "labels": self.labels,
            "findings": self.findings,
            "precision": round(self.precision, 4),
            "recall": round(self.recall, 4),
            "culprit_accuracy": round(self.culprit_accuracy, 4),
            "steps_to_detect_p95": self.steps_p95(),
            "seconds_to_detect_p95": (
                round(float(np.quantile(self.delays_s, 0.95)), 3) if self.delays_s else None
            ),
        }

    def add(self, other: Score) -> None:
        """Count another run in."""
        self.labels += other.labels
        self.found += other.found
        self.right += other.right
        self.findings += other.findings
        self.true += other.true
        self.delays_s += other.delays_s
        self.steps += other.steps


def score(labels: Sequence[Label], findings: Iterable[TimedFinding]) -> dict[str, Score]:
    """Scores by kind of one run.

    A finding that a label excuses counts neither way.
    """
    kept = [one for one in findings if not _excused(one, labels)]
    kinds = {label.kind for label in labels} | {one.finding.kind for one in kept}
    found = {kind: Score() for kind in sorted(kinds)}
    for one in kept:
        mine = found[one.finding.kind]
        mine.findings += 1
        mine.true += any(one.fits(label) and one.names(label) for label in labels)
    for label in labels:
        mine = found[label.kind]
        mine.labels += 1
        fitting = [one for one in kept if one.fits(label)]
        if not fitting:
            continue
        mine.found += 1
        naming = [one for one in fitting if one.names(label)]
        mine.right += bool(naming)
        first = (naming or fitting)[0]
        mine.delays_s.append(first.at_s - label.since_s)
        mine.steps.append(max(1, first.step - label.since_step))
    return found


def _excused(one: TimedFinding, labels: Sequence[Label]) -> bool:
    return any(one.finding.kind in label.excuses and one.at_s >= label.since_s for label in labels)
