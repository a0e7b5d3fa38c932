"""The two ways to read a stream without a polling interval.

``OrderedReader`` is alone: the server pushes, gaps and outages are cured by asking again from the
last message seen. ``QueueReader`` shares a durable position: one request is always waiting at
the server, so a message leaves the moment it is stored.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy, Header

from trainmover.bus.nats.connection import Connection, heeding_cancellation
from trainmover.errors import BusError, BusUnavailableError, PermissionDeniedError
from trainmover.tracing.observe import get_logger

__all__ = ["OrderedReader", "QueueReader", "filtered"]

_log = get_logger(__name__)
_HEARTBEAT_S: Final = 1.0
_SILENCE_S: Final = 3 * _HEARTBEAT_S
_EXPIRES_S: Final = 30.0
_RETRY_S: Final = 0.2
_FORGOTTEN_AFTER_S: Final = 30.0
_STORED: Final = "$JS.ACK."
"""How the reply subject of a message from a stream begins, of which it has its number."""

_Wake = None
"""What a reader's queue holds when there is no message but something to look after."""


def filtered(subjects: list[str]) -> dict[str, Any]:
    """The filter of a consumer; a single one becomes part of the subject it is created with."""
    if len(subjects) == 1:
        return {"filter_subject": subjects[0]}
    return {"filter_subjects": subjects}


def _is_status(message: Msg) -> bool:
    return not message.data and bool(message.headers) and Header.STATUS in (message.headers or {})


class _Reader:
    """What both readers share: an inbox, a queue, and being woken by a reconnect or the end."""

    def __init__(self, connection: Connection, *, stream: str) -> None:
        self._connection = connection
        self._stream = stream
        self._queue: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._stale = True  # what the server knows about us must be made or made again
        self._closed = False
        self._asked_at: datetime | None = None  # by the server's clock
        self._asked_s = 0.0  # by our own, which is steady

    def close(self) -> None:
        """End the iteration; the task that iterates cleans up."""
        self._closed = True
        self._queue.put_nowait(_Wake)

    def age_s(self, stored: datetime) -> float:
        """Seconds since a message was stored: by the server's clock until we asked, by ours since.

        Two hosts' clocks are never compared.
        """
        if self._asked_at is None:
            return 0.0
        since_s = asyncio.get_running_loop().time() - self._asked_s
        return max(0.0, (self._asked_at - stored).total_seconds() + since_s)

    def _note_time(self, made: ConsumerInfo) -> None:
        """The consumer was made just now, and the server says when that was."""
        self._asked_s = asyncio.get_running_loop().time()
        self._asked_at = made.created

    def _reconnected(self) -> None:
        self._stale = True
        self._queue.put_nowait(_Wake)

    async def _next(self, limit_s: float) -> Msg | None:
        """The next message; None when there is something to look after."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._queue.get()
        except TimeoutError:
            # Not a sign of life: heartbeats were agreed, so the server forgot us.
            self._stale = True
            return _Wake

    async def _retry(self, error: BusError, *, first: bool) -> None:
        """Wait until it makes sense to try again; raise ``error`` when it never will."""
        if self._closed:
            return
        hopeless = isinstance(error, PermissionDeniedError) or self._connection.closing
        if hopeless or (first and not isinstance(error, BusUnavailableError)):
            raise error
        _log.debug("bus.reader_waits", stream=self._stream, error=str(error))
        await asyncio.sleep(_RETRY_S)  # in an outage the next call waits for the server by itself


class OrderedReader(_Reader):
    """Reads alone and in order: the stored messages first, then live ones.

    Args:
        connection: The connection.
        stream: Stream name.
        filters: Subjects wanted.
        from_start: Begin with the first stored message, else with the next one.
        caught_up: Called once when everything was read that was stored when we began.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        stream: str,
        filters: list[str],
        from_start: bool,
        caught_up: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(connection, stream=stream)
        self._caught_up = caught_up
        self._behind = 0  # messages that were stored when we began, and are still to come
        self._filters = filters
        self._last = 0 if from_start else None  # stream sequence seen last
        self._expected = 1  # consumer sequence that comes next
        self._inbox = ""

    async def messages(self) -> AsyncGenerator[Msg, None]:
        """Every message exactly once, endlessly; ends when the bus is closed.

        Raises:
            PermissionDeniedError: This user may not read here.
            BusError: The stream does not exist.
            BusUnavailableError: The bus is not open.
        """
        subscription = None
        first = True
        with self._connection.on_up(self._reconnected):
            try:
                while not self._closed:
                    if self._stale:
                        if subscription is not None:
                            await self._connection.unsubscribe(subscription)
                            subscription = None
                        self._queue = asyncio.Queue()  # all of it comes again
                        try:
                            # A new inbox each time: what still comes to the old one is not ours.
                            self._inbox = self._connection.client.new_inbox()
                            subscription = await self._connection.subscribe(
                                self._inbox, self._receive
                            )
                            await self._begin()
                        except BusError as error:
                            await self._retry(error, first=first)
                        else:
                            first = False
                        continue
                    message = await self._next(_SILENCE_S)
                    if message is not _Wake and not self._stale and await self._accept(message):
                        yield message
                        self._behind -= 1
                        if self._behind <= 0 or not message.metadata.num_pending:
                            self._reach_the_end()
            finally:
                if subscription is not None:
                    await self._connection.unsubscribe(subscription)

    async def _receive(self, message: Msg) -> None:
        self._queue.put_nowait(message)

    async def _begin(self) -> None:
        config = ConsumerConfig(
            # A name of its own makes the server hold us to the filter that permissions allow.
            name=f"read-{uuid.uuid4().hex}",
            deliver_subject=self._inbox,
            deliver_policy=(
                DeliverPolicy.NEW if self._last is None else DeliverPolicy.BY_START_SEQUENCE
            ),
            opt_start_seq=None if self._last is None else self._last + 1,
            ack_policy=AckPolicy.NONE,
            max_deliver=1,
            **filtered(self._filters),
            flow_control=True,
            idle_heartbeat=_HEARTBEAT_S,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=_FORGOTTEN_AFTER_S,
        )
        async with self._connection.calling(f"read {self._stream}"):
            info = await self._connection.jetstream().add_consumer(self._stream, config)
        if self._last is None:
            # "The next one" is fixed here, so that an outage before the first message loses none.
            self._last = info.delivered.stream_seq if info.delivered else 0
        self._note_time(info)
        self._expected = 1
        self._stale = False
        self._behind = info.num_pending or 0
        if self._behind == 0:
            self._reach_the_end()

    def _reach_the_end(self) -> None:
        caught_up, self._caught_up = self._caught_up, None
        if caught_up is not None:
            caught_up()

    async def _accept(self, message: Msg) -> bool:
        """Whether this is the message that comes next; answers the server's own messages."""
        if not message.reply.startswith(_STORED):
            if message.subject == self._inbox and _is_status(message):
                await self._answer(message)
            return False
        here = message.metadata.sequence
        if self._connection.client.is_closed or here.consumer != self._expected:
            self._stale = True
            return False
        self._expected += 1
        self._last = here.stream
        return True

    async def _answer(self, message: Msg) -> None:
        headers = message.headers or {}
        if message.reply:  # flow control: everything before this was taken out of the queue
            await self._connection.send(message.reply, b"")
        elif stalled := headers.get(Header.CONSUMER_STALLED):
            await self._connection.send(stalled, b"")
        elif headers.get(Header.LAST_CONSUMER, str(self._expected - 1)) != str(self._expected - 1):
            self._stale = True
        else:  # it has nothing more for us: what was still to come has expired
            self._reach_the_end()


