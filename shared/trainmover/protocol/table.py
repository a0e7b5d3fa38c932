"""Phases of a migration and the one table of transitions between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from trainmover.errors import ProtocolError
from trainmover.job.plan import MigrationKind
from trainmover.protocol.chart import Arrow, Chart

__all__ = [
    "OPEN",
    "TABLE",
    "Deadlines",
    "Phase",
    "Row",
    "Signal",
    "allows",
    "mermaid",
    "next_phase",
]


class Phase(StrEnum):
    """Where a migration is; the same words are the facts ``migration.<phase>``."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    PREPARING = "preparing"
    READY = "ready"
    SWITCHING = "switching"
    COMMITTED = "committed"
    REJECTED = "rejected"
    ABORTED = "aborted"
    FAILED = "failed"


class Signal(StrEnum):
    """What moves a migration from one phase to the next."""

    APPROVE = "approve"
    REJECT = "reject"
    BEGIN = "begin"
    PREPARED = "every rank prepared"
    SWITCHED = "a rank switched"
    COMMITTED = "every rank committed"
    ABORT = "abort"
    FAIL = "fail"


OPEN: Final = frozenset(
    {Phase.PROPOSED, Phase.APPROVED, Phase.PREPARING, Phase.READY, Phase.SWITCHING}
)
"""Phases that something must still follow."""

_BOTH: Final[frozenset[MigrationKind]] = frozenset({"planned", "failure"})
_PLANNED: Final[frozenset[MigrationKind]] = frozenset({"planned"})
_FAILURE: Final[frozenset[MigrationKind]] = frozenset({"failure"})


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Attributes:
        source: Phase before.
        signal: What happens.
        target: Phase after.
        kinds: Kinds of migration that may take it.
    """

    source: Phase
    signal: Signal
    target: Phase
    kinds: frozenset[MigrationKind] = _BOTH


TABLE: Final = (
    Row(Phase.PROPOSED, Signal.APPROVE, Phase.APPROVED),
    Row(Phase.PROPOSED, Signal.REJECT, Phase.REJECTED),
    Row(Phase.PROPOSED, Signal.ABORT, Phase.ABORTED),
    Row(Phase.APPROVED, Signal.BEGIN, Phase.PREPARING),
    Row(Phase.APPROVED, Signal.ABORT, Phase.ABORTED),
    Row(Phase.PREPARING, Signal.PREPARED, Phase.READY),
    Row(Phase.PREPARING, Signal.SWITCHED, Phase.SWITCHING),
    Row(Phase.PREPARING, Signal.ABORT, Phase.ABORTED, _PLANNED),
    # A broken step is not as it was: what a recovery leaves behind is never a mere abort.
    Row(Phase.PREPARING, Signal.FAIL, Phase.FAILED, _FAILURE),
    Row(Phase.READY, Signal.SWITCHED, Phase.SWITCHING),
    Row(Phase.READY, Signal.ABORT, Phase.ABORTED, _PLANNED),
    Row(Phase.READY, Signal.FAIL, Phase.FAILED, _FAILURE),
    Row(Phase.SWITCHING, Signal.COMMITTED, Phase.COMMITTED),
    Row(Phase.SWITCHING, Signal.FAIL, Phase.FAILED),
    # The ranks decide when: an abort that lost against their vote is taken back.
    Row(Phase.ABORTED, Signal.SWITCHED, Phase.SWITCHING, _PLANNED),
)

_NEXT: Final = MappingProxyType(
    {(kind, row.source, row.signal): row.target for row in TABLE for kind in row.kinds}
)
_AIM: Final = MappingProxyType(
    {row.signal: row.target for row in TABLE if row.source is not Phase.ABORTED}
)


def next_phase(migration: str, *, kind: MigrationKind, phase: Phase, signal: Signal) -> Phase:
    """The phase after ``signal``.

    Raises:
        ProtocolError: The table has no such row; the message names both phases.
    """
    target = _NEXT.get((kind, phase, signal))
    if target is None:
        raise ProtocolError(
            f"{kind} migration {migration} cannot go from {phase} to {_AIM[signal]} "
            f"({signal}). Look at its facts with `trainmover migration show {migration}`."
        )
    return target


def allows(*, kind: MigrationKind, phase: Phase, signal: Signal) -> bool:
    """Whether the table has a row for it."""
    return (kind, phase, signal) in _NEXT


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a phase may last, in seconds.

    Attributes:
        prepare_s: A planned migration, from the plan to the last rank prepared. Long: the joiner's
            state is brought up to date meanwhile, at a fraction of the link's speed.
        ready_s: A planned migration whose ranks are all prepared but do not vote. Long: the vote
            comes with the end of a step, and nothing is lost by waiting for a slow one.
        switch_s: From the first switched rank to the last; for a recovery from its plan on, or
            from when the last survivor was done with what it could not leave. Nothing bounds what
            follows until the commit, which holds a whole step, and an evaluation behind it:
            deaths are noticed by other means.
    """

    prepare_s: float = 600.0
    ready_s: float = 600.0
    switch_s: float = 120.0

    def of(self, kind: MigrationKind, phase: Phase) -> float | None:
        """Seconds that ``phase`` may last; None where nothing bounds it."""
        if phase is Phase.SWITCHING:
            return self.switch_s
        if phase is Phase.PREPARING:
            return self.prepare_s if kind == "planned" else self.switch_s
        if phase is Phase.READY:
            return self.ready_s if kind == "planned" else self.switch_s
        return None


def mermaid(kind: MigrationKind) -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    rows = [row for row in TABLE if kind in row.kinds]
    arrows = tuple(Arrow(row.source, row.target, row.signal) for row in rows)
    return Chart(f"a {kind} migration", start=Phase.PROPOSED, arrows=arrows).mermaid()
