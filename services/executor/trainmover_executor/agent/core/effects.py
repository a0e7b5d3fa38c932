"""What can happen to an agent (events), and what it can do about it (actions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainmover.commands import Command
from trainmover.job.topology import Frozen, Membership
from trainmover_executor.messages.worker import Broke, Done, Hello, ToWorker, Warmed

__all__ = [
    "Action",
    "After",
    "Begin",
    "Bind",
    "Bound",
    "Commanded",
    "End",
    "Event",
    "Exit",
    "Exited",
    "Forward",
    "JobOver",
    "Log",
    "Prioritise",
    "Publish",
    "Register",
    "Reported",
    "RetryBay",
    "Said",
    "Spawn",
    "Terminate",
    "Unbind",
]


@dataclass(frozen=True, slots=True)
class Begin:
    """The agent starts."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Sockets are bound; slot None is the registration's."""

    generation: int
    endpoints: Mapping[int | None, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Commanded:
    """A command arrived from the planner."""

    command: Command


@dataclass(frozen=True, slots=True)
class Said:
    """A worker spoke about itself."""

    key: str
    message: Hello | Warmed | Broke | Done


@dataclass(frozen=True, slots=True)
class Reported:
    """A worker wants a fact published."""

    key: str
    fact: Frozen


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker's process ended; all it said before has been heard."""

    key: str
    exit_code: int | None
    signal: int | None
    last_words: str = ""


@dataclass(frozen=True, slots=True)
class JobOver:
    """The planner stated that the job finished or failed."""

    failed: bool


@dataclass(frozen=True, slots=True)
class Terminate:
    """Somebody asked the agent itself to end."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class Register:
    """The back-off after an incarnation is over."""

    generation: int


@dataclass(frozen=True, slots=True)
class RetryBay:
    """The back-off after the death of a standby's processes is over."""

    generation: int
    slot: int


Event = (
    Begin | Bound | Commanded | Said | Reported | Exited | JobOver | Terminate | Register | RetryBay
)


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind a listening socket per local rank for each slot; answered by ``Bound``."""

    generation: int
    slots: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Unbind:
    """Close every listening socket that no process got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """Fork a worker on socket ``local_rank`` of ``socket_of`` (None: the registered ones)."""

    key: str
    generation: int
    slot: int
    rank: int
    local_rank: int
    role: Literal["active", "standby"]
    membership: Membership
    socket_of: int | None
    background: bool


@dataclass(frozen=True, slots=True)
class Prioritise:
    """Processes started in the background count like any other from now on."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forward:
    """Tell a worker; waits for its ``Hello``."""

    key: str
    message: ToWorker


@dataclass(frozen=True, slots=True)
class End:
    """End processes: SIGTERM, and SIGKILL after ``grace_s``; SIGKILL at once when that is 0."""

    keys: tuple[str, ...]
    grace_s: float


@dataclass(frozen=True, slots=True)
class Publish:
    """State a fact; an urgent one overtakes those that wait."""

    fact: Frozen
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class After:
    """Feed ``event`` back in ``delay_s`` seconds."""

    delay_s: float
    event: Register | RetryBay


@dataclass(frozen=True, slots=True)
class Log:
    """Tell people."""

    level: Literal["debug", "info", "warning", "error"]
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exit:
    """Nothing is left to do: publish what waits, then end the agent."""

    exit_code: int


Action = Bind | Unbind | Spawn | Prioritise | Forward | End | Publish | After | Log | Exit
