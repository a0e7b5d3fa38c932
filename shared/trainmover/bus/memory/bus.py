"""The bus inside one process: for tests, replays and simulations, with the semantics of NATS.

Everything is encoded and decoded as on the wire, so that what works here is not more than what
works there.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from trainmover import subjects
from trainmover.bus import requests
from trainmover.bus.dead import readable
from trainmover.bus.memory.broker import DeadLetter, Log, MemoryBroker, Position, Received, Stored
from trainmover.bus.protocol import TELEMETRY_BACKLOG, Entry, RequestHandler
from trainmover.bus.streams import BUCKETS, fact_subjects
from trainmover.commands import Command, DepartureRequest, parse_command
from trainmover.errors import BusError, BusUnavailableError, ConflictError, MalformedEventError
from trainmover.events.envelope import Envelope, decode, encode
from trainmover.events.sequence import Numbering, Screen
from trainmover.job.topology import Frozen
from trainmover.tracing import observe

__all__ = ["MemoryBus"]

T = TypeVar("T")

_log = observe.get_logger(__name__)


class MemoryBus:
    """The ``Bus`` inside one process.

    Args:
        broker: Shared with the other clients; a private one when omitted.
        name: Who we are.
    """

    def __init__(self, broker: MemoryBroker | None = None, *, name: str = "memory") -> None:
        self.broker = broker or MemoryBroker()
        self.name = name
        self._open = False
        self._numbering = Numbering()
        self._mine: set[asyncio.Event] = set()
        self._queues: set[asyncio.Queue[tuple[str, bytes] | None]] = set()
        self._serving: set[str] = set()

    async def __aenter__(self) -> Self:
        if not self.broker.reachable:
            raise BusUnavailableError("the memory broker is not reachable")
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open = False
        for job in self._serving:
            self.broker.handlers.pop(job, None)
        for waker in self._mine:
            waker.set()
        for queue in self._queues:
            queue.put_nowait(None)

    @property
    def connected(self) -> bool:
        """Whether the bus is open and the broker reachable."""
        return self._open and self.broker.reachable

    async def setup(self) -> None:
        """Create the buckets; does nothing where they exist."""
        await self._check("set up the streams")
        for bucket in BUCKETS:
            self.broker.buckets.setdefault(bucket, {})

    async def publish(self, event: Envelope) -> None:
        """Publish a fact exactly once (by source and id)."""
        with (
            observe.publishing(observe.message_template(event), parent=event.trace) as trace,
            self._numbering.next() as sequence,
        ):
            headers, data = encode(replace(event, trace=trace, sequence=sequence))
            await self._check(f"publish {event.subject}")
            stored = Stored(event.subject, headers, data)
            self.broker.facts.append(stored, id_=f"{event.source}#{event.id}")
        self.broker.wake()

    async def events(
        self,
        job: str,
        *,
        entity: str = "*",
        fact: str = "*",
        durable: str | None = None,
        from_start: bool = True,
        one_by_one: bool = False,
        caught_up: Callable[[], None] | None = None,
    ) -> AsyncGenerator[Received[Envelope], None]:
        """Facts of ``job`` in stream order; see ``Bus.events``."""
        await self._check("read facts")
        log = self.broker.facts
        start = 0 if from_start else len(log.messages)
        if durable is None:
            position = Position(next=start)
        else:
            name = f"facts:{job}:{subjects.validate_id(durable, what='position')}"
            position = self.broker.positions.setdefault(name, Position(next=start))
            position.one_by_one = one_by_one
        wanted = _matcher(fact_subjects(job, entity=entity, fact=fact))
        screen = Screen()

        def parse(message: Stored, attempt: int) -> Envelope:
            event = decode(message.subject, message.headers, message.data)
            if attempt == 1:  # what comes again was screened before
                screen.check(event)
            return event

        shared = durable is not None
        reading = self._read(log, position, wanted, parse, shared=shared, caught_up=caught_up)
        async with contextlib.aclosing(reading):
            async for delivery in reading:
                yield delivery

    async def event_count(self, job: str) -> int:
        """Number of facts of ``job`` stored now."""
        await self._check("count facts")
        wanted = _matcher(fact_subjects(job))
        return sum(wanted(message.subject) for message in self.broker.facts.messages)

    async def send_command(self, job: str, machine: str, command: Command, *, id: str) -> None:
        """Queue a command for one machine's agent; a repeated ``id`` is queued once."""
        subject = subjects.command(job, machine)
        with observe.publishing("tm.v1.{job}.cmd.{machine}") as trace:
            await self._check(f"send {command.verb} to {machine}")
            stored = Stored(subject, trace, command.model_dump_json().encode())
            self.broker.commands.append(stored, id_=f"{job}/{machine}#{id}")
        self.broker.wake()

    async def commands(self, job: str, machine: str) -> AsyncIterator[Received[Command]]:
        """Commands for one machine, redelivered until acknowledged."""
        await self._check("read commands")
        subject = subjects.command(job, machine)
        position = self.broker.positions.setdefault(subject, Position())
        wanted = _matcher([subject])

        def parse(message: Stored, _attempt: int) -> Command:
            return parse_command(message.data)

        reading = self._read(self.broker.commands, position, wanted, parse, shared=True)
        position.readers += 1
        try:
            async with contextlib.aclosing(reading):
                async for delivery in reading:
                    yield delivery
        finally:
            position.readers -= 1

    async def command_readers(self, job: str, machine: str) -> int:
        """How many agents read commands of one machine now."""
        await self._check("read commands")
        position = self.broker.positions.get(subjects.command(job, machine))
        return position.readers if position else 0

    async def send_telemetry(self, job: str, machine: str, data: bytes) -> None:
        """Send a telemetry batch; dropped while the broker is unreachable."""
        subject = subjects.telemetry(job, machine)
        if not self.connected:
            return
        for queue, pattern in self.broker.listeners.items():
            if _matcher([pattern])(subject):
                if queue.qsize() >= TELEMETRY_BACKLOG:
                    queue.get_nowait()
                queue.put_nowait((machine, data))

    async def telemetry(self, job: str) -> AsyncIterator[tuple[str, bytes]]:
        """(machine, batch) of a job as they come; the oldest are dropped for a slow reader."""
        await self._check("read telemetry")
        queue: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        self.broker.listeners[queue] = subjects.telemetry_all(job)
        self._queues.add(queue)
        try:
            while (batch := await queue.get()) is not None:
                yield batch
        finally:
            self._queues.discard(queue)
            self.broker.listeners.pop(queue, None)

    async def request(self, job: str, verb: str, body: Frozen, *, timeout_s: float = 5.0) -> bytes:
        """Ask the service that serves ``verb`` and return the reply body."""
        subjects.request(job, verb)
        what = f"ask {verb!r} of job {job!r}"
        await self._check(what)
        handler = self.broker.handlers.get(job)
        if handler is None:
            raise BusUnavailableError(f"cannot {what}: nobody listens there; is its planner up?")
        try:
            async with asyncio.timeout(timeout_s):
                with observe.publishing("tm.v1.{job}.request." + verb):
                    return await requests.answer(handler, verb, body.model_dump_json().encode())
        except TimeoutError as error:
            raise BusUnavailableError(f"cannot {what}: no answer in {timeout_s:g} s") from error

    async def depart(
        self, job: str, machine: str, *, reason: str, dry_run: bool = False, timeout_s: float = 5.0
    ) -> bytes:
        """Ask that ``machine`` be replaced; the reply body."""
        what = f"ask that {machine} be replaced in job {job!r}"
        subjects.departure(job, machine)
        await self._check(what)
        handler = self.broker.handlers.get(job)
        if handler is None:
            raise BusUnavailableError(f"cannot {what}: nobody listens there; is its planner up?")
        body = DepartureRequest(reason=reason, dry_run=dry_run).model_dump_json().encode()
        try:
            async with asyncio.timeout(timeout_s):
                return await requests.answer_departure(handler, machine, body)
        except TimeoutError as error:
            raise BusUnavailableError(f"cannot {what}: no answer in {timeout_s:g} s") from error

    async def serve(self, job: str, handler: RequestHandler) -> None:
        """Answer requests of ``job`` with ``handler`` until the bus is closed; returns at once."""
        await self._check(f"serve job {job}")
        subjects.requests(job)
        self.broker.handlers[job] = handler
        self._serving.add(job)

    async def get(self, bucket: str, key: str) -> Entry | None:
        """Current value of a key, or None."""
        return (await self._bucket(bucket)).get(subjects.validate_key(key))

    async def keys(self, bucket: str) -> list[str]:
        """All keys of a bucket, sorted."""
        return sorted(await self._bucket(bucket))

    async def put(self, bucket: str, key: str, value: bytes, *, revision: int | None) -> Entry:
        """Compare and set; see ``Bus.put``."""
        entries = await self._bucket(bucket)
        stored = entries.get(subjects.validate_key(key))
        if (stored.revision if stored else None) != revision:
            raise ConflictError(f"{bucket}/{key}", revision=revision)
        self.broker.revision += 1
        entries[key] = Entry(key=key, value=value, revision=self.broker.revision)
        return entries[key]

    async def _bucket(self, bucket: str) -> dict[str, Entry]:
        await self._check(f"use bucket {bucket}")
        try:
            return self.broker.buckets[bucket]
        except KeyError:
            raise BusError(f"bucket {bucket} does not exist: was setup() called once?") from None

    async def _check(self, what: str) -> None:
        await asyncio.sleep(0)  # others get a turn, as they would over a network
        if not self._open:
            raise BusUnavailableError(f"cannot {what}: this bus is closed")
        if not self.broker.reachable:
            raise BusUnavailableError(f"cannot {what}: the memory broker is not reachable")

    async def _read(
        self,
        log: Log,
        position: Position,
        wanted: Callable[[str], bool],
        parse: Callable[[Stored, int], T],
        *,
        shared: bool,
        caught_up: Callable[[], None] | None = None,
    ) -> AsyncGenerator[Received[T], None]:
        broker = self.broker
        stored = len(log.messages)
        with self._waking() as changed:
            while self._open:
                changed.clear()
                due = broker.take(log, position, wanted) if broker.reachable else None
                all_read = position.next > stored or (due is None and position.next >= stored)
                if caught_up is not None and all_read:
                    caught_up()
                    caught_up = None
                if due is None:
                    await changed.wait()
                    continue
                index, attempt = due
                message = log.messages[index]
                if not shared:
                    position.timers.pop(index).cancel()
                try:
                    payload = readable(parse, message, attempt)
                except MalformedEventError as error:
                    if timer := position.timers.pop(index, None):
                        timer.cancel()
                    letter = DeadLetter(message.subject, message.data, str(error), error.kind)
                    broker.dead_letters.append(letter)
                    _log.warning("bus.dead_letter", subject=message.subject, reason=str(error))
                    continue
                yield Received(
                    payload=payload,
                    trace=observe.trace_headers(message.headers),
                    attempt=attempt,
                    index=index,
                    broker=broker,
                    position=position if shared else None,
                    message=message,
                )

    @contextlib.contextmanager
    def _waking(self) -> Iterator[asyncio.Event]:
        waker = asyncio.Event()
        self._mine.add(waker)
        self.broker.wakers.add(waker)
        try:
            yield waker
        finally:
            self._mine.discard(waker)
            self.broker.wakers.discard(waker)


def _matcher(patterns: list[str]) -> Callable[[str], bool]:
    joined = "|".join(re.escape(each).replace(r"\*", r"[^.]+") for each in patterns)
    pattern = re.compile(joined)
    return lambda subject: pattern.fullmatch(subject) is not None
