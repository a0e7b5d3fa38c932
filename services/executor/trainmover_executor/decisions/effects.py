"""What can happen to a rank (events), and what it can do about it (actions)."""

from __future__ import annotations

from dataclasses import dataclass

from trainmover.commands import AbortMigration, BreakStep, Prepare, Recover, SaveCheckpoint
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen

__all__ = [
    "Abort",
    "Action",
    "Agreed",
    "AnswerCalls",
    "BetweenBroke",
    "BetweenPassed",
    "Break",
    "Broke",
    "CancelPhaseOne",
    "CouldNotJoin",
    "DropParked",
    "Event",
    "FirstVote",
    "HandedOut",
    "Heard",
    "Joined",
    "Joins",
    "LeadFailed",
    "LeadPaused",
    "Led",
    "Left",
    "NotParked",
    "Noted",
    "Park",
    "Parked",
    "Publish",
    "Recovers",
    "SaveTaken",
    "Starts",
    "Stopped",
    "Switched",
    "VoteBegun",
    "VoteBroke",
    "VotePassed",
    "Warm",
]

# -- from the control thread ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heard:
    """A command came.

    Attributes:
        command: The command.
    """

    command: Prepare | Recover | BreakStep | SaveCheckpoint


@dataclass(frozen=True, slots=True)
class Abort:
    """A plan is called off.

    Attributes:
        command: Which and why.
        called: Whether the leaver has called this joiner: then the leaver decides.
    """

    command: AbortMigration
    called: bool = False


@dataclass(frozen=True, slots=True)
class Parked:
    """Links for a plan are dialled and parked."""

    plan: Plan
    took_s: float


@dataclass(frozen=True, slots=True)
class NotParked:
    """They are not."""

    plan: Plan
    reason: str


@dataclass(frozen=True, slots=True)
class Broke:
    """Communication broke.

    Attributes:
        reason: What broke.
        epoch: The epoch that it broke; nothing happens once that is over. None, for the training
            thread and those it waits for, is the epoch of now.
    """

    reason: str
    epoch: int | None = None


# -- from the training thread --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Starts:
    """The job goes on from a checkpoint of so many steps."""

    committed: int


@dataclass(frozen=True, slots=True)
class FirstVote:
    """The program has told what it trains: whether its first vote is at the end of the body."""

    at_end: bool


@dataclass(frozen=True, slots=True)
class Warm:
    """A standby's shadow iterations are done."""


@dataclass(frozen=True, slots=True)
class Joins:
    """A standby leaves its epoch for the plan's."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class CouldNotJoin:
    """It met an error there.

    Attributes:
        plan: The plan.
        reason: The error.
        links_broke: It was a link to another rank.
    """

    plan: Plan
    reason: str
    links_broke: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """It has the state after ``committed`` steps and ``between`` pieces of work between steps.

    Attributes:
        at_end: Whether the next vote is at the end of the body.
    """

    plan: Plan
    committed: int
    between: int
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class Led:
    """The leaver has brought its joiner up to date."""

    plan: Plan
    took_s: float


@dataclass(frozen=True, slots=True)
class LeadFailed:
    """It cannot."""

    plan: Plan
    reason: str


@dataclass(frozen=True, slots=True)
class LeadPaused:
    """The leaver brings its joiner up to date anew, in the next call of ``session.steps``."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class VoteBegun:
    """This rank's gradients are whole.

    Attributes:
        may_switch: Whether it is fit for a switch after this step.
    """

    may_switch: bool


@dataclass(frozen=True, slots=True)
class VotePassed:
    """The step is committed everywhere.

    Attributes:
        lowest: The lowest epoch that a rank is prepared for.
        highest: The highest one.
        at_end: Whether a rank asked for the next vote to be at the end of the body.
    """

    lowest: int
    highest: int
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class VoteBroke:
    """Links broke before everybody had answered.

    Attributes:
        reason: How.
        cast: Whether this rank's own vote was out: then it may have passed elsewhere.
    """

    reason: str
    cast: bool


@dataclass(frozen=True, slots=True)
class BetweenPassed:
    """Work between steps is complete everywhere."""


@dataclass(frozen=True, slots=True)
class BetweenBroke:
    """Links broke before everybody had said so."""

    reason: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Somebody took note of the confirmed plan."""


@dataclass(frozen=True, slots=True)
class Switched:
    """A stayer replaced its links to the joiners."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Left:
    """A leaver handed over."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Stopped:
    """The broken step is left; the training thread waits for a recovery plan."""


@dataclass(frozen=True, slots=True)
class SaveTaken:
    """The order to save is being carried out."""


@dataclass(frozen=True, slots=True)
class Recovers:
    """A survivor leaves its epoch for the plan's."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the job completed, as the one knows that knows most.

    Attributes:
        at_end: Whether any rank has its next vote at the end of the body.
    """

    plan: Plan
    committed: int
    between: int
    at_end: bool = False


@dataclass(frozen=True, slots=True)
class HandedOut:
    """Joiners have what this rank held for them."""

    plan: Plan


Event = (
    Heard | Abort | Parked | NotParked | Broke
    | FirstVote | Starts | Warm | Joins | CouldNotJoin | Joined | Led | LeadFailed | LeadPaused
    | VoteBegun | VotePassed | VoteBroke | BetweenPassed | BetweenBroke | Noted
    | Switched | Left | Stopped | SaveTaken | Recovers | Agreed | HandedOut
)  # fmt: skip


# -- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Break:
    """End the links of an epoch, and tell the neighbours."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Park:
    """Dial the links that ``plan`` replaces, and park them; a leaver only its joiner's."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class AnswerCalls:
    """Say ``Parked`` of ``plan`` once this standby answers calls: it dials nobody."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class CancelPhaseOne:
    """Stop dialling for an epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class DropParked:
    """Close what was parked for an epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Publish:
    """State a fact."""

    fact: Frozen


Action = Break | Park | AnswerCalls | CancelPhaseOne | DropParked | Publish
