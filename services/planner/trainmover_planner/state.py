"""The planner's whole state, its settings, what comes in and what goes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from trainmover.commands import Command as MachineCommand
from trainmover.commands import Stop
from trainmover.events.executor import CheckpointSaved
from trainmover.events.incident import IncidentOpened
from trainmover.events.operator import AutomationMode
from trainmover.policies import OnWorkerCrash, WhenExhausted
from trainmover.protocol.migration import Migration, RankReport
from trainmover.protocol.table import Deadlines, Phase
from trainmover.redundancy import Redundancy
from trainmover.topology import Frozen, Membership
from trainmover_planner.chart import JOB
from trainmover_planner.inventory import Inventory, Life, life_of

__all__ = [
    "Command",
    "Control",
    "Crash",
    "Death",
    "Event",
    "Fact",
    "JobPhase",
    "PublishFact",
    "Reply",
    "Request",
    "SaveJob",
    "SaveMigration",
    "SendCommand",
    "Settings",
    "State",
    "Tick",
    "Turn",
]

JobPhase = Literal["forming", "running", "held", "finished", "failed"]
SOURCE = "/planner"


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator can tune; durations in seconds.

    Attributes:
        automation: What policy may do about stragglers, until an operator says otherwise.
        form_quiet_s: The job forms when no machine registered for this long.
        cooldown_s: Pause between automatic moves of the same slot.
        keep_reserve: Standbys that an automatic planned move must leave for crashes.
        truth_s: How long a recovery waits to learn whether a planned move had switched.
        regroup_s: How long broken steps without a culprit are left alone.
        max_attempts: Recovery plans in a row before the job is given up.
        when_exhausted: What becomes of a job that no machine is left for.
        exhausted_after_s: How long such a job is held before it ends, unless ``hold``.
        checkpoint_s: How long its ranks may then take to save a checkpoint.
        on_worker_crash: Whether a standby replaces a machine whose program crashed, or the same
            machine starts over in its slot.
        restart_within_s: How long to wait for it then, before a standby takes the slot.
    """

    automation: AutomationMode = "automatic"
    form_quiet_s: float = 2.0
    cooldown_s: float = 30.0
    keep_reserve: int = 0
    truth_s: float = 1.0
    regroup_s: float = 1.5
    max_attempts: int = 8
    when_exhausted: WhenExhausted = "hold"
    exhausted_after_s: float = 60.0
    checkpoint_s: float = 60.0
    on_worker_crash: OnWorkerCrash = "standby"
    restart_within_s: float = 60.0
    deadlines: Deadlines = field(default_factory=Deadlines)


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact from the bus."""

    payload: Frozen
    source: str
    id: str = ""
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """An operator asks something; it gets exactly one ``Reply``."""

    id: str
    verb: str
    body: bytes
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Fact | Request | Tick


@dataclass(frozen=True, slots=True)
class PublishFact:
    """Publish a fact; ``id`` is the same whenever the same fact is said again."""

    payload: Frozen
    id: str
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SendCommand:
    """Queue a command for a machine.

    Attributes:
        urgent: Do not wait until the facts before it are stored: ranks stand still.
    """

    machine: str
    command: MachineCommand
    id: str
    urgent: bool = False
    trace: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request."""

    request: str
    body: Frozen


