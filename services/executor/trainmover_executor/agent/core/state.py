"""What an agent knows: frozen data, replaced as a whole at every step of the core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from trainmover.job.plan import Plan
from trainmover.job.topology import Membership
from trainmover_executor.messages.worker import Broke, Warmed

__all__ = ["AgentState", "Bay", "BayPhase", "Ending", "Identity", "Phase", "Worker"]

Phase = Literal["new", "registered", "standby", "active", "ending", "finished"]
"""``ending`` lasts until the last process is gone and the back-off, if any, is over."""

BayPhase = Literal["queued", "warming", "ready", "down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What never changes while the agent lives.

    Attributes:
        nnodes_min: Slots of the job.
        nnodes_max: Slots plus standbys.
        ranks: Ranks on this machine.
        warm_limit: Most slots that a standby keeps processes for; None: all.
        pid: Process id of the agent.
        host: Host name, for people.
        pool: The pool that the machine is from; empty where it is the job's own.
    """

    job: str
    machine: str
    nnodes_min: int
    nnodes_max: int
    ranks: int
    pid: int
    host: str
    warm_limit: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process, from the order to fork it until its exit was seen.

    Attributes:
        key: Names the process; never used twice.
        warmed: Its report, once a standby has run its shadow iterations.
        broke: What its program said when it ended as a standby.
        done: The user's program ended normally; its exit is expected.
        ending: It was told to end; its exit is expected.
        left_at: Epoch of the switch in which it handed its slot over, else None.
    """

    key: str
    slot: int
    rank: int
    role: Literal["active", "standby"]
    warmed: Warmed | None = None
    broke: Broke | None = None
    done: bool = False
    ending: bool = False
    left_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bay:
    """One slot that a standby keeps processes warm for.

    Attributes:
        endpoints: Where its processes listen, or will.
        phase: ``down`` between the death of its processes and the next attempt.
        failures: How often its processes died since it was ready last.
    """

    endpoints: tuple[str, ...] = ()
    phase: BayPhase = "queued"
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why this incarnation of the machine ends, and what follows.

    Attributes:
        then: ``standby`` registers again with a new generation, ``stop`` ends the agent.
        exit_code: The agent's, for ``stop``.
        backoff_s: Seconds to wait before registering again.
    """

    then: Literal["standby", "stop"]
    reason: str
    exit_code: int = 0
    backoff_s: float = 0.0


def _empty_bays() -> Mapping[int, Bay]:
    return MappingProxyType({})


def _no_workers() -> Mapping[str, Worker]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """Everything the core decides by.

    Attributes:
        me: Who we are.
        generation: Incarnation of this machine; -1 before the first.
        epoch: Highest epoch this machine knows to be committed; 0 before the job formed.
        term: Highest term of a planner heard.
        slot: The slot our active ranks fill.
        membership: The membership our workers were started in or switched to.
        endpoints: What we registered with.
        bays: Slots we are, or get, warm for.
        queue: Bays whose processes are not started yet, in order.
        warm_membership: The membership standby processes are started with.
        workers: Every process, by key.
        plan: The latest plan that concerns us and is not committed yet.
        joining: The slot we take under ``plan``.
        aborted: ``plan`` was called off; its ranks may have voted all the same.
        seen: Ids of the latest plans, oldest first.
        serial: Number of processes ordered so far.
        crashes: Incarnations in a row that ended in a crash.
        ending: Set in phase ``ending``.
    """

    me: Identity
    phase: Phase = "new"
    generation: int = -1
    epoch: int = 0
    term: int = 0
    slot: int | None = None
    membership: Membership | None = None
    endpoints: tuple[str, ...] = ()
    bays: Mapping[int, Bay] = field(default_factory=_empty_bays)
    queue: tuple[int, ...] = ()
    warm_membership: Membership | None = None
    workers: Mapping[str, Worker] = field(default_factory=_no_workers)
    plan: Plan | None = None
    joining: int | None = None
    aborted: bool = False
    seen: tuple[str, ...] = ()
    serial: int = 0
    crashes: int = 0
    ending: Ending | None = None

    @property
    def kept(self) -> tuple[int, ...]:
        """Slots that processes are kept for, in the order in which they were opened."""
        return tuple(slot for slot, bay in self.bays.items() if bay.phase in ("warming", "ready"))

    @property
    def live(self) -> tuple[Worker, ...]:
        """Processes that were not told to end."""
        return tuple(worker for worker in self.workers.values() if not worker.ending)

    def live_of(self, slot: int | None) -> tuple[Worker, ...]:
        """Processes of one slot that were not told to end."""
        return tuple(worker for worker in self.live if worker.slot == slot)
