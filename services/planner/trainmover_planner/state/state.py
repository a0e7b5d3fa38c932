"""The planner's whole state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from trainmover.events.executor import CheckpointSaved
from trainmover.events.incident import IncidentOpened
from trainmover.events.operator import AutomationMode
from trainmover.job.redundancy import Redundancy
from trainmover.job.spans import Spans
from trainmover.job.tables import Table
from trainmover.job.topology import Membership
from trainmover.policy.model import Policy
from trainmover.protocol.migration import Migration, RankReport
from trainmover.protocol.table import Phase
from trainmover_planner.state.effects import PublishFact
from trainmover_planner.state.inventory import Incarnation, Inventory
from trainmover_planner.state.lending import Lending

__all__ = [
    "Breaks",
    "Control",
    "Crash",
    "Crashes",
    "Death",
    "Declared",
    "Drain",
    "Exchange",
    "Holding",
    "JobPhase",
    "Lately",
    "Moved",
    "Shape",
    "State",
    "slot_of",
]

JobPhase = Literal["forming", "running", "held", "finished", "failed"]
SOURCE = "/planner"


@dataclass(frozen=True, slots=True)
class Declared:
    """Where the policy in force is from, and the one that only says what it would do.

    Attributes:
        source: A file, or the command line; empty while nobody declared anything.
        shadow: The policy that moves nobody; None where there is none.
        shadow_source: Its file.
        problems: What is wrong with a file that was read since, and is not in force.
        facts: How many facts about policies there were, for their ids.
    """

    source: str = ""
    shadow: Policy | None = None
    shadow_source: str = ""
    problems: tuple[str, ...] = ()
    facts: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """A machine that policy moved by itself, within the hour.

    Attributes:
        at_s: When it was decided, in seconds.
        labels: The machine's labels.
    """

    at_s: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A machine that was exchanged to rebalance.

    Attributes:
        at_s: When it was decided, in seconds.
        slot: Its slot.
        late: How late it was, as a share of a step.
    """

    at_s: float
    slot: int
    late: float


@dataclass(frozen=True, slots=True)
class Death:
    """Why and when an incarnation was given up."""

    at_s: float
    reason: str
    incident: str | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """Machines that an operator wants out of their slots, and kept out.

    Attributes:
        number: Its number in the job.
        deadline_s: By when, in seconds since 1970; None: whenever.
        paused: Whether no further wave begins.
        over: Whether it is finished or aborted.
    """

    number: int
    machines: tuple[str, ...]
    deadline_s: float | None
    reason: str
    requested_by: str
    paused: bool = False
    over: bool = False

    @property
    def id(self) -> str:
        """``d-0001``."""
        return f"d-{self.number:04d}"


@dataclass(frozen=True, slots=True)
class Control:
    """What operators asked for.

    Attributes:
        mode: What policy may do by itself.
        acts: Number of facts that operators caused, for their ids.
        pardoned: Incarnations that were let out of quarantine.
        drain: The latest drain.
    """

    mode: AutomationMode = "automatic"
    reason: str = ""
    requested_by: str = ""
    acts: int = 0
    pardoned: frozenset[Incarnation] = frozenset()
    drain: Drain | None = None


@dataclass(frozen=True, slots=True)
class Crash:
    """A worker process that ended by itself.

    Attributes:
        error: What it has in common with other crashes of the same bug; empty for no bug.
    """

    incarnation: Incarnation
    rank: int
    exit_code: int | None
    signal: int | None
    last_words: str
    at_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Crashes:
    """Worker processes that ended by themselves since the latest commit.

    Attributes:
        every: By incarnation and rank.
        incarnations: Incarnations in which a rank ended by the same error, by (rank, error).
        ranks: How many ranks ended by an error.
        again: The first crash that repeated another one of its rank on another machine.
        refused: The first that a session ended with an error about the program, at a member.
    """

    every: Table[tuple[Incarnation, int], Crash] = field(default_factory=Table)
    incarnations: Table[tuple[int, str], tuple[Incarnation, ...]] = field(default_factory=Table)
    ranks: Table[str, int] = field(default_factory=Table)
    again: Crash | None = None
    refused: Crash | None = None


