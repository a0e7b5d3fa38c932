"""Messages out of a stream: read, decoded, acknowledged, and buried where nobody can read them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from trainmover import subjects
from trainmover.bus import dead
from trainmover.bus.nats.connection import Connection
from trainmover.bus.nats.reading import OrderedReader, QueueReader, filtered
from trainmover.bus.nats.resuming import ResumingReader, place_of
from trainmover.errors import MalformedEventError
from trainmover.tracing import observe
from trainmover.tracing.seldom import Seldom

__all__ = ["Deliveries", "Received"]

T = TypeVar("T")

_Reader = OrderedReader | ResumingReader | QueueReader

_log = observe.get_logger(__name__)
_TOLD_CHARACTERS: Final = 400


@dataclass(frozen=True, slots=True)
class Received(Generic[T]):
    """A message from a stream; without a connection, acknowledging means nothing."""

    payload: T
    stream_sequence: int
    attempt: int = 1
    age_s: float = 0.0
    trace: Mapping[str, str] = field(default_factory=dict)
    connection: Connection | None = None
    reply: str = ""
    bury: Callable[[MalformedEventError], Awaitable[None]] | None = None

    async def ack(self) -> None:
        """See ``Delivery.ack``."""
        if self.connection is not None:
            await self.connection.send(self.reply, Msg.Ack.Ack)

    async def nak(self, *, delay_s: float = 0.0) -> None:
        """See ``Delivery.nak``."""
        if self.connection is not None:
            delay = b' {"delay": %d}' % int(delay_s * 1e9) if delay_s > 0 else b""
            await self.connection.send(self.reply, Msg.Ack.Nak + delay)

    async def extend(self) -> None:
        """See ``Delivery.extend``."""
        if self.connection is not None:
            await self.connection.send(self.reply, Msg.Ack.Progress)

    async def reject(self, reason: str) -> None:
        """See ``Delivery.reject``."""
        if self.connection is not None and self.bury is not None:
            await self.bury(MalformedEventError(reason, kind="refused"))
            await self.connection.send(self.reply, Msg.Ack.Term)


class Deliveries:
    """Makes deliveries of the messages that readers bring.

    Args:
        connection: The connection.
        ack_wait_s: A message that is not acknowledged for this many seconds comes again.
    """

    def __init__(self, connection: Connection, *, ack_wait_s: float) -> None:
        self._connection = connection
        self._ack_wait_s = ack_wait_s
        self._warn = Seldom(_log.warning)
        self._readers: set[_Reader] = set()

    def close(self) -> None:
        """End every iteration."""
        for reader in tuple(self._readers):
            reader.close()

    def in_order(
        self,
        filters: list[str],
        *,
        from_start: bool,
        caught_up: Callable[[], None] | None = None,
    ) -> OrderedReader | ResumingReader:
        """A reader of facts of its own, from the first one or the next one on."""
        if from_start:
            return ResumingReader(self._connection, filters=filters, caught_up=caught_up)
        return OrderedReader(
            self._connection,
            stream=subjects.EVENT_STREAM,
            filters=filters,
            from_start=False,
            caught_up=caught_up,
        )

    def queued(
        self,
        stream: str,
        durable: str,
        filters: list[str],
        policy: DeliverPolicy,
        *,
        max_ack_pending: int | None = None,
        forgotten_after_s: float | None = None,
    ) -> QueueReader:
        """A reader at a durable position.

        Args:
            stream: Stream name.
            durable: Name of the position.
            filters: Subjects to read.
            policy: Where a position that is new begins.
            max_ack_pending: Messages that are out at once, at most.
            forgotten_after_s: The server drops a position that nobody read from for this many
                seconds. None keeps it for good.
        """
        config = ConsumerConfig(
            name=durable,
            durable_name=durable,
            deliver_policy=policy,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_wait_s,
            max_ack_pending=max_ack_pending,
            inactive_threshold=forgotten_after_s,
            **filtered(filters),
        )
        return QueueReader(self._connection, stream=stream, config=config)

    async def of(self, reader: _Reader, parse: Callable[[Msg], T]) -> AsyncIterator[Received[T]]:
        """What ``reader`` brings, as ``parse`` understands it; what it does not is buried.

        Args:
            reader: Its messages are acknowledged where its position is durable.
            parse: Raises ``MalformedEventError`` for a message that must not count; whatever else
                it raises means the same, and nobody stops reading over it.
        """
        acknowledged = isinstance(reader, QueueReader)
        self._readers.add(reader)
        try:
            async with contextlib.aclosing(reader.messages()) as messages:
                async for message in messages:
                    try:
                        payload = dead.readable(parse, message)
                    except MalformedEventError as error:
                        await self.bury(message, error)
                        if acknowledged:
                            await self._connection.send(message.reply, Msg.Ack.Term)
                        continue
                    age_s = reader.age_s(message.metadata.timestamp)
                    yield self._received(message, payload, acknowledged=acknowledged, age_s=age_s)
        finally:
            self._readers.discard(reader)

    async def bury(self, message: Msg, error: MalformedEventError) -> None:
        """Put a message that must not count where people look for such messages."""
        told = str(error)[:_TOLD_CHARACTERS]
        self._warn("bus.dead_letter", subject=message.subject, kind=error.kind, reason=told)
        stored: tuple[str, int] | None = None
        with contextlib.suppress(nats.errors.NotJSMessageError):
            stored = place_of(message)
        letter = dead.letter(
            subject=message.subject,
            headers=message.headers,
            data=message.data,
            error=error,
            stored=stored,
        )
        await self._connection.send(subjects.DEAD_LETTER, letter.data, letter.headers)

    def _received(
        self, message: Msg, payload: T, *, acknowledged: bool, age_s: float
    ) -> Received[T]:
        return Received(
            payload=payload,
            stream_sequence=place_of(message)[1],
            attempt=message.metadata.num_delivered or 1,
            age_s=age_s,
            trace=observe.trace_headers(message.headers),
            connection=self._connection if acknowledged else None,
            reply=message.reply,
            bury=lambda error: self.bury(message, error),
        )
