"""Commands to machine agents, and requests of operators.

Commands are at-least-once and idempotent: each carries what it needs to be recognised as done.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, field_validator

from trainmover.plan import Plan
from trainmover.topology import Frozen, Membership

__all__ = [
    "AbortMigration",
    "BreakStep",
    "Command",
    "MigrateRequest",
    "Prepare",
    "Recover",
    "Refusal",
    "Release",
    "RequestAccepted",
    "Start",
    "Stop",
    "Warm",
    "command_adapter",
]


class Start(Frozen):
    """Fill ``slot`` at the first epoch: start its ranks for real."""

    verb: Literal["start"] = "start"
    generation: int
    slot: int
    membership: Membership


class Warm(Frozen):
    """Be a standby: start a sandboxed process for each of ``slots`` and run shadow iterations."""

    verb: Literal["warm"] = "warm"
    generation: int
    slots: tuple[int, ...]
    membership: Membership


class Prepare(Frozen):
    """Phase 1 of a planned move; sent to leaver, joiner and stayers."""

    verb: Literal["prepare"] = "prepare"
    plan: Plan


class Recover(Frozen):
    """Take up a failure plan; sent to the survivors and the joiner."""

    verb: Literal["recover"] = "recover"
    plan: Plan


class AbortMigration(Frozen):
    """Drop what phase 1 built; refused once the ranks have voted."""

    verb: Literal["abort_migration"] = "abort_migration"
    migration: str
    epoch: int
    reason: str


class BreakStep(Frozen):
    """Latch the running step: a peer is dead or frozen and cannot be waited for."""

    verb: Literal["break_step"] = "break_step"
    epoch: int
    reason: str


class Release(Frozen):
    """The machine holds no slot any more: end its ranks.

    Attributes:
        then: ``standby`` registers again with a new generation, ``stop`` ends the agent.
    """

    verb: Literal["release"] = "release"
    generation: int
    epoch: int
    then: Literal["standby", "stop"]


class Stop(Frozen):
    """The job is over: end every process of the machine, the agent last."""

    verb: Literal["stop"] = "stop"
    reason: str


Command = Annotated[
    Start | Warm | Prepare | Recover | AbortMigration | BreakStep | Release | Stop,
    Field(discriminator="verb"),
]
command_adapter: TypeAdapter[Command] = TypeAdapter(Command)


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


class RequestAccepted(Frozen):
    """The planner took the request up.

    Attributes:
        migration: The migration it is about, if it began or ended one.
        plan: What is to happen, or would.
        words: What happened, or would, in one sentence for people.
    """

    ok: Literal[True] = True
    migration: str | None
    plan: Plan | None = None
    words: str = ""


class Refusal(Frozen):
    """The planner refused; nothing changed."""

    ok: Literal[False] = False
    code: str
    reason: str
    next_step: str
