"""What a planner resumes from is kept where nothing else can push it out.

The stream of all facts forgets the oldest ones when it is full, whoever filled it. So the server
copies what a planner cannot do without into streams that nobody can publish to. Each keeps the
latest few of every subject: whoever says much pushes out what it said itself. The reasons are in
docs/adr/0029-what-a-planner-resumes-from-is-kept-apart.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from trainmover.events.catalog import CATALOG, EventType

__all__ = ["KEPT", "Kept", "origin"]

_SOURCE: Final = "Nats-Stream-Source"
"""The server's header of a copy: stream, sequence, filter, ... Nobody may publish with it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One stream of copies.

    Attributes:
        stream: Its name.
        description: What it holds, for people.
        names: Facts that are copied ("job.formed").
        each: How many of every subject are kept.
        max_bytes: Of all of them.
    """

    stream: str
    description: str
    names: frozenset[str]
    each: int
    max_bytes: int

    def patterns(self) -> list[str]:
        """The subjects that are copied, of every job."""
        return [kind.pattern("*") for kind in CATALOG.values() if kind.name in self.names]


def _names(chosen: Callable[[EventType], bool]) -> frozenset[str]:
    return frozenset(kind.name for kind in CATALOG.values() if chosen(kind))


_OF_RANKS: Final = frozenset(
    {
        "machine.warming",
        "machine.ready",
        "worker.layout",
        "worker.followed",
        "worker.finished",
    }
)

KEPT: Final = (
    Kept(
        stream="TM_DECISIONS",
        description="The planner's facts: the latest of each kind and job",
        names=_names(lambda kind: kind.by == "planner"),
        each=256,
        max_bytes=256 * 1024**2,
    ),
    Kept(
        stream="TM_MACHINES",
        description="Registrations: the latest incarnation of each machine",
        names=frozenset({"machine.registered", "machine.lent"}),
        # Four facts of the largest size: one stolen key fills an eighth of the stream.
        each=4,
        max_bytes=128 * 1024**2,
    ),
    Kept(
        stream="TM_ASSIGNMENTS",
        description="Which job each machine of a pool was assigned to: the latest for each job",
        names=frozenset({"pool.assigned"}),
        # A machine may serve a job for months, while others come and go.
        each=4096,
        max_bytes=32 * 1024**2,
    ),
    Kept(
        stream="TM_RANKS",
        description="What machines are ready for and what their ranks hold: the latest of each",
        names=_OF_RANKS,
        each=1024,  # one for each slot of a standby, or each rank of a machine
        max_bytes=128 * 1024**2,
    ),
)


def origin(headers: Mapping[str, str] | None) -> tuple[str, int] | None:
    """The stream and sequence that a copy is of; None for what is no copy."""
    said = (headers or {}).get(_SOURCE, "").split()
    return (said[0], int(said[1])) if said else None
