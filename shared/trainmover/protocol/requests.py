"""What operators may ask the planner besides a migration, and the snapshot it answers with."""

from __future__ import annotations

from collections.abc import Mapping

from trainmover.plan import Move
from trainmover.topology import Frozen, Membership

__all__ = [
    "AbortRequest",
    "JobStatus",
    "MachineStatus",
    "MigrationStatus",
    "StatusRequest",
]


class StatusRequest(Frozen):
    """Verb ``status``: how does the job stand?"""


class AbortRequest(Frozen):
    """Verb ``abort``: give a planned migration up before it switches."""

    migration: str
    reason: str = "operator request"


class MachineStatus(Frozen):
    """A machine as the planner sees it.

    Attributes:
        role: ``registered``, ``member``, ``standby``, ``joining``, ``lost``, ``released`` or
            ``quarantined``.
        slot: The slot it fills, or is about to fill.
        warming: Slots for which it started a process.
        ready: Slots it can take at once.
    """

    machine: str
    generation: int
    role: str
    slot: int | None = None
    warming: tuple[int, ...] = ()
    ready: tuple[int, ...] = ()
    labels: Mapping[str, str] = {}


class MigrationStatus(Frozen):
    """A migration as the planner sees it; times in seconds of its own clock.

    Attributes:
        slot: The first slot that changes hands; ``leaver`` and ``joiner`` go with it.
        moves: All slots that change hands.
    """

    migration: str
    kind: str
    phase: str
    slot: int
    leaver: str
    joiner: str
    moves: tuple[Move, ...] = ()
    epoch: int | None
    cause: str
    incident: str | None
    reason: str
    history: tuple[tuple[str, float], ...]


class JobStatus(Frozen):
    """The reply to ``status``.

    Attributes:
        phase: ``forming``, ``running``, ``held``, ``finished`` or ``failed``.
        epoch: Latest committed epoch; None before the job formed.
        step: Completed steps, as the furthest rank reported.
        incidents: Ids of open incidents.
        redundancy: Where the state of the ranks would survive a machine, in one line for people;
            empty before the first step.
    """

    job: str
    phase: str
    reason: str
    epoch: int | None
    step: int
    membership: Membership | None
    machines: tuple[MachineStatus, ...]
    standbys: tuple[str, ...]
    migrations: tuple[MigrationStatus, ...]
    incidents: tuple[str, ...]
    redundancy: str = ""
