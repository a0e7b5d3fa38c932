"""Facts about machines and the workers on them; published by agents, except where noted.

A pool, whose machines several jobs share, has a name as a job has one. Its machines say over and
over where they are. What they say is complete: nobody has to know what they said before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from trainmover.job.endpoints import Endpoint
from trainmover.job.numbers import Count, Epoch, Rank
from trainmover.job.topology import Frozen, Machine

__all__ = [
    "LinkLost",
    "MachineDataDiffers",
    "MachineLent",
    "MachineLost",
    "MachineNoticed",
    "MachineQuarantined",
    "MachineReady",
    "MachineRegistered",
    "MachineReleased",
    "MachineWarming",
    "MachineWarmingFailed",
    "PoolMachineAssigned",
    "PoolMachineRecalled",
    "PoolMachineSeen",
    "PoolPhase",
    "WorkerExited",
]


class MachineRegistered(Frozen):
    """A machine offers itself to the job; again, with a new generation, each time it is freed.

    Attributes:
        nnodes_min: Slots of the job as the launcher was told (``--nnodes MIN:MAX``).
        nnodes_max: Slots plus standbys.
        warm_limit: Most slots that it keeps processes for as a standby; None: all.
        pid: Process id of the agent.
        host: Host name, for people.
    """

    machine: Machine
    nnodes_min: int = Field(ge=1)
    nnodes_max: int = Field(ge=1)
    warm_limit: int | None = Field(default=None, ge=1)
    pid: int
    host: str


class MachineLent(MachineRegistered):
    """A machine of a pool offers itself to a job; it counts where the pool assigned it there last.

    Attributes:
        pool: The pool that it is from.
    """

    pool: str = Field(max_length=64)


class MachineWarming(Frozen):
    """A standby bound its sockets for these slots, and starts processes for them.

    Attributes:
        endpoints: For each slot, ``host:port`` of each local rank's process.
    """

    machine: str
    generation: int
    endpoints: Mapping[int, tuple[Endpoint, ...]]


class MachineReady(Frozen):
    """A standby finished its shadow iterations for one slot and can take it at once."""

    machine: str
    generation: int
    slot: int
    shadow_iterations: int
    warm_s: float


class MachineWarmingFailed(Frozen):
    """A process of a standby ended before it was warm, or while it waited for its slot.

    Attributes:
        attempts: How often it was tried since it was ready last.
        error: The last line of what the program raised ("AssertionError: ..."), or how it ended.
        where: ``file:line`` of the innermost call in the user's program; empty where nobody knows.
        retry_in_s: Seconds until it is tried again, from when this was published.
    """

    machine: str
    generation: int
    slot: int
    rank: int
    attempts: int = Field(ge=1)
    error: str
    where: str = ""
    retry_in_s: float = Field(ge=0)


class MachineDataDiffers(Frozen):
    """A warm standby would be given another batch than its rank was given.

    It stays ready: what a job loses with that machine is not the step, but its bits.

    Attributes:
        rank: Of the process that compared.
        batch: Which batch of its call of ``session.steps``, from 1.
        loader: What it is read from.
        where: ``file:line`` of the loop over the steps.
        what: What is wrong with it, for people.
    """

    machine: str
    slot: int
    rank: Rank
    batch: int = Field(ge=1)
    loader: str
    where: str
    what: str


class MachineLost(Frozen):
    """The planner gave the machine up; its epoch is refused from now on.

    Attributes:
        generation: Which incarnation is meant; None in what was said before this was added.
    """

    machine: str
    reason: str
    generation: int | None = Field(default=None, ge=0)


class MachineQuarantined(Frozen):
    """The machine will not be used again until an operator releases it."""

    machine: str
    reason: str
    requested_by: str = "policy"


class MachineReleased(Frozen):
    """The planner let a standby go: the pool that it is from needs it elsewhere (by the planner).

    Attributes:
        generation: The incarnation that is a standby of this job no more.
    """

    machine: str
    generation: int = Field(ge=0)
    reason: str
    requested_by: str


class MachineNoticed(Frozen):
    """Somebody outside announced that a machine will go, or is failing (by anybody).

    Attributes:
        kind: ``maintenance`` and ``preemption`` end the machine, ``health`` is a report about its
            hardware (ECC, XID, temperature, a drained node), ``metrics`` a reading of its devices
            that by itself means nothing: a detector must judge it.
        reason: In the words of whoever announced it.
        source: Who says so ("kubernetes", "slurm", "http", ...).
        leaves_in_s: Seconds until the machine goes, from when this was published; None: unknown.
        cleared: The announcement is taken back.
        metrics: Readings by name, in the units of whoever took them.
    """

    machine: str
    kind: Literal["maintenance", "preemption", "health", "metrics"]
    reason: str = ""
    source: str = ""
    leaves_in_s: float | None = Field(default=None, ge=0)
    cleared: bool = False
    metrics: Mapping[str, float] = Field(default_factory=dict)


class WorkerExited(Frozen):
    """``waitpid`` returned for a training process that was not told to stop."""

    machine: str
    generation: int
    rank: Rank
    epoch: Epoch
    exit_code: int | None
    signal: int | None
    last_words: str = ""


class LinkLost(Frozen):
    """A worker saw the end of a link whose other side did not say goodbye.

    Attributes:
        machine: The machine of the reporter.
        rank: The rank that reports.
        peer_rank: The rank at the other side.
        peer_machine: The machine at the other side at ``epoch``.
        kind: ``reset`` when the link ended, ``refused`` when it could not be dialled.
    """

    machine: str
    rank: Rank
    peer_rank: Rank
    peer_machine: str
    epoch: Epoch
    step: Count
    kind: Literal["reset", "refused"]


PoolPhase = Literal["idle", "serving", "leaving"]
"""What a machine of a pool does: it waits, it runs the agent of one job, or it is about to end."""


class PoolMachineSeen(Frozen):
    """A machine of a pool says where it is: every other second, and at once when that changes.

    Attributes:
        run: Of the process that says so; another one has another.
        offer: Number of this fact within the run. An assignment names the offer that it answers.
        phase: What the machine does.
        job: The job that it serves; None while it serves none.
        for_s: Seconds since it began with that.
        term: The highest term of a leader that it heard; it obeys no earlier one.
        declines: Jobs that it takes no assignment of for now, and why.
        labels: Where it is, as agents are told.
    """

    machine: str
    run: str = Field(max_length=64)
    offer: Count
    phase: PoolPhase
    job: str | None = Field(default=None, max_length=64)
    for_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    term: Count = 0
    declines: Mapping[str, str] = Field(default_factory=dict, max_length=256)
    labels: Mapping[str, str] = Field(default_factory=dict)


class PoolMachineAssigned(Frozen):
    """The leader of a pool asks a machine to serve a job; the machine decides whether it does.

    It is said to the pool and to each of its jobs, before the machine hears of it: from then on the
    machine may register with ``job``, and with no other.
    """

    machine: str
    job: str
    reason: str
    term: int


class PoolMachineRecalled(Frozen):
    """The leader of a pool asks a job's planner to let a standby go.

    Attributes:
        needed_by: The job that waits for a machine; None where only the share of ``job`` decides.
    """

    machine: str
    job: str
    needed_by: str | None = None
    reason: str
    term: int