@dataclass(frozen=True, slots=True)
class Breaks:
    """Ranks whose step broke at one epoch.

    Attributes:
        ranks: (machine, rank) of each.
        first_s: When the first of them was heard, in seconds.
        last_s: When the last was.
    """

    ranks: Table[tuple[str, int], None]
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class Holding:
    """What one rank says about its state.

    Attributes:
        replicas: The ranks that hold the same, itself included.
        kind: Where it is to survive.
        obstacle: Why it is no better kind.
    """

    replicas: Spans
    kind: Redundancy
    obstacle: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What all machines of a job that forms must have been told, and by whom it is known.

    Attributes:
        incarnation: The first machine that registered, in the incarnation that said so.
    """

    incarnation: Incarnation
    nnodes: tuple[int, int]
    ranks: int


@dataclass(frozen=True, slots=True)
class Lately:
    """What a policy counts and weighs. In one field: the state is copied field by field.

    Attributes:
        opened: Since when each open incident counts as open, in seconds.
        closed: By machine and kind, of those that closed a moment ago: since when each counted as
            open, and when it closed, in seconds.
        moved: Machines that policy moved by itself within an hour, oldest first.
        late: For each open incident that says more since, how late its machine is, as a share of a
            step.
        paces: How late machines were when the detector named them the slowest, as a share of a
            step, and when that was said, in seconds.
        exchanged: The latest exchanges to rebalance, oldest first.
        pauses: The latest planned moves whose pause was reported: migration, and the longest pause
            of a rank in seconds; oldest first.
        sizes: Bytes of parameters and optimizer state of each rank.
    """

    opened: Table[str, float] = field(default_factory=Table)
    closed: Table[tuple[str, str], tuple[float, float]] = field(default_factory=Table)
    moved: tuple[Moved, ...] = ()
    late: Table[str, float] = field(default_factory=Table)
    paces: Table[str, tuple[float, float]] = field(default_factory=Table)
    exchanged: tuple[Exchange, ...] = ()
    pauses: tuple[tuple[str, float], ...] = ()
    sizes: Table[int, int] = field(default_factory=Table)


def _none() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class State:
    """Everything the planner knows.

    What has an entry for each machine or rank is a ``Table``, which is not copied when it changes.

    Attributes:
        policy: What is declared about moves.
        declared: Where that is from.
        control: What operators asked for.
        lending: Which machines of pools may take part.
        membership: The latest committed membership.
        memberships: The latest memberships that were issued, by epoch.
        issued: The highest epoch ever issued or seen; the next one is higher.
        sequence: Number of migrations ever proposed.
        migrations: The open and the latest others, oldest first.
        open: Ids of those that are open, oldest first.
        incidents: Open incidents.
        lately: What a policy counts: ages of incidents, moves within an hour.
        traces: W3C trace headers of each incident.
        deaths: Incarnations that were given up, as far as they matter still.
        unsaid: Those among them that nobody was told of yet.
        fenced: When machines were ended on findings that are no evidence of death, within an hour.
        troubles: When something was wrong with a machine, within a day, in seconds.
        spent: Incarnations that had a slot, or could not take one: they are of no use any more.
        shape: What machines must have been told, before the job formed.
        arrived_s: When the latest machine of that shape registered.
        newcomers: Machines that registered and were not looked at yet.
        spare: Machines whose incarnation has no slot in the latest committed membership.
        cold: Those among them that were not told to be standbys yet.
        seen: Epochs at which a rank was seen, from the latest committed one on.
        broken: Who broke a step, by epoch; each rank of a machine at its latest epoch alone.
        holdings: What each rank says about its state.
        followers: For each rank that is or was followed, its follower and the incarnation it is in.
        finished: (machine, rank) of each rank whose program ended normally.
        early: Reports about migrations not heard of yet (only while facts are read again).
        unannounced: Facts that follow from what was read again, but were never published.
        told_break: Epochs at which all members were told to break their step.
        warm_epoch: Epoch of the membership that standbys were told last.
        held: Slots that no machine can fill at present.
        held_s: Since when the job is held.
        told_save: Epochs at which the survivors were asked to save a checkpoint.
        saved: What each (machine, rank) answered latest.
        crashes: Worker processes that ended by themselves since the latest commit.
        cooldown: Slot and time until which it is not moved automatically.
        said: (incident or incarnation, code) of what is said only once.
        attempts: Recovery plans since the latest commit.
        retry_s: When the recovery may be planned again, after one failed without a culprit.
        step: Completed steps of the furthest rank.
        step_s: What a step takes, to within a factor of two.
        due_s: When something is due although nothing happens, in seconds; None: never.
    """

    job: str
    policy: Policy = field(default_factory=Policy)
    declared: Declared = field(default_factory=Declared)
    phase: JobPhase = "forming"
    reason: str = ""
    control: Control = field(default_factory=Control)
    inventory: Inventory = field(default_factory=Inventory)
    lending: Lending = field(default_factory=Lending)
    membership: Membership | None = None
    memberships: Mapping[int, Membership] = field(default_factory=_none)
    issued: int = 0
    sequence: int = 0
    migrations: Mapping[str, Migration] = field(default_factory=_none)
    open: tuple[str, ...] = ()
    incidents: Table[str, IncidentOpened] = field(default_factory=Table)
    lately: Lately = field(default_factory=Lately)
    traces: Table[str, Mapping[str, str]] = field(default_factory=Table)
    deaths: Table[Incarnation, Death] = field(default_factory=Table)
    unsaid: tuple[Incarnation, ...] = ()
    fenced: tuple[float, ...] = ()
    troubles: Table[str, tuple[float, ...]] = field(default_factory=Table)
    spent: Table[Incarnation, None] = field(default_factory=Table)
    shape: Shape | None = None
    arrived_s: float = 0.0
    newcomers: Table[str, None] = field(default_factory=Table)
    spare: Table[str, None] = field(default_factory=Table)
    cold: Table[str, None] = field(default_factory=Table)
    seen: frozenset[int] = frozenset()
    broken: Mapping[int, Breaks] = field(default_factory=_none)
    holdings: Table[int, Holding] = field(default_factory=Table)
    followers: Table[int, tuple[int, Incarnation]] = field(default_factory=Table)
    finished: Table[tuple[str, int], None] = field(default_factory=Table)
    early: Table[tuple[str, str, str, int], RankReport] = field(default_factory=Table)
    unannounced: Mapping[str, PublishFact] = field(default_factory=_none)
    told_break: frozenset[int] = frozenset()
    warm_epoch: int = 0
    held: tuple[int, ...] = ()
    held_s: float | None = None
    told_save: frozenset[int] = frozenset()
    saved: Table[tuple[str, int], CheckpointSaved] = field(default_factory=Table)
    crashes: Crashes = field(default_factory=Crashes)
    cooldown: Mapping[int, float] = field(default_factory=_none)
    said: Table[tuple[str, str], None] = field(default_factory=Table)
    attempts: int = 0
    retry_s: float | None = None
    step: int = 0
    step_s: float = 0.0
    due_s: float | None = None

    @property
    def regroup_s(self) -> float:
        """Seconds that a break without a culprit is left alone, longer from the third plan on.

        Plans in quick succession would use up all attempts before a detector that starts over has
        found out who is dead.
        """
        doublings = min(max(self.attempts - 2, 0), 4)
        return self.policy.regroup_s * 2.0**doublings

    @property
    def over(self) -> bool:
        """Whether the job ended."""
        return self.phase in ("finished", "failed")

    @property
    def flight(self) -> Migration | None:
        """The migration under way; there is at most one. Proposals that wait do not count."""
        for id in reversed(self.open):
            if self.migrations[id].phase is not Phase.PROPOSED:
                return self.migrations[id]
        return None

    @property
    def waiting(self) -> list[Migration]:
        """Proposals that wait for an operator."""
        every = (self.migrations[id] for id in self.open)
        return [one for one in every if one.phase is Phase.PROPOSED]

    @property
    def current_memberships(self) -> list[Membership]:
        """The committed membership, and that of the plan under way."""
        if self.membership is None:
            return []
        flight = self.flight
        if flight is None or flight.plan is None:
            return [self.membership]
        return [self.membership, flight.plan.membership]

    def dead_slots(self, membership: Membership) -> list[int]:
        """Slots of ``membership`` whose machine was given up, in order."""
        slots = (slot_of(membership, incarnation) for incarnation in self.deaths)
        return sorted(slot for slot in slots if slot is not None)


def slot_of(membership: Membership, incarnation: Incarnation) -> int | None:
    """The slot that an incarnation fills, or None."""
    slot = membership.slot_of_machine(incarnation[0])
    if slot is None or membership.members[slot].generation != incarnation[1]:
        return None
    return slot
