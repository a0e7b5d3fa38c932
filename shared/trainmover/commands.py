"""Commands to machine agents, and requests of operators.

Commands are at-least-once and idempotent: each carries what it needs to be recognised as done.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from trainmover.errors import MalformedEventError
from trainmover.job.plan import Plan
from trainmover.job.topology import Frozen, Membership

__all__ = [
    "ASSIGN_WITHIN_S",
    "AbortMigration",
    "Assign",
    "BreakStep",
    "Command",
    "Lead",
    "MigrateRequest",
    "Prepare",
    "Recover",
    "Refusal",
    "Release",
    "RequestAccepted",
    "SaveCheckpoint",
    "Start",
    "Stop",
    "Warm",
    "parse_command",
]


class _Order(Frozen):
    """What every command says.

    Attributes:
        term: Of the planner that gave it; a machine refuses what an earlier planner than the one
            it heard last says. 0 where there are no replicas.
    """

    term: int = 0


class Lead(_Order):
    """A planner of a new term leads: what earlier ones may still say is void from here on."""

    verb: Literal["lead"] = "lead"


class Start(_Order):
    """Fill ``slot`` at the first epoch: start its ranks for real."""

    verb: Literal["start"] = "start"
    generation: int
    slot: int
    membership: Membership


class Warm(_Order):
    """Be a standby: start a sandboxed process for each of ``slots`` and run shadow iterations."""

    verb: Literal["warm"] = "warm"
    generation: int
    slots: tuple[int, ...]
    membership: Membership


class Prepare(_Order):
    """Phase 1 of a planned move; sent to leaver, joiner and stayers."""

    verb: Literal["prepare"] = "prepare"
    plan: Plan


class Recover(_Order):
    """Take up a failure plan; sent to the survivors and the joiner."""

    verb: Literal["recover"] = "recover"
    plan: Plan


class AbortMigration(_Order):
    """Drop what phase 1 built; refused once the ranks have voted."""

    verb: Literal["abort_migration"] = "abort_migration"
    migration: str
    epoch: int
    reason: str


class BreakStep(_Order):
    """Latch the running step: a peer is dead or frozen and cannot be waited for."""

    verb: Literal["break_step"] = "break_step"
    epoch: int
    reason: str


class SaveCheckpoint(_Order):
    """Save a checkpoint now: the job is about to end because no machine is left for a slot.

    The ranks wait in ``recovering`` with whole state; each answers with ``worker.saved``.
    """

    verb: Literal["save_checkpoint"] = "save_checkpoint"
    epoch: int
    reason: str


class Release(_Order):
    """The machine holds no slot any more: end its ranks.

    Attributes:
        then: ``standby`` registers again with a new generation, ``stop`` ends the agent.
    """

    verb: Literal["release"] = "release"
    generation: int
    epoch: int
    then: Literal["standby", "stop"]


class Stop(_Order):
    """The job is over: end every process of the machine, the agent last."""

    verb: Literal["stop"] = "stop"
    reason: str


ASSIGN_WITHIN_S: Final = 6.0
"""For so long after a machine of a pool said that it is idle, by its own clock, it takes an
assignment that answers to it."""


class Assign(_Order):
    """Serve a job: from the leader of a pool to a machine of it.

    Taken once, by a machine that is idle, and only within ``ASSIGN_WITHIN_S`` after it said so: an
    order that was late changes nothing.

    Attributes:
        term: Of the pool's leader.
        job: The job to be a standby of.
        run: The run of the machine's process that is meant.
        offer: The offer of the machine that this answers.
    """

    verb: Literal["assign"] = "assign"
    job: str
    run: str
    offer: int


Command = Annotated[
    Lead
    | Start
    | Warm
    | Prepare
    | Recover
    | AbortMigration
    | BreakStep
    | SaveCheckpoint
    | Release
    | Stop
    | Assign,
    Field(discriminator="verb"),
]
_adapter: TypeAdapter[Command] = TypeAdapter(Command)


def parse_command(data: bytes | str) -> Command:
    """The command that ``data`` says in JSON.

    Raises:
        MalformedEventError: It says none.
    """
    try:
        return _adapter.validate_json(data)
    except ValidationError as error:
        raise MalformedEventError(f"command does not parse: {error}") from error


class MigrateRequest(Frozen):
    """An operator asks that machines leave their slots, all in one switch.

    Attributes:
        machine: The machine that leaves.
        others: Further machines that leave with it.
        to: The standbys that take over, in the order of the machines; where none is named the
            planner chooses.
    """

    machine: str
    others: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    reason: str = "operator request"
    dry_run: bool = False
    requested_by: str = "operator"

    @field_validator("to", mode="before")
    @classmethod
    def _one_name_is_a_list(cls, value: object) -> object:
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    @property
    def machines(self) -> tuple[str, ...]:
        """All machines that are to leave."""
        return (self.machine, *self.others)


class DepartureRequest(Frozen):
    """A machine asks that it be replaced; which one it is, its subject says.

    Attributes:
        dry_run: Answer with the plan, and change nothing.
    """

    reason: str = Field(default="it is about to end", max_length=200)
    dry_run: bool = False


class RequestAccepted(Frozen):
    """The planner took the request up.

    Attributes:
        migration: The migration it is about, if it began or ended one.
        plan: What is to happen, or would.
        words: What happened, or would, in one sentence for people.
        drain: The drain that it is about.
    """

    ok: Literal[True] = True
    migration: str | None
    plan: Plan | None = None
    words: str = ""
    drain: str | None = None


class Refusal(Frozen):
    """The planner refused; nothing changed."""

    ok: Literal[False] = False
    code: str
    reason: str
    next_step: str
