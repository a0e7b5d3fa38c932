"""Facts of the planner: the phases of a migration, and the life of the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from trainmover.job.plan import Crossings, Forecast, MigrationKind, Move, Plan
from trainmover.job.topology import Frozen, Membership

__all__ = [
    "FailureCode",
    "JobFailed",
    "JobFinished",
    "JobFormed",
    "JobHeld",
    "MigrationAborted",
    "MigrationApproved",
    "MigrationCommitted",
    "MigrationFailed",
    "MigrationPreparing",
    "MigrationProposed",
    "MigrationReady",
    "MigrationRejected",
    "MigrationSwitching",
]


FailureCode = Literal["failed", "exhausted", "program"]


class JobFormed(Frozen):
    """Enough machines registered; the first membership exists.

    Attributes:
        membership: Who fills which slot, and the order of the ring.
        standbys: Machines without a slot.
        crossings: Why the ring has that order; None where no machine says where it is.
    """

    membership: Membership
    standbys: tuple[str, ...] = ()
    crossings: Crossings | None = None


class JobHeld(Frozen):
    """The job waits in ``recovering``: a slot has no machine and no standby is left."""

    slots: tuple[int, ...]
    reason: str


class JobFinished(Frozen):
    """Every slot's program ended normally."""

    epoch: int
    step: int


class JobFailed(Frozen):
    """The job cannot go on.

    Attributes:
        code: ``exhausted`` when only machines are missing, ``program`` when the program itself is
            at fault, else ``failed``.
    """

    reason: str
    next_step: str
    code: FailureCode = "failed"


class _OfMigration(Frozen):
    """What every phase says.

    Attributes:
        slot: The first slot that changes hands.
        leaver: The machine in it.
        moves: All slots that change hands; without joiners until a plan names them.
    """

    migration: str
    kind: MigrationKind
    slot: int = Field(ge=0)
    leaver: str
    cause: str
    moves: tuple[Move, ...] = ()


class MigrationProposed(_OfMigration):
    """Somebody (an incident, an operator) asks that ``leaver`` leave ``slot``.

    Attributes:
        forecast: What a move that policy wants is expected to cost and to save.
    """

    incident: str | None = None
    requested_by: str = "policy"
    forecast: Forecast | None = None


class MigrationApproved(_OfMigration):
    """Policy or an operator agreed; here is the plan.

    Attributes:
        approved_by: ``policy``, or the operator who asked for the move or approved it.
        approval: Why the operator approved it, if they said so.
    """

    joiner: str
    plan: Plan
    approved_by: str = "policy"
    approval: str = ""


class MigrationRejected(_OfMigration):
    """It will not happen; ``code`` and ``reason`` say why, ``rejected_by`` who decided."""

    code: str
    reason: str
    rejected_by: str = "policy"


class MigrationPreparing(_OfMigration):
    """Commands are out; phase 1 runs beside training."""

    joiner: str
    epoch: int


class MigrationReady(_OfMigration):
    """Every rank reported phase 1 complete."""

    joiner: str
    epoch: int


class MigrationSwitching(_OfMigration):
    """The ranks voted; phase 2 runs."""

    joiner: str
    epoch: int


class MigrationCommitted(_OfMigration):
    """The first vote of the new epoch passed at every rank."""

    joiner: str
    epoch: int
    step: int
    membership: Membership
    phases_s: Mapping[str, float] = Field(default_factory=dict)


class MigrationAborted(_OfMigration):
    """Given up before the switch; training never noticed (INV-LEAVER-WHOLE).

    Attributes:
        aborted_by: ``planner``, or the operator who asked for it.
    """

    reason: str
    aborted_by: str = "planner"


class MigrationFailed(_OfMigration):
    """The switch broke; the survivors recover with another plan."""

    reason: str
