"""The bus over NATS: JetStream for facts, commands and key-value state, core NATS for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy, Header
from nats.micro import add_service

from trainmover import subjects
from trainmover.bus import requests, streams
from trainmover.bus.credentials import Credentials
from trainmover.bus.nats.buckets import Buckets
from trainmover.bus.nats.connection import Connection
from trainmover.bus.nats.deliveries import Deliveries, Received
from trainmover.bus.nats.packing import ENCODING, Packer, unpack
from trainmover.bus.nats.reading import OrderedReader, QueueReader
from trainmover.bus.nats.resuming import ResumingReader
from trainmover.bus.protocol import TELEMETRY_BACKLOG, TELEMETRY_BYTES, Entry, RequestHandler
from trainmover.commands import Command, DepartureRequest, parse_command
from trainmover.errors import BusUnavailableError, MalformedEventError
from trainmover.events.catalog import type_of
from trainmover.events.envelope import Envelope, decode, encode, percent_encode
from trainmover.events.sequence import Numbering, Screen
from trainmover.job.topology import Frozen
from trainmover.tracing import observe

__all__ = ["NatsBus"]

_ADDRESSEE: Final = "tm-to"
_INBOX: Final = "_INBOX."


class NatsBus:
    """The ``Bus`` over a NATS server with JetStream.

    Args:
        url: ``nats://host:port``, or several of one cluster separated by commas; with
            ``user:password@`` in front of the host where the server wants that.
        name: Who we are, shown by the server's own tools.
        timeout_s: How long one operation may take before ``BusUnavailableError``, seconds.
        ack_wait_s: A message that is not acknowledged for this many seconds comes again.
        connect_timeout: Limit for the first connection, seconds.
        on_disconnect: Awaited when the server is lost.
        on_reconnect: Awaited when it is back.
        credentials: Who we are; from ``TRAINMOVER_NATS_NKEY`` and the like when omitted.
        options: Passed to nats-py as well.
    """

    QUEUE_FORGOTTEN_AFTER_S: ClassVar[float] = 600.0
    """How long the server keeps the place of an agent that asks for no commands.

    Names of machines come and go. Nothing is lost with a place: what was not acknowledged is still
    stored, and an agent that comes back is given it from the start.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "trainmover",
        timeout_s: float = 1.0,
        ack_wait_s: float = 10.0,
        connect_timeout: float = 2.0,
        on_disconnect: Callable[[], Awaitable[None]] | None = None,
        on_reconnect: Callable[[], Awaitable[None]] | None = None,
        credentials: Credentials | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._connection = Connection(
            url,
            name=name,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout,
            credentials=credentials,
            options=options,
        )
        if on_disconnect is not None:
            self._connection.on_lost(on_disconnect)
        if on_reconnect is not None:
            self._connection.on_back(on_reconnect)
        self._deliveries = Deliveries(self._connection, ack_wait_s=ack_wait_s)
        self._buckets = Buckets(self._connection)
        self._numbering = Numbering()
        self._packer = Packer()
        self._entered = False
        self._queues: set[asyncio.Queue[Msg | None]] = set()

    async def __aenter__(self) -> Self:
        await self._connection.open()
        self._entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._deliveries.close()
        for queue in tuple(self._queues):
            queue.put_nowait(None)
        await self._connection.close()

    @property
    def connected(self) -> bool:
        """Whether the server is reachable right now, as far as is known."""
        return self._connection.connected

    @property
    def client(self) -> Client:
        """The nats-py client, for what the ``Bus`` protocol does not cover."""
        return self._connection.client

    @property
    def url(self) -> str:
        """The address this bus was made with, without user and password."""
        return self._connection.url

    async def setup(self, *, replicas: int | None = None) -> None:
        """Create streams and buckets; does nothing where they exist.

        Args:
            replicas: On how many servers of a cluster each is kept, those that exist included;
                as ``TRAINMOVER_NATS_REPLICAS`` says when omitted.

        Raises:
            ConfigError: The variable is not a number of servers.
            BusError: There are not so many servers.
        """
        wanted = streams.replicas_wanted() if replicas is None else replicas
        async with self._connection.calling("set up the streams", timeout_s=10.0):
            await streams.ensure(self._connection.jetstream(), replicas=wanted)

    async def announce(self, service: str, *, version: str) -> None:
        """Answer the standard ``$SRV.PING|INFO|STATS`` requests: the health check of a service."""
        async with self._connection.calling(f"announce {service}"):
            await add_service(self._connection.client, name=service, version=version)

    async def ping(self) -> None:
        """Return once the server has answered; ``BusUnavailableError`` when it does not."""
        async with self._connection.calling("ping the server"):
            await self._connection.client.flush()

    async def publish(self, event: Envelope) -> None:
        """Publish a fact exactly once (by source and id) and return once it is stored."""
        template = observe.message_template(event)
        with (
            observe.publishing(template, parent=event.trace) as trace,
            self._numbering.next() as sequence,
        ):
            headers, data = encode(replace(event, trace=trace, sequence=sequence))
            headers[Header.MSG_ID] = f"{event.source}#{headers['ce-id']}"
            async with self._connection.calling(f"publish {event.subject}"):
                await self._connection.jetstream().publish(
                    event.subject, data, headers=headers, msg_ttl=type_of(event.payload).kept_s
                )

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
        filters = streams.fact_subjects(job, entity=entity, fact=fact)
        reader: OrderedReader | ResumingReader | QueueReader
        if durable is None:
            reader = self._deliveries.in_order(filters, from_start=from_start, caught_up=caught_up)
        else:
            policy = DeliverPolicy.ALL if from_start else DeliverPolicy.NEW
            # A position belongs to its job: two jobs may use the same name.
            name = f"facts:{job.replace('*', '')}:{subjects.validate_id(durable, what='position')}"
            pending = 1 if one_by_one else None
            reader = self._deliveries.queued(
                subjects.EVENT_STREAM, name, filters, policy, max_ack_pending=pending
            )
        screen = Screen()

        def parse(message: Msg) -> Envelope:
            event = decode(message.subject, message.headers, message.data)
            if (message.metadata.num_delivered or 1) == 1:  # what comes again was screened before
                screen.check(event)
            return event

        async for delivery in self._deliveries.of(reader, parse):
            yield delivery

    async def event_count(self, job: str) -> int:
        """Number of facts of ``job`` stored now."""
        async with self._connection.calling("count facts"):
            info = await self._connection.jetstream().stream_info(
                subjects.EVENT_STREAM, subjects_filter=subjects.everything(job)
            )
        return sum((info.state.subjects or {}).values())

    async def send_command(self, job: str, machine: str, command: Command, *, id: str) -> None:
        """Queue a command for one machine's agent; a repeated ``id`` is queued once."""
        subject = subjects.command(job, machine)
        with observe.publishing("tm.v1.{job}.cmd.{machine}") as trace:
            packed, data = self._packer.pack(command)
            # Ids are per machine: the same plan goes to every machine under one id.
            headers = {
                **packed,
                Header.MSG_ID.value: percent_encode(f"{job}/{machine}#{id}"),
                _ADDRESSEE: f"{job}/{machine}",
                **trace,
            }
            async with self._connection.calling(f"send {command.verb} to {machine}"):
                await self._connection.jetstream().publish(subject, data, headers=headers)

    async def commands(self, job: str, machine: str) -> AsyncIterator[Received[Command]]:
        """Commands for one machine, redelivered until acknowledged."""
        reader = self._reader_of(job, machine)
        addressee = f"{job}/{machine}"

        def parse(message: Msg) -> Command:
            return _parse_command(message, addressee)

        async for delivery in self._deliveries.of(reader, parse):
            yield delivery

    async def command_readers(self, job: str, machine: str) -> int:
        """How many agents wait for commands of one machine now; see ``Bus.command_readers``."""
        return await self._reader_of(job, machine).waiting()

    def _reader_of(self, job: str, machine: str) -> QueueReader:
        return self._deliveries.queued(
            subjects.COMMAND_STREAM,
            f"agent:{job}:{machine}",  # ':' cannot be in a name: no two machines share a queue
            [subjects.command(job, machine)],
            DeliverPolicy.ALL,
            forgotten_after_s=self.QUEUE_FORGOTTEN_AFTER_S,
        )

    async def send_telemetry(self, job: str, machine: str, data: bytes) -> None:
        """Send a telemetry batch; dropped while the server is unreachable."""
        await self._connection.send(subjects.telemetry(job, machine), data)

    async def telemetry(self, job: str) -> AsyncIterator[tuple[str, bytes]]:
        """(machine, batch) of a job as they come; the oldest are dropped for a slow reader."""
        queue: asyncio.Queue[Msg | None] = asyncio.Queue()
        waiting = 0

        async def receive(message: Msg) -> None:
            nonlocal waiting
            waiting += len(message.data)
            while queue.qsize() >= TELEMETRY_BACKLOG or (
                waiting > TELEMETRY_BYTES and not queue.empty()
            ):
                dropped = queue.get_nowait()
                waiting -= len(dropped.data) if dropped is not None else 0
            queue.put_nowait(message)

        subscription = None
        self._queues.add(queue)
        try:
            subscription = await self._connection.subscribe_patiently(
                subjects.telemetry_all(job), receive
            )
            while (message := await queue.get()) is not None:
                waiting -= len(message.data)
                yield message.subject.rpartition(".")[2], message.data
        except BusUnavailableError:
            if not self._entered:
                raise  # else it was closed before the subscription was there
        finally:
            self._queues.discard(queue)
            if subscription is not None:
                await self._connection.unsubscribe(subscription)

    async def request(self, job: str, verb: str, body: Frozen, *, timeout_s: float = 5.0) -> bytes:
        """Ask the service that serves ``verb`` and return the reply body."""
        subject = subjects.request(job, verb)
        what = f"ask {verb!r} of job {job!r} (is its planner running?)"
        with observe.publishing("tm.v1.{job}.request." + verb) as trace:
            async with self._connection.calling(what, timeout_s=timeout_s):
                reply = await self._connection.client.request(
                    subject, body.model_dump_json().encode(), timeout=timeout_s, headers=trace
                )
        return reply.data

    async def depart(
        self, job: str, machine: str, *, reason: str, dry_run: bool = False, timeout_s: float = 5.0
    ) -> bytes:
        """Ask that ``machine`` be replaced, with its own key; the reply body."""
        body = DepartureRequest(reason=reason, dry_run=dry_run).model_dump_json().encode()
        what = f"ask that {machine} be replaced in job {job!r} (is its planner running?)"
        with observe.publishing("tm.v1.{job}.departure.{machine}") as trace:
            async with self._connection.calling(what, timeout_s=timeout_s):
                reply = await self._connection.client.request(
                    subjects.departure(job, machine), body, timeout=timeout_s, headers=trace
                )
        return reply.data

    async def serve(self, job: str, handler: RequestHandler) -> None:
        """Answer requests of ``job`` with ``handler`` until the bus is closed.

        Returns once requests are being answered. They are answered one after the other.
        """

        async def request(message: Msg, verb: str) -> bytes:
            return await requests.answer(handler, verb, message.data)

        async def departure(message: Msg, machine: str) -> bytes:
            return await requests.answer_departure(handler, machine, message.data)

        await self._answer(subjects.requests(job), "request", request)
        await self._answer(subjects.departures(job), "departure", departure)

    async def _answer(
        self, pattern: str, what: str, reply_to: Callable[[Msg, str], Awaitable[bytes]]
    ) -> None:
        async def receive(message: Msg) -> None:
            name = message.subject.rpartition(".")[2]
            if not message.reply.startswith(_INBOX):
                # An answer of ours must not end up where its asker may not write; and whoever may
                # read can have the server deliver something here that was meant as no request.
                error = f"{what} {name!r} asks for an answer on {message.reply!r}: not an inbox"
                await self._deliveries.bury(message, MalformedEventError(error, kind="foreign"))
                return
            template = f"process tm.v1.{{job}}.{what}." + (name if what == "request" else "*")
            with observe.continued(message.headers, template):
                reply = await reply_to(message, name)
            # Msg.respond takes no headers and raises in an outage: the asker times out then.
            await self._connection.send(message.reply, reply)

        await self._connection.subscribe(pattern, receive)

    async def get(self, bucket: str, key: str) -> Entry | None:
        """Current value of a key, or None."""
        return await self._buckets.get(bucket, key)

    async def keys(self, bucket: str) -> list[str]:
        """All keys of a bucket, sorted."""
        return await self._buckets.keys(bucket)

    async def put(self, bucket: str, key: str, value: bytes, *, revision: int | None) -> Entry:
        """Compare and set; see ``Bus.put``."""
        return await self._buckets.put(bucket, key, value, revision=revision)


def _parse_command(message: Msg, addressee: str) -> Command:
    named = (message.headers or {}).get(_ADDRESSEE)
    if named != addressee:
        # The server delivers stored messages wherever a consumer asks for: a command for another
        # machine could be sent here by somebody who may not write commands.
        raise MalformedEventError(f"command for {named!r} came to {addressee!r}", kind="foreign")
    return parse_command(unpack((message.headers or {}).get(ENCODING), message.data))