class QueueReader(_Reader):
    """Reads from a durable position; what is not acknowledged comes again.

    Args:
        connection: The connection.
        stream: Stream name.
        config: The durable consumer.
    """

    def __init__(self, connection: Connection, *, stream: str, config: ConsumerConfig) -> None:
        super().__init__(connection, stream=stream)
        self._config = config
        self._asked = False  # a request of ours is waiting at the server

    async def messages(self) -> AsyncGenerator[Msg, None]:
        """Messages to acknowledge, endlessly; ends when the bus is closed.

        Raises:
            PermissionDeniedError: This user may not read here.
            BusError: The stream does not exist.
            BusUnavailableError: The bus is not open.
        """
        first = True
        subscription = None
        # One inbox for good: a request from before an outage may still be answered on it.
        inbox = self._connection.client.new_inbox()
        with self._connection.on_up(self._reconnected):
            try:
                while not self._closed:
                    if self._stale:
                        try:
                            if subscription is None:
                                subscription = await self._connection.subscribe(
                                    inbox, self._receive
                                )
                            await self._ensure()
                        except BusError as error:
                            await self._retry(error, first=first)
                            continue
                        first = False
                    if not self._asked and self._queue.empty():
                        await self._ask(inbox)
                    message = await self._next(_SILENCE_S)
                    if message is _Wake:
                        continue
                    if _is_status(message):
                        self._look_at(message)
                        continue
                    self._asked = False
                    yield message
            finally:
                if subscription is not None:
                    await self._connection.unsubscribe(subscription)
                await self._give_back()

    async def waiting(self) -> int:
        """How many read from this position now: whoever ended, or fell silent 30 s ago, does not.

        Raises:
            PermissionDeniedError: This user may not read here.
            BusError: The stream does not exist.
        """
        async with self._connection.calling(f"read {self._config.durable_name}"):
            context = self._connection.jetstream()
            info = await context.add_consumer(self._stream, self._config)  # where there is none
        return info.num_waiting or 0

    async def _receive(self, message: Msg) -> None:
        self._queue.put_nowait(message)

    async def _ensure(self) -> None:
        await self.waiting()
        self._stale = self._asked = False

    async def _ask(self, inbox: str) -> None:
        request = {
            "batch": 1,
            "expires": int(_EXPIRES_S * 1e9),
            # nats-py's fetch would notice a dead server only at its time limit.
            "idle_heartbeat": int(_HEARTBEAT_S * 1e9),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._config.durable_name}"
        if self._connection.connected:
            try:
                with heeding_cancellation():
                    await self._connection.client.publish(
                        subject, json.dumps(request).encode(), reply=inbox
                    )
            except (nats.errors.Error, OSError) as error:
                _log.debug("bus.ask_failed", error=str(error))
                return
            self._asked = True

    def _look_at(self, message: Msg) -> None:
        status = (message.headers or {})[Header.STATUS]
        if status == "100":
            return
        self._asked = False
        if status not in {"404", "408"}:  # the consumer was deleted, or the server is leaving
            self._stale = True

    async def _give_back(self) -> None:
        """Hand messages that nobody looked at to the next reader at once."""
        while not self._queue.empty():
            message = self._queue.get_nowait()
            if message is not _Wake and not _is_status(message):
                await self._connection.send(message.reply, Msg.Ack.Nak)
