"""What the clients of an in-process bus share: logs, durable positions, buckets, and who waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from trainmover.bus.protocol import Entry, RequestHandler

__all__ = ["DeadLetter", "Log", "MemoryBroker", "Position", "Received", "Stored"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as it was sent."""

    subject: str
    headers: Mapping[str, str]
    data: bytes
    stored_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that nobody could read, and why."""

    subject: str
    data: bytes
    reason: str
    kind: str


class Log:
    """An append-only list of messages with deduplication."""

    def __init__(self) -> None:
        self.messages: list[Stored] = []
        self._ids: set[str] = set()

    def append(self, message: Stored, *, id_: str | None) -> None:
        """Store a message, unless one with this id is stored."""
        if id_ is None or id_ not in self._ids:
            self.messages.append(message)
        if id_ is not None:
            self._ids.add(id_)


@dataclass(slots=True)
class Position:
    """A durable place in a log: what comes next, what is out, what must come again."""

    next: int = 0
    again: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    timers: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    one_by_one: bool = False
    readers: int = 0


class MemoryBroker:
    """What several ``MemoryBus`` of one process share.

    Tests may use ``reachable``, ``inject`` and ``dead_letters``; the rest is for ``MemoryBus``.

    Args:
        ack_wait_s: A message that is not acknowledged for this many seconds comes again.

    Attributes:
        dead_letters: Messages that could not be read, oldest first.
    """

    def __init__(self, *, ack_wait_s: float = 10.0) -> None:
        self.dead_letters: list[DeadLetter] = []
        self._ack_wait_s = ack_wait_s
        self._reachable = True
        self.facts = Log()
        self.commands = Log()
        self.positions: dict[str, Position] = {}
        self.handlers: dict[str, RequestHandler] = {}
        self.listeners: dict[asyncio.Queue[tuple[str, bytes] | None], str] = {}
        self.buckets: dict[str, dict[str, Entry]] = {}
        self.revision = 0
        self.wakers: set[asyncio.Event] = set()

    @property
    def reachable(self) -> bool:
        """Whether clients can reach the broker; set it to play an outage."""
        return self._reachable

    @reachable.setter
    def reachable(self, value: bool) -> None:
        self._reachable = value
        self.wake()

    def inject(self, subject: str, headers: Mapping[str, str], data: bytes) -> None:
        """Store a raw message as a foreign client would, well-formed or not."""
        log = self.commands if ".cmd." in subject else self.facts
        log.append(Stored(subject, dict(headers), data), id_=None)
        self.wake()

    def wake(self) -> None:
        """Let every reader look again."""
        for waker in self.wakers:
            waker.set()

    def take(
        self, log: Log, position: Position, wanted: Callable[[str], bool]
    ) -> tuple[int, int] | None:
        """(index, attempt) of the message that is due at ``position`` and now counts as out."""
        if position.one_by_one and position.timers:
            return None
        index: int | None = None
        if position.again:
            index = position.again.pop(0)
        while index is None and position.next < len(log.messages):
            if wanted(log.messages[position.next].subject):
                index = position.next
            position.next += 1
        if index is None:
            return None
        attempt = position.attempts[index] = position.attempts.get(index, 0) + 1
        self.await_ack(position, index)
        return index, attempt

    def await_ack(self, position: Position, index: int) -> None:
        """Deliver a message again unless it is acknowledged in time."""
        loop = asyncio.get_running_loop()
        position.timers[index] = loop.call_later(self._ack_wait_s, self.again, position, index)

    def again(self, position: Position, index: int) -> None:
        """Let a message that is out be delivered again."""
        position.timers.pop(index).cancel()
        position.again.append(index)
        position.again.sort()
        self.wake()


@dataclass(frozen=True, slots=True)
class Received(Generic[T]):
    """A message; without a position, acknowledging means nothing."""

    payload: T
    trace: Mapping[str, str]
    attempt: int
    index: int
    broker: MemoryBroker
    position: Position | None
    message: Stored

    @property
    def stream_sequence(self) -> int:
        """See ``Delivery.stream_sequence``."""
        return self.index + 1

    @property
    def age_s(self) -> float:
        """See ``Delivery.age_s``."""
        return time.monotonic() - self.message.stored_s

    async def ack(self) -> None:
        """See ``Delivery.ack``."""
        if self.position is not None and (timer := self.position.timers.pop(self.index, None)):
            timer.cancel()
            self.broker.wake()

    async def extend(self) -> None:
        """See ``Delivery.extend``."""
        if self.position is not None and self.index in self.position.timers:
            self.position.timers.pop(self.index).cancel()
            self.broker.await_ack(self.position, self.index)

    async def nak(self, *, delay_s: float = 0.0) -> None:
        """See ``Delivery.nak``."""
        position = self.position
        if position is not None and (timer := position.timers.pop(self.index, None)):
            timer.cancel()
            loop = asyncio.get_running_loop()
            position.timers[self.index] = loop.call_later(
                delay_s, self.broker.again, position, self.index
            )

    async def reject(self, reason: str) -> None:
        """See ``Delivery.reject``."""
        await self.ack()
        if self.position is not None:
            letter = DeadLetter(self.message.subject, self.message.data, reason, "refused")
            self.broker.dead_letters.append(letter)
