"""What operators and pools may ask the planner besides a migration, and what they are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from trainmover.events.machine import PoolPhase
from trainmover.events.operator import AutomationMode
from trainmover.job.plan import Move
from trainmover.job.topology import Frozen, Membership
from trainmover.policy.model import Decision, Policy

__all__ = [
    "POOL_LEASE",
    "AbortRequest",
    "ApproveRequest",
    "AutomationRequest",
    "AutomationStatus",
    "Check",
    "Considered",
    "DrainRequest",
    "DrainStatus",
    "Explanation",
    "JobStatus",
    "MachineStatus",
    "MigrationStatus",
    "PolicyRequest",
    "PolicyStatus",
    "PoolJobStatus",
    "PoolMachineStatus",
    "PoolStatus",
    "PoolStatusRequest",
    "QuarantineRequest",
    "RejectRequest",
    "ReleaseRequest",
    "StandbyRole",
    "StandbysRequest",
    "StandbysStatus",
    "StatusRequest",
    "UnquarantineRequest",
]


class StatusRequest(Frozen):
    """Verb ``status``: how does the job stand?"""


class _Operate(Frozen):
    """What every request of an operator says.

    Attributes:
        reason: Why; kept with the fact that follows.
        requested_by: Who.
        dry_run: Answer what would happen, and change nothing.
    """

    reason: str = "operator request"
    requested_by: str = "operator"
    dry_run: bool = False


class AbortRequest(_Operate):
    """Verb ``abort``: give a planned migration up before it switches."""

    migration: str


class ApproveRequest(_Operate):
    """Verb ``approve``: carry out a move that policy proposed.

    Attributes:
        to: The standbys that take over; where none is named the planner chooses.
    """

    migration: str
    to: tuple[str, ...] = ()


class RejectRequest(_Operate):
    """Verb ``reject``: a move that policy proposed shall not happen."""

    migration: str


class AutomationRequest(_Operate):
    """Verb ``automation``: what policy may do by itself from now on."""

    mode: AutomationMode


class QuarantineRequest(_Operate):
    """Verb ``quarantine``: never give this machine a slot."""

    machine: str


class UnquarantineRequest(_Operate):
    """Verb ``unquarantine``: let a machine out of quarantine."""

    machine: str


class DrainRequest(_Operate):
    """Verb ``drain``: get machines out of their slots, wave after wave, and keep them out.

    Attributes:
        action: ``start``, or what is to become of the drain under way.
        machines: Who is to leave.
        labels: Who has all of these labels is to leave, too.
        deadline_s: Within how many seconds; None: whenever.
    """

    action: Literal["start", "pause", "resume", "abort"] = "start"
    machines: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class DrainStatus(Frozen):
    """The drain under way.

    Attributes:
        left: Machines of it that hold a slot still.
        deadline_at_s: By when, in seconds since 1970.
        waits: What it waits for, in words for people.
    """

    drain: str
    machines: tuple[str, ...]
    left: tuple[str, ...]
    paused: bool
    deadline_at_s: float | None = None
    waits: str = ""
    reason: str = ""
    requested_by: str = ""


class PolicyRequest(Frozen):
    """Verb ``policy``: what is in force, and what it makes of an incident.

    Attributes:
        incident: An open incident that is to be explained; None: none.
    """

    incident: str | None = None


class Considered(Frozen):
    """A rule, and why it does or does not decide about an incident."""

    rule: str
    decides: bool
    why: str


class Check(Frozen):
    """Something that has to hold before an incident is acted on.

    Attributes:
        what: What it is: ``dwell``, ``votes``, ``budget``, ``reserve``, ...
        holds: Whether it does now.
        words: With its numbers, for people.
    """

    what: str
    holds: bool
    words: str


class Explanation(Frozen):
    """What policy makes of one open incident now.

    Attributes:
        decision: What becomes of it once all checks hold, automation taken into account.
        rule: The rule that decides; empty where none matches.
        mode: The mode of automation.
        rules: All rules down to the one that decides.
        would: What the shadow policy would decide; None where there is none.
    """

    incident: str
    machine: str
    summary: str
    decision: Decision
    rule: str
    mode: AutomationMode
    rules: tuple[Considered, ...]
    checks: tuple[Check, ...]
    would: Decision | None = None
    would_rule: str = ""


class PolicyStatus(Frozen):
    """The reply to ``policy``.

    Attributes:
        policy: What is in force.
        source: Where it is from.
        shadow: The policy that only says what it would do.
        problems: What is wrong with a file that was read since, and is not in force.
        explanation: Of the incident that was asked about.
    """

    ok: Literal[True] = True
    policy: Policy
    source: str
    shadow: Policy | None = None
    shadow_source: str = ""
    problems: tuple[str, ...] = ()
    explanation: Explanation | None = None


class AutomationStatus(Frozen):
    """What policy may do by itself, and who said so."""

    mode: AutomationMode = "automatic"
    reason: str = ""
    requested_by: str = ""


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
        migrations: Those that are open, and the latest of the others; facts tell of all.
        incidents: Ids of open incidents.
        redundancy: Where the state of the ranks would survive a machine, in one line for people;
            empty before the first step.
        unprotected: Ranks whose state would be lost with their machine; None where nobody said yet
            what ranks hold, and from planners that did not tell.
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
    unprotected: int | None = Field(default=None, ge=0)
    automation: AutomationStatus = Field(default_factory=AutomationStatus)
    drain: DrainStatus | None = None


POOL_LEASE: Final = "pool"
"""The service whose lease the leader of a pool holds."""

StandbyRole = Literal["slot", "promised", "ready", "warming", "quarantined", "gone"]
"""What a machine is in a job: it has a slot, an open plan gives it one, it could be given one, it
is about to be able to, an operator or policy keeps it out, or it is of no use in its present
incarnation."""


class StandbysRequest(Frozen):
    """Verb ``standbys``: how is the job provided with machines?

    Attributes:
        machines: Whose role is asked for.
    """

    machines: tuple[str, ...] = Field(default=(), max_length=65_536)


class StandbysStatus(Frozen):
    """The reply to ``standbys``.

    Attributes:
        phase: ``forming``, ``running``, ``held``, ``finished`` or ``failed``.
        missing: Slots that no machine can fill at present.
        standbys: Machines that may be given a slot and that no open plan gives one.
        ready: Those among them that could take some slot at once.
        machines: The role of each machine that was asked for and is known.
    """

    ok: Literal[True] = True
    phase: str
    missing: int = Field(default=0, ge=0)
    standbys: int = Field(default=0, ge=0)
    ready: int = Field(default=0, ge=0)
    machines: Mapping[str, StandbyRole] = Field(default_factory=dict)


class ReleaseRequest(Frozen):
    """Verb ``release``: let a standby go, for good in its present incarnation.

    Refused where the machine has a slot, or an open plan gives it one.

    Attributes:
        reason: Why; kept with the fact that follows.
        requested_by: Who.
        dry_run: Answer what would happen, and change nothing.
    """

    machine: str
    reason: str = "operator request"
    requested_by: str = "operator"
    dry_run: bool = False


class PoolStatusRequest(Frozen):
    """Verb ``status`` of a pool."""


class PoolMachineStatus(Frozen):
    """A machine of a pool.

    Attributes:
        phase: What it says that it does; ``silent`` where it says nothing any more.
        job: The job that it serves.
        role: What it is there, by that job's planner; None while that does not know it.
        for_s: Seconds since it began with that.
        words: What is under way with it, for people; empty where nothing is.
    """

    machine: str
    phase: PoolPhase | Literal["silent"]
    job: str | None = None
    role: StandbyRole | None = None
    for_s: float = 0.0
    words: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict)


class PoolJobStatus(Frozen):
    """A job that shares a pool.

    Attributes:
        phase: Of the job; ``unknown`` where its planner does not answer.
        machines: Machines of the pool that serve it.
        standbys: All that it has, its own ones included, and those that are about to come.
        missing: Slots that wait for a machine.
        words: What it waits for and why, for people; empty where it waits for nothing.
    """

    job: str
    phase: str
    priority: int
    wanted: int
    quota: int | None
    machines: int
    standbys: int
    missing: int = 0
    words: str = ""


class PoolStatus(Frozen):
    """The reply to ``status`` of a pool.

    Attributes:
        term: Of its leader.
        problems: What is wrong with a file that was read since, and is not in force.
    """

    ok: Literal[True] = True
    pool: str
    term: int
    machines: tuple[PoolMachineStatus, ...]
    jobs: tuple[PoolJobStatus, ...]
    problems: tuple[str, ...] = ()
