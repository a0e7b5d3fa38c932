"""What the leader of a pool knows, what comes into its core, and what it wants done. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from trainmover.events.machine import PoolMachineSeen
from trainmover.policy.sharing import Sharing
from trainmover.protocol.requests import PoolStatus, StandbyRole, StandbysStatus

__all__ = [
    "AGAIN_S",
    "ARRIVE_S",
    "FORGET_S",
    "FRESH_S",
    "HOLD_S",
    "KNOWN_S",
    "SOURCE",
    "Ask",
    "Assigning",
    "Command",
    "Declared",
    "Event",
    "JobSeen",
    "JobUnknown",
    "Leading",
    "Machine",
    "MachineSeen",
    "Promise",
    "Recall",
    "Recalling",
    "Released",
    "Reply",
    "State",
    "Tick",
    "View",
]

SOURCE: Final = "/pool"

HOLD_S: Final = 2.0
"""How late what a machine says may be heard: an assignment counts for so much longer."""

FRESH_S: Final = 4.0
"""A machine is assigned only within so long after its latest word: the order has to reach it."""

ARRIVE_S: Final = 60.0
"""A machine that serves a job is expected to register there within so long."""

KNOWN_S: Final = 10.0
"""For so long a planner's answer says how its job stands."""

AGAIN_S: Final = 15.0
"""A recall that was refused, or that nothing followed from, is asked for again after so long."""

FORGET_S: Final = 600.0
"""A machine that said nothing for so long, and that no planner knows, was never there."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of the pool, by its latest word.

    Attributes:
        seen: What it said.
        at_s: When it said so at the latest, on our clock: when that was stored.
        since_s: Since when it does that, on our clock.
        arrived: Whether the planner of the job that it serves knew it since.
    """

    seen: PoolMachineSeen
    at_s: float
    since_s: float
    arrived: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.seen.machine


@dataclass(frozen=True, slots=True)
class View:
    """How a job stands, by its planner's answer at ``at_s``."""

    status: StandbysStatus
    at_s: float


@dataclass(frozen=True, slots=True)
class Promise:
    """An assignment that was sent, and that the machine may take until ``until_s``.

    Attributes:
        run: The run of the machine that it was sent to.
        offer: The offer that it answers.
    """

    job: str
    run: str
    offer: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Recall:
    """A planner was asked to let a machine go.

    Attributes:
        until_s: When it may be asked again, if the machine still serves that job.
        refused: Whether the planner said no, and why.
        needed_by: The job that waits for a machine, if one does.
        ghost: The machine is not in that job at all, and its planner does not know.
    """

    job: str
    until_s: float
    refused: str = ""
    needed_by: str | None = None
    ghost: bool = False


def _none() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class State:
    """Everything the core decides by.

    Attributes:
        term: Of this leader.
        sharing: What is declared; None before it was read.
        problems: What is wrong with a file that was read since.
        machines: By name, those that were heard.
        views: By job, what its planner said.
        promises: By machine, the assignment under way.
        recalls: By machine, the recall under way, or refused a moment ago.
        many_s: By job, since when it has more standbys than it should.
        heard_s: When the latest word of any machine was said.
        told: (machine, run) of each that was told who leads.
    """

    pool: str
    term: int = 0
    sharing: Sharing | None = None
    problems: tuple[str, ...] = ()
    machines: Mapping[str, Machine] = field(default_factory=_none)
    views: Mapping[str, View] = field(default_factory=_none)
    promises: Mapping[str, Promise] = field(default_factory=_none)
    recalls: Mapping[str, Recall] = field(default_factory=_none)
    many_s: Mapping[str, float] = field(default_factory=_none)
    heard_s: float = 0.0
    told: frozenset[tuple[str, str]] = frozenset()

    def view_of(self, job: str, now_s: float) -> StandbysStatus | None:
        """How a job stands; None where its planner did not say so lately."""
        view = self.views.get(job)
        return None if view is None or now_s - view.at_s > KNOWN_S else view.status

    def is_ghost(self, machine: Machine, job: str) -> bool:
        """Whether a planner counts on a machine that was not in its job when it said so.

        The process of the machine started over, and nobody told that planner.
        """
        view = self.views.get(job)
        if view is None or machine.seen.job == job:
            return False
        if view.status.machines.get(machine.name) not in ("ready", "warming"):
            return False
        return machine.since_s + HOLD_S <= view.at_s <= machine.at_s

    def role_of(self, machine: Machine) -> StandbyRole | None:
        """What a machine is in the job that it serves, by the latest answer, however old."""
        view = self.views.get(machine.seen.job or "")
        return None if view is None else view.status.machines.get(machine.name)


# -- what comes in -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """A machine said where it is, ``age_s`` ago."""

    fact: PoolMachineSeen
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A planner answered to what it was asked ``age_s`` ago."""

    job: str
    status: StandbysStatus
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobUnknown:
    """A planner does not answer."""

    job: str


@dataclass(frozen=True, slots=True)
class Declared:
    """A file was read; where it is wrong, what was in force before stays so."""

    sharing: Sharing | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Released:
    """What a planner answered to a recall; ``refusal`` is empty where it let the machine go."""

    machine: str
    job: str
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody wants to know how the pool stands."""

    id: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = MachineSeen | JobSeen | JobUnknown | Declared | Released | Ask | Tick


# -- what is to be done ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leading:
    """Tell a machine that a leader of this term leads."""

    machine: str


@dataclass(frozen=True, slots=True)
class Assigning:
    """Ask a machine to serve a job, and say so."""

    machine: str
    job: str
    run: str
    offer: int
    reason: str


@dataclass(frozen=True, slots=True)
class Recalling:
    """Ask a job's planner to let a machine go, and say so."""

    machine: str
    job: str
    needed_by: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer who asked."""

    id: str
    status: PoolStatus


Command = Leading | Assigning | Recalling | Reply