@dataclass(frozen=True, slots=True)
class SaveMigration:
    """Mirror a migration for readers of the key-value store."""

    migration: Migration


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Mirror the job for readers of the key-value store."""

    status: Frozen


Command = PublishFact | SendCommand | Reply | SaveMigration | SaveJob


@dataclass(frozen=True, slots=True)
class Death:
    """Why and when a life was given up."""

    at_s: float
    reason: str
    incident: str | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """What operators steered.

    Attributes:
        mode: What policy may do by itself.
        acts: Number of facts that operators caused, for their ids.
        pardoned: Lives that were let out of quarantine.
    """

    mode: AutomationMode = "automatic"
    reason: str = ""
    requested_by: str = ""
    acts: int = 0
    pardoned: frozenset[Life] = frozenset()


@dataclass(frozen=True, slots=True)
class Crash:
    """A worker process that ended by itself."""

    life: Life
    rank: int
    exit_code: int | None
    signal: int | None
    last_words: str
    at_s: float


def _none() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class State:
    """Everything the planner knows.

    Attributes:
        control: What operators steered.
        membership: The latest committed membership.
        memberships: Every membership that was ever issued, by epoch.
        issued: The highest epoch ever issued or seen; the next one is higher.
        sequence: Number of migrations ever proposed.
        incidents: Open incidents.
        traces: W3C trace headers of each incident.
        deaths: Lives that were given up.
        spent: Lives that had a slot, or could not take one: they are of no use any more.
        seen: Latest epoch at which each (machine, rank) was seen.
        broken: Epoch and time of the latest broken step of each (machine, rank).
        replicas: For each rank, the ranks that hold the same state.
        redundancy: For each rank, where its state is to survive, and why it is no better kind.
        followers: For each rank that is or was followed, its follower and the life it is in.
        finished: (machine, rank) of each rank whose program ended normally.
        early: Reports about migrations not heard of yet (only while facts are read again).
        unannounced: Facts that follow from what was read again, but were never published.
        told_break: Epochs at which all members were told to break their step.
        warmed: Lives that were told to be standbys.
        warm_epoch: Epoch of the membership that standbys were told last.
        stopped: Lives that were told that the job is over.
        held: Slots that no machine can fill at present.
        held_s: Since when the job is held.
        told_save: Epochs at which the survivors were asked to save a checkpoint.
        saved: What each (machine, rank) answered latest.
        crashes: Worker processes that ended by themselves since the latest commit.
        cooldown: Slot and time until which it is not moved automatically.
        said: (incident or life, code) of what is said only once.
        attempts: Recovery plans since the latest commit.
        retry_s: When the recovery may be planned again, after one failed without a culprit.
        step: Completed steps of the furthest rank.
    """

    job: str
    settings: Settings = field(default_factory=Settings)
    phase: JobPhase = "forming"
    reason: str = ""
    control: Control = field(default_factory=Control)
    inventory: Inventory = field(default_factory=Inventory)
    membership: Membership | None = None
    memberships: Mapping[int, Membership] = field(default_factory=_none)
    issued: int = 0
    sequence: int = 0
    migrations: Mapping[str, Migration] = field(default_factory=_none)
    incidents: Mapping[str, IncidentOpened] = field(default_factory=_none)
    traces: Mapping[str, Mapping[str, str]] = field(default_factory=_none)
    deaths: Mapping[Life, Death] = field(default_factory=_none)
    spent: frozenset[Life] = frozenset()
    seen: Mapping[tuple[str, int], int] = field(default_factory=_none)
    broken: Mapping[tuple[str, int], tuple[int, float]] = field(default_factory=_none)
    replicas: Mapping[int, tuple[int, ...]] = field(default_factory=_none)
    redundancy: Mapping[int, tuple[Redundancy, str]] = field(default_factory=_none)
    followers: Mapping[int, tuple[int, Life]] = field(default_factory=_none)
    finished: frozenset[tuple[str, int]] = frozenset()
    early: Mapping[str, tuple[RankReport, ...]] = field(default_factory=_none)
    unannounced: Mapping[str, PublishFact] = field(default_factory=_none)
    told_break: frozenset[int] = frozenset()
    warmed: frozenset[Life] = frozenset()
    warm_epoch: int = 0
    stopped: frozenset[Life] = frozenset()
    held: tuple[int, ...] = ()
    held_s: float | None = None
    told_save: frozenset[int] = frozenset()
    saved: Mapping[tuple[str, int], CheckpointSaved] = field(default_factory=_none)
    crashes: tuple[Crash, ...] = ()
    cooldown: Mapping[int, float] = field(default_factory=_none)
    said: frozenset[tuple[str, str]] = frozenset()
    attempts: int = 0
    retry_s: float | None = None
    step: int = 0

    @property
    def regroup_s(self) -> float:
        """Seconds that a break without a culprit is left alone, longer from the third plan on.

        Plans in quick succession would use up all attempts before a detector that starts over has
        found out who is dead.
        """
        doublings = min(max(self.attempts - 2, 0), 4)
        return self.settings.regroup_s * 2.0**doublings

    @property
    def over(self) -> bool:
        """Whether the job ended."""
        return self.phase in ("finished", "failed")

    @property
    def flight(self) -> Migration | None:
        """The migration under way; there is at most one. Proposals that wait do not count."""
        return next(
            (
                one
                for one in reversed([*self.migrations.values()])
                if one.open and one.phase is not Phase.PROPOSED
            ),
            None,
        )

    @property
    def waiting(self) -> list[Migration]:
        """Proposals that wait for an operator."""
        return [one for one in self.migrations.values() if one.phase is Phase.PROPOSED]

    def dead_slots(self, membership: Membership) -> list[int]:
        """Slots of ``membership`` whose machine was given up."""
        return [s for s, m in enumerate(membership.members) if life_of(m) in self.deaths]

    def is_dead(self, machine: str) -> bool:
        """Whether the machine's latest life was given up."""
        host = self.inventory.get(machine)
        return host is not None and host.life in self.deaths


class Turn:
    """One step of the core under construction: the state so far and the commands so far."""

    def __init__(self, state: State, now_s: float, *, replay: bool = False) -> None:
        self.state = state
        self.now_s = now_s
        self.replay = replay
        self.commands: list[Command] = []

    def set(self, **changes: Any) -> None:
        """Change fields of the state."""
        if not self.replay:  # what is read again may begin in the middle
            JOB.check(self.state.phase, changes.get("phase", self.state.phase))
        self.state = replace(self.state, **changes)

    def put(self, name: str, key: object, value: object) -> None:
        """Set one entry of a mapping of the state."""
        mapping = getattr(self.state, name)
        self.set(**{name: MappingProxyType({**mapping, key: value})})

    def drop(self, name: str, key: object) -> None:
        """Remove one entry of a mapping of the state."""
        mapping = getattr(self.state, name)
        if key in mapping:
            self.set(**{name: MappingProxyType({k: v for k, v in mapping.items() if k != key})})

    def send(
        self,
        machine: str,
        command: MachineCommand,
        *,
        id: str,
        urgent: bool = False,
        trace: Mapping[str, str] | None = None,
    ) -> None:
        """Queue a command; nothing is sent while facts are read again."""
        if not self.replay:
            self.commands.append(SendCommand(machine, command, id, urgent, trace or {}))

    def publish(self, payload: Frozen, *, id: str, trace: Mapping[str, str] | None = None) -> None:
        """Publish a fact, or, while facts are read again, expect to read it."""
        fact = PublishFact(payload, f"{self.state.job}:{id}", trace or {})
        if self.replay:
            self.put("unannounced", fact.id, fact)
        else:
            self.commands.append(fact)

    def reply(self, request: str, body: Frozen) -> None:
        """Answer a request."""
        self.commands.append(Reply(request, body))

    def stop_everybody(self, reason: str) -> None:
        """The job is over: tell every machine."""
        for host in self.state.inventory.sorted():
            name, generation = host.life
            if host.life in self.state.stopped:
                continue
            self.set(stopped=self.state.stopped | {host.life})
            id = f"{self.state.job}:{name}:{generation}:stop"
            self.send(name, Stop(reason=reason), id=id, urgent=True)
