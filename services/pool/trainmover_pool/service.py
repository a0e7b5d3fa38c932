"""The shell of a pool's leader: machines' words, planners' answers and time in, orders out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from trainmover.bus.facts import RETRY_S, every_fact
from trainmover.bus.protocol import Bus
from trainmover.commands import Assign, Lead, Refusal
from trainmover.commands import Command as MachineCommand
from trainmover.errors import (
    BusError,
    BusUnavailableError,
    PermissionDeniedError,
    ProtocolError,
    RequestRefusedError,
)
from trainmover.events.machine import PoolMachineAssigned, PoolMachineRecalled, PoolMachineSeen
from trainmover.job.topology import Frozen
from trainmover.protocol.replies import parse, parse_as
from trainmover.protocol.requests import (
    PoolStatus,
    ReleaseRequest,
    StandbysRequest,
    StandbysStatus,
)
from trainmover.runtime.lease import Lease
from trainmover.tracing import observe
from trainmover.tracing.seldom import Seldom
from trainmover_pool import core
from trainmover_pool.sharing_file import SharingFile
from trainmover_pool.state import (
    SOURCE,
    Ask,
    Assigning,
    Command,
    Declared,
    Event,
    JobSeen,
    JobUnknown,
    Leading,
    MachineSeen,
    Recalling,
    Released,
    Reply,
    State,
    Tick,
)

__all__ = ["Pool"]

_log = observe.get_logger(__name__)
_ASK_S: Final = 2.0
"""A planner is asked so often, and at once when its job says that something happened."""
_ANSWER_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class _CaughtUp:
    """In the inbox: what comes from now on was not said before we led."""


class Pool:
    """The leader of one pool.

    Args:
        bus: A connected bus.
        pool: Its name.
        sharing: What is declared.
        lease: Held while it leads.
    """

    def __init__(self, bus: Bus, *, pool: str, sharing: SharingFile, lease: Lease) -> None:
        self._bus = bus
        self._pool = pool
        self._file = sharing
        self._lease = lease
        self._state = State(pool=pool)
        self._inbox: asyncio.Queue[Event | _CaughtUp] = asyncio.Queue()
        self._replies: dict[str, asyncio.Future[PoolStatus]] = {}
        self._numbers = itertools.count(1)
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._silent: set[str] = set()
        self._complain = Seldom(_log.warning)

    async def run(self) -> None:
        """Lead until cancelled, once nobody else does.

        Raises:
            PolicyError: What is declared is wrong.
            LeaseLostError: In a group: another replica leads now.
        """
        declared = self._file.load()  # a replica must not find out when it is needed
        term = await self._lease.acquire()
        self._state = State(pool=self._pool, term=term)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._lease.keep(), name="pool-lease")
                group.create_task(self._read(), name="pool-read")
                await self._catch_up()
                await self._bus.serve(self._pool, self._answer)
                group.create_task(self._follow_file(), name="pool-file")
                _log.info("pool.ready", pool=self._pool, term=term, jobs=sorted(declared.jobs))
                self._step(Declared(declared), group)
                await self._loop(group)
        finally:
            if self._lease.held:
                await self._lease.give_back()

    # -- what comes in -------------------------------------------------------------------------

    async def _read(self) -> None:
        def waits(error: BusUnavailableError) -> None:
            _log.warning("pool.bus_unavailable", retry_in_s=RETRY_S, reason=str(error))

        def caught_up() -> None:
            self._inbox.put_nowait(_CaughtUp())

        facts = every_fact(
            self._bus,
            self._pool,
            unavailable=waits,
            caught_up=caught_up,
            entity="pool",
            fact="seen",
        )
        async with aclosing(facts):
            async for delivery in facts:
                if isinstance(delivery.payload.payload, PoolMachineSeen):
                    self._inbox.put_nowait(MachineSeen(delivery.payload.payload, delivery.age_s))

    async def _catch_up(self) -> None:
        """Hear of all machines first: whom an earlier leader assigned is among them."""
        while not isinstance(event := await self._inbox.get(), _CaughtUp):
            self._state = core.fold(self._state, event, time.monotonic())

    async def _follow_file(self) -> None:
        async with aclosing(self._file.changes()) as changes:
            async for change in changes:
                if change.problems:
                    _log.error("pool.file_refused", problems=change.problems)
                else:
                    _log.info("pool.file_read")
                self._inbox.put_nowait(change)

    async def _watch(self, job: str) -> None:
        """Ask a job's planner over and over, and at once when the job says that it waits."""
        wake = self._wakes[job] = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wake(job, wake), name=f"pool-wake-{job}")
            while True:
                wake.clear()
                self._inbox.put_nowait(await self._ask(job))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ASK_S):
                        await wake.wait()

    async def _wake(self, job: str, wake: asyncio.Event) -> None:
        while True:
            try:
                async for _ in self._bus.events(job, entity="job", from_start=False):
                    wake.set()
            except BusError as error:
                self._complain("pool.job_not_followed", job=job, reason=str(error))
            await asyncio.sleep(RETRY_S)

    async def _ask(self, job: str) -> JobSeen | JobUnknown:
        asked_s = time.monotonic()
        names = tuple(self._state.machines)
        try:
            raw = await self._bus.request(
                job, "standbys", StandbysRequest(machines=names), timeout_s=_ANSWER_S
            )
            reply = parse_as(StandbysStatus, raw)
        except (BusError, ProtocolError) as error:
            return self._unknown(job, str(error))
        if isinstance(reply, Refusal):
            return self._unknown(job, reply.reason)
        self._silent.discard(job)
        return JobSeen(job, reply, time.monotonic() - asked_s)

    def _unknown(self, job: str, reason: str) -> JobUnknown:
        if job not in self._silent:  # said once: a job that is declared need not run
            self._silent.add(job)
            _log.warning("pool.planner_silent", job=job, reason=reason)
        return JobUnknown(job)

    async def _answer(self, verb: str, body: bytes) -> bytes:
        del body
        if verb != "status":
            raise RequestRefusedError(
                f"A pool does not know the request {verb!r}.",
                code="unknown_request",
                next_step="It knows status.",
            )
        id = f"r-{next(self._numbers)}"
        reply: asyncio.Future[PoolStatus] = asyncio.get_running_loop().create_future()
        self._replies[id] = reply
        self._inbox.put_nowait(Ask(id))
        return (await reply).model_dump_json().encode()

    # -- what is done --------------------------------------------------------------------------

    async def _loop(self, group: asyncio.TaskGroup) -> None:
        while True:
            wake_s = core.next_wake_s(self._state)
            # What was due and changed nothing is due again in a moment, not at once.
            timeout_s = None if wake_s is None else max(wake_s - time.monotonic(), RETRY_S)
            try:
                async with asyncio.timeout(timeout_s):
                    event = await self._inbox.get()
            except TimeoutError:
                event = Tick()
            if not isinstance(event, _CaughtUp):
                self._step(event, group)

    def _step(self, event: Event, group: asyncio.TaskGroup) -> None:
        self._state, commands = core.step(self._state, event, time.monotonic())
        for command in commands:
            if isinstance(command, Reply):
                self._replies.pop(command.id).set_result(command.status)
            else:
                group.create_task(self._carry_out(command))
        wanted = core.jobs(self._state)
        for job in wanted - self._watched.keys():
            self._watched[job] = group.create_task(self._watch(job), name=f"pool-watch-{job}")
        for job in self._watched.keys() - wanted:
            self._watched.pop(job).cancel()
            self._wakes.pop(job, None)

    async def _carry_out(self, command: Command) -> None:
        """Tried once: what is not done is decided again, from what is said then."""
        await self._lease.confirmed()
        term = self._state.term
        try:
            match command:
                case Leading(machine=name):
                    await self._order(name, Lead(term=term), f"{self._pool}:{name}:lead:{term}")
                case Assigning():
                    await self._assign(command, term)
                case Recalling():
                    await self._recall(command, term)
                case Reply():
                    pass
        except BusError as error:
            _log.warning("pool.not_done", what=type(command).__name__, reason=str(error))

    async def _assign(self, command: Assigning, term: int) -> None:
        name, job = command.machine, command.job
        _log.info("pool.assigns", machine=name, job=job, reason=command.reason)
        order = Assign(term=term, job=job, run=command.run, offer=command.offer)
        id = f"{self._pool}:{name}:{command.run}:{command.offer}:{term}:{job}"
        fact = PoolMachineAssigned(machine=name, job=job, reason=command.reason, term=term)
        # First: the machine's key holds for all jobs, and its offer for the one that knows of this.
        await asyncio.gather(*(self._tell(each, fact, id) for each in self._everybody(job)))
        await self._order(name, order, id)

    def _everybody(self, job: str) -> set[str]:
        """Who hears of an assignment: the job, those that must take the machine no more, people."""
        sharing = self._state.sharing
        return {job, self._pool, *(() if sharing is None else sharing.jobs)}

    async def _tell(self, to: str, fact: PoolMachineAssigned, id: str) -> None:
        try:
            await self._say(fact, f"{id}:{to}", to=to)
        except PermissionDeniedError:
            if to == fact.job:
                raise
            # Nobody was ever assigned there with this key.
            self._complain("pool.job_out_of_reach", job=to)

    async def _recall(self, command: Recalling, term: int) -> None:
        name, job = command.machine, command.job
        _log.info("pool.recalls", machine=name, job=job, reason=command.reason)
        refusal = "its planner does not answer"
        try:
            fact = PoolMachineRecalled(
                machine=name,
                job=job,
                needed_by=command.needed_by,
                reason=command.reason,
                term=term,
            )
            id = f"{self._pool}:{name}:{job}:{term}:{next(self._numbers)}"
            await self._say(fact, id, to=self._pool)
            await self._say(fact, f"{id}:{job}", to=job)
            wish = ReleaseRequest(
                machine=name, reason=command.reason, requested_by=f"pool {self._pool}"
            )
            reply = parse(await self._bus.request(job, "release", wish, timeout_s=_ANSWER_S))
            refusal = reply.reason if isinstance(reply, Refusal) else ""
        except ProtocolError as error:
            refusal = str(error)
        finally:
            self._inbox.put_nowait(Released(name, job, refusal))
            if job in self._wakes:
                self._wakes[job].set()

    async def _order(self, machine: str, order: MachineCommand, id: str) -> None:
        await self._bus.send_command(self._pool, machine, order, id=id)

    async def _say(self, fact: Frozen, id: str, *, to: str) -> None:
        event = observe.new_event(job=to, source=SOURCE, payload=fact, id=id)
        await self._bus.publish(event)
