"""What drives a migration, and what it answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainmover.commands import Command
from trainmover.events.executor import PlanCommitted, PlanFailed, PlanPrepared, PlanSwitched
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Membership

__all__ = [
    "Abort",
    "Approve",
    "Begin",
    "Effect",
    "Fail",
    "MigrationEvent",
    "Publish",
    "RankReport",
    "Reject",
    "Report",
    "Send",
    "SwitchSeen",
    "Tick",
    "Wait",
]

RankReport = PlanPrepared | PlanSwitched | PlanCommitted | PlanFailed


@dataclass(frozen=True, slots=True)
class Publish:
    """Make a fact known."""

    payload: Frozen


class Send(NamedTuple):
    """Queue a command for a machine; the same ``id`` is queued once."""

    machine: str
    command: Command
    id: str


Effect = Publish | Send


@dataclass(frozen=True, slots=True)
class Approve:
    """Policy or an operator agreed.

    Attributes:
        plan: What is to happen.
        before: The membership the plan starts from.
        by: Who agreed.
        why: Why, if an operator said so.
    """

    plan: Plan
    before: Membership
    by: str = "policy"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    """It will not happen."""

    code: str
    reason: str
    by: str = "policy"


@dataclass(frozen=True, slots=True)
class Begin:
    """Send the commands out."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one rank said about the plan."""

    fact: RankReport


@dataclass(frozen=True, slots=True)
class SwitchSeen:
    """A rank is known to be at the plan's epoch although its own report has not come."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Give it up before the switch."""

    reason: str
    by: str = "planner"


@dataclass(frozen=True, slots=True)
class Fail:
    """The switch broke, or another plan takes its place."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is late before a time: ranks are in the middle of what cannot be interrupted."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


MigrationEvent = Approve | Reject | Begin | Report | SwitchSeen | Abort | Fail | Wait | Tick
