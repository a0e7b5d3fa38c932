"""The one seam between TrainMover and its transport.

``NatsBus`` is the real thing, ``MemoryBus`` the same semantics inside one process; both pass one
contract suite. Nothing on a training step's path ever touches a bus (INV-NO-BUS-ON-PATH).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from trainmover.commands import Command
from trainmover.events.envelope import Envelope
from trainmover.job.topology import Frozen

__all__ = ["TELEMETRY_BACKLOG", "TELEMETRY_BYTES", "Bus", "Delivery", "Entry", "RequestHandler"]

T_co = TypeVar("T_co", covariant=True)

RequestHandler = Callable[[str, bytes], Awaitable[bytes]]
"""Answers one request: (verb, body) -> reply body."""

TELEMETRY_BACKLOG: Final = 4096
"""Batches kept for a reader that is slow; the oldest go first."""

TELEMETRY_BYTES: Final = 64 * 1024**2
"""And no more than so many bytes of them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a bucket. ``revision`` is what a compare-and-set update must name."""

    key: str
    value: bytes
    revision: int


class Delivery(Protocol[T_co]):
    """A message that stays ours until we say what became of it."""

    @property
    def payload(self) -> T_co:
        """The decoded message."""
        ...

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        ...

    @property
    def stream_sequence(self) -> int:
        """Its number in the stream: from 1, larger than those before it, with gaps."""
        ...

    @property
    def age_s(self) -> float:
        """Seconds since it was stored, by the bus's own clock: no sender's clock is believed.

        Not at a durable position.
        """
        ...

    @property
    def trace(self) -> Mapping[str, str]:
        """W3C trace headers of the sender, may be empty; see ``observe.process``."""
        ...

    async def ack(self) -> None:
        """Done; never deliver it again."""
        ...

    async def nak(self, *, delay_s: float = 0.0) -> None:
        """Not done; deliver it again after ``delay_s``."""
        ...

    async def extend(self) -> None:
        """Still at it: count the time until it comes again from now."""
        ...

    async def reject(self, reason: str) -> None:
        """Never to be done: a dead letter, for this reason."""
        ...


class Bus(Protocol):
    """What every service may ask of the transport.

    All methods raise ``BusUnavailableError`` when the transport cannot be reached in time (the
    outcome is then unknown: repeat with the same id) and ``PermissionDeniedError`` when the user
    may not do it.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    @property
    def connected(self) -> bool:
        """Whether the transport is reachable right now, as far as is known."""
        ...

    async def setup(self) -> None:
        """Create streams and buckets; does nothing where they exist."""
        ...

    async def publish(self, event: Envelope) -> None:
        """Publish a fact exactly once (by its id) and return once it is stored."""
        ...

    def events(
        self,
        job: str,
        *,
        entity: str = "*",
        fact: str = "*",
        durable: str | None = None,
        from_start: bool = True,
        one_by_one: bool = False,
        caught_up: Callable[[], None] | None = None,
    ) -> AsyncGenerator[Delivery[Envelope], None]:
        """Facts of ``job`` in stream order, as an endless iterator.

        A malformed message goes to the dead-letter subject with the reason and is skipped.

        Args:
            job: Job name, or ``*``.
            entity: Only this entity.
            fact: Only this fact.
            durable: Name of a shared position that survives restarts; None reads alone, and
                acknowledging is then a no-op.
            from_start: Begin with the first stored fact, else with the next one published.
            one_by_one: At a durable position, nothing comes before the fact ahead of it is
                acknowledged: order survives whoever dies over a fact.
            caught_up: Called once when everything has been read that was stored at the beginning,
                what could not be read and what has expired meanwhile included, however long the
                bus takes over it. Not at a durable position.
        """
        ...

    async def event_count(self, job: str) -> int:
        """Number of facts of ``job`` stored now: how far a reader from the start must go."""
        ...

    async def send_command(self, job: str, machine: str, command: Command, *, id: str) -> None:
        """Queue a command for one machine's agent; a repeated ``id`` is queued once."""
        ...

    def commands(self, job: str, machine: str) -> AsyncIterator[Delivery[Command]]:
        """Commands for one machine, redelivered until acknowledged."""
        ...

    async def command_readers(self, job: str, machine: str) -> int:
        """How many agents wait for commands of one machine now.

        One that handles a command at this moment is not among them. One that has ended is not,
        either; one that fell silent counts for 30 s.
        """
        ...

    async def send_telemetry(self, job: str, machine: str, data: bytes) -> None:
        """Send a telemetry batch: unstored, lossy, no acknowledgement."""
        ...

    def telemetry(self, job: str) -> AsyncIterator[tuple[str, bytes]]:
        """(machine, batch) of a job as they come."""
        ...

    async def request(self, job: str, verb: str, body: Frozen, *, timeout_s: float = 5.0) -> bytes:
        """Ask the service that serves ``verb`` and return the reply body."""
        ...

    async def depart(
        self, job: str, machine: str, *, reason: str, dry_run: bool = False, timeout_s: float = 5.0
    ) -> bytes:
        """Ask that ``machine`` be replaced, with its own key; the reply body."""
        ...

    async def serve(self, job: str, handler: RequestHandler) -> None:
        """Answer requests of ``job`` with ``handler`` until the bus is closed.

        A machine that wants to depart comes as a ``migrate`` of that machine. Returns at once. What
        the handler raises reaches the asker as a ``Refusal``.
        """
        ...

    async def get(self, bucket: str, key: str) -> Entry | None:
        """Current value of a key, or None."""
        ...

    async def keys(self, bucket: str) -> list[str]:
        """All keys of a bucket, sorted."""
        ...

    async def put(self, bucket: str, key: str, value: bytes, *, revision: int | None) -> Entry:
        """Compare and set.

        Args:
            bucket: Bucket name.
            key: Key.
            value: New value.
            revision: The revision that is being replaced; None demands that the key is absent.

        Raises:
            ConflictError: Another writer was first.
        """
        ...
