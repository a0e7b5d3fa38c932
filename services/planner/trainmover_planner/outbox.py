"""Carries out what the core decided: commands at once, facts in order, mirrors when there is time.

Nothing here ever gives up: the core already counts on it. Ids make repeating harmless.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from trainmover.bus.protocol import Bus
from trainmover.commands import AbortMigration, Prepare, Recover
from trainmover.commands import Command as AgentCommand
from trainmover.errors import BusError, BusUnavailableError, ConflictError
from trainmover.events.envelope import Envelope
from trainmover.job.topology import Frozen
from trainmover.runtime.lease import Lease
from trainmover.tracing import observe
from trainmover.tracing.timeline import Phases
from trainmover_planner.migrations.requests import migration_status
from trainmover_planner.state.effects import (
    Command,
    PublishFact,
    SaveJob,
    SaveMigration,
    SendCommand,
)
from trainmover_planner.state.state import SOURCE

__all__ = ["Outbox"]

_log = observe.get_logger(__name__)
_FIRST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 2.0
_MIRROR_SHARE: Final = 20
"""A mirror is written again after so many times the time that it took to draw ..."""
_QUICK_S: Final = 0.02
"""... unless that was nothing."""
_REVISIONS: Final = 256
"""Keys whose revision is known; that of another one is looked up."""
_AT_ONCE: Final = 64
"""Commands under way to the bus: of thousands at once, the last ones would be given up before they
were written, and all be said again."""


class Outbox:
    """Queues towards the bus.

    A command that is not urgent waits until the facts decided before it are stored, so that a
    planner that starts over knows of it. Commands for one machine keep their order.

    Args:
        bus: A connected bus.
        job: Job name.
        status: How the job stands now; asked for when there is time to mirror it.
        lease: Nothing leaves without it; None where there are no replicas.
        group: Where the sending tasks live.
    """

    def __init__(
        self,
        bus: Bus,
        job: str,
        group: asyncio.TaskGroup,
        *,
        status: Callable[[], Frozen],
        lease: Lease | None = None,
    ) -> None:
        self._bus = bus
        self._status = status
        self._job = job
        self._group = group
        self._lease = lease
        self._facts: asyncio.Queue[PublishFact | asyncio.Event] = asyncio.Queue()
        self._machines: dict[str, asyncio.Queue[tuple[SendCommand, asyncio.Event | None]]] = {}
        self._mirror: dict[tuple[str, str], Callable[[], Frozen]] = {}
        self._revisions: dict[tuple[str, str], int] = {}
        self._dirty = asyncio.Event()
        self._traces = observe.TraceBook()
        self._phases = Phases()
        self._under_way = asyncio.Semaphore(_AT_ONCE)
        self._stamped: tuple[AgentCommand, int, AgentCommand] | None = None
        group.create_task(self._publish_facts(), name="planner-facts")
        group.create_task(self._save_mirrors(), name="planner-mirrors")

    def carry_out(self, commands: Iterable[Command]) -> None:
        """Queue everything; returns at once. Replies are the caller's business."""
        ordered = list(commands)
        gates = {
            index: asyncio.Event()
            for index, command in enumerate(ordered)
            if isinstance(command, SendCommand) and not command.urgent
        }
        # Commands first: on the failure path ranks stand still until they arrive.
        for index, command in enumerate(ordered):
            if isinstance(command, SendCommand):
                self._queue(command, gates.get(index))
        for index, command in enumerate(ordered):
            match command:
                case PublishFact():
                    self._facts.put_nowait(command)
                case SendCommand() if index in gates:
                    self._facts.put_nowait(gates[index])
                case SaveMigration(migration=one):
                    key = f"{self._job}.{one.id}"
                    self._save("tm_migrations", key, functools.partial(migration_status, one))
                case SaveJob():
                    self._save("tm_jobs", self._job, self._status)
                case _:
                    pass

    def _queue(self, command: SendCommand, gate: asyncio.Event | None) -> None:
        machine = command.machine
        if machine in self._machines:
            self._machines[machine].put_nowait((command, gate))
            return
        self._machines[machine] = asyncio.Queue()
        self._machines[machine].put_nowait((command, gate))
        self._group.create_task(self._send_commands(machine), name=f"planner-to-{machine}")

    async def _send_commands(self, machine: str) -> None:
        """Send what is queued for a machine, then end: machines come and go under new names."""
        queue = self._machines[machine]
        while not queue.empty():
            item, gate = queue.get_nowait()
            if gate is not None:
                await gate.wait()
            trace = item.trace or self._traces.of(_migration(item.command))
            with observe.span("planner.command", parent=trace, verb=item.command.verb):
                await _insist(lambda item=item: self._send(item))  # type: ignore[misc]
        del self._machines[machine]

    async def _send(self, item: SendCommand) -> None:
        async with self._under_way:
            await self._send_now(item)

    async def _send_now(self, item: SendCommand) -> None:
        if self._lease is None:
            await self._bus.send_command(self._job, item.machine, item.command, id=item.id)
            return
        await self._lease.confirmed()
        term = self._lease.term
        command = self._of_term(item.command, term)
        # The term is in the id: what an earlier planner said late does not count, and must not hide
        # what this one says again.
        await self._bus.send_command(self._job, item.machine, command, id=f"{item.id}:{term}")

    def _of_term(self, command: AgentCommand, term: int) -> AgentCommand:
        """The command with our term: the same one for all machines, so that it is encoded once."""
        known = self._stamped
        if known is None or known[0] is not command or known[1] != term:
            known = (command, term, command.model_copy(update={"term": term}))
            self._stamped = known
        return known[2]

    async def _publish(self, event: Envelope) -> None:
        if self._lease is not None:
            await self._lease.confirmed()
        await self._bus.publish(event)

    async def _publish_facts(self) -> None:
        while True:
            item = await self._facts.get()
            if isinstance(item, asyncio.Event):
                item.set()
                continue
            # A migration that nobody's trace led to gets one of its own.
            migration = getattr(item.payload, "migration", None)
            with observe.span("planner.fact", parent=item.trace or self._traces.of(migration)):
                self._traces.keep(migration, observe.current_trace())
                event = observe.new_event(
                    job=self._job, source=SOURCE, payload=item.payload, id=item.id
                )
                await _insist(lambda event=event: self._publish(event))  # type: ignore[misc]
                observe.record(self._phases.take(event), parent=observe.current_trace())
            _log.info("planner.fact", type=event.type, id=item.id)

    def _save(self, bucket: str, key: str, value: Callable[[], Frozen]) -> None:
        self._mirror[bucket, key] = value
        self._dirty.set()

    async def _save_mirrors(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            while self._mirror:
                where = next(iter(self._mirror))
                began_s = time.monotonic()
                value = self._mirror.pop(where)().model_dump_json().encode()
                took_s = time.monotonic() - began_s
                try:
                    await _insist(lambda w=where, v=value: self._put(w, v))  # type: ignore[misc]
                except BusError as error:
                    # Only readers want it; whoever may not write it can still plan.
                    _log.error("planner.mirror_failed", bucket=where[0], reason=str(error))
                # The state of a large job takes long: it must not take the planner's time.
                if took_s > _QUICK_S:
                    await asyncio.sleep(_MIRROR_SHARE * took_s)

    async def _put(self, where: tuple[str, str], value: bytes) -> None:
        bucket, key = where
        try:
            entry = await self._bus.put(bucket, key, value, revision=self._revisions.get(where))
        except ConflictError:
            # An earlier planner wrote it, or our own write arrived although we were told nothing.
            known = await self._bus.get(bucket, key)
            revision = None if known is None else known.revision
            entry = await self._bus.put(bucket, key, value, revision=revision)
        self._revisions.pop(where, None)  # the latest ones are at the end
        self._revisions[where] = entry.revision
        if len(self._revisions) > _REVISIONS:
            del self._revisions[next(iter(self._revisions))]


def _migration(command: AgentCommand) -> str | None:
    match command:
        case Prepare(plan=plan) | Recover(plan=plan):
            return plan.id
        case AbortMigration(migration=id):
            return id
        case _:
            return None


async def _insist(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat ``call`` until the bus takes it."""
    delay_s = _FIRST_RETRY_S
    while True:
        try:
            await call()
        except (BusUnavailableError, ConflictError) as error:
            _log.warning("planner.bus_unavailable", retry_in_s=delay_s, reason=str(error))
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_RETRY_S)
        else:
            return
