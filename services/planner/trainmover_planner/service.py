"""The planner's shell: facts, requests and time into the core, its commands to the outbox."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import traceback
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from trainmover.bus.facts import RETRY_S, every_fact
from trainmover.bus.protocol import Bus, Delivery, Entry
from trainmover.commands import Lead
from trainmover.errors import BusUnavailableError, ConflictError, ProtocolError
from trainmover.events.envelope import Envelope
from trainmover.events.operator import PolicyChanged, PolicyRefused
from trainmover.job.topology import Frozen
from trainmover.policy import PolicyError
from trainmover.runtime.lease import Lease
from trainmover.tracing import observe
from trainmover.tracing.seldom import Seldom
from trainmover_planner import core
from trainmover_planner.memory import Attic
from trainmover_planner.migrations import requests
from trainmover_planner.outbox import Outbox
from trainmover_planner.policy_file import PolicyFiles, refused
from trainmover_planner.state.effects import Command, Event, Fact, Reply, Request, SendCommand, Tick
from trainmover_planner.state.state import SOURCE

__all__ = ["Planner", "steady_clock"]

_log = observe.get_logger(__name__)
_WAITED_S: Final = 5.0
"""So often a planner says that it still reads what happened before."""

_COUNT_DIGITS: Final = 12


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 that never jump, so that they compare with the times of stored facts."""
    offset_s = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset_s


@dataclass(frozen=True, slots=True)
class _Asked:
    request: Request
    reply: asyncio.Future[Frozen]


class _CaughtUp:
    """In the inbox: what comes from now on was not stored when we began."""


_Item = Delivery[Envelope] | _Asked | _CaughtUp | PolicyChanged | PolicyRefused


class Planner:
    """The planner of one job.

    Args:
        bus: A connected bus.
        job: Job name.
        policy: Where the policy is declared; the defaults when omitted.
        clock: Seconds since 1970, steady.
        lease: Held while it plans; None where there are no replicas.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        job: str,
        policy: PolicyFiles | None = None,
        clock: Callable[[], float] | None = None,
        lease: Lease | None = None,
    ) -> None:
        self._bus = bus
        self._job = job
        self._clock = clock or steady_clock()
        self._lease = lease
        self._policy = policy or PolicyFiles()
        self._state = core.initial(job)
        self._inbox: asyncio.Queue[_Item] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[Frozen]] = {}
        self._stepped_s = 0.0
        self._numbers = itertools.count(1)
        self._outbox: Outbox | None = None
        self._attic = Attic()
        self._complain = Seldom(_log.error)  # of what anybody may send

    async def run(self) -> None:
        """Plan until cancelled; first learns everything that happened before.

        Raises:
            LeaseLostError: In a group: another replica leads now.
        """
        if self._lease is not None:
            await self._lease.acquire()
        try:
            await self._lead()
        finally:
            if self._lease is not None and self._lease.held:
                await self._lease.give_back()

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._lease is not None:
                group.create_task(self._lease.keep(), name="planner-lease")
            self._outbox = Outbox(
                self._bus,
                self._job,
                group,
                status=lambda: requests.snapshot(self._state),
                lease=self._lease,
            )
            group.create_task(self._read(), name="planner-read")
            await self._catch_up()
            await self._bus.serve(self._job, self._answer)
            group.create_task(self._follow_policy(), name="planner-policy")
            _log.info("planner.ready", job=self._job, phase=self._state.phase)
            await self._loop()

    async def _read(self) -> None:
        """Bring in all facts, once each, whatever happens to the connection."""

        def waits(error: BusUnavailableError) -> None:
            _log.warning("planner.bus_unavailable", retry_in_s=RETRY_S, reason=str(error))

        def caught_up() -> None:
            self._inbox.put_nowait(_CaughtUp())

        facts = every_fact(self._bus, self._job, unavailable=waits, caught_up=caught_up)
        async with aclosing(facts):
            async for fact in facts:
                self._inbox.put_nowait(fact)

    async def _follow_policy(self) -> None:
        async with aclosing(self._policy.changes()) as changes:
            async for change in changes:
                self._inbox.put_nowait(change)

    def _declared(self) -> PolicyChanged | PolicyRefused:
        """What we were told; where that is wrong, what an earlier planner was stays in force.

        Raises:
            PolicyError: It is wrong, and no planner before us was told anything.
        """
        try:
            return self._policy.load()
        except PolicyError as error:
            if not self._state.declared.source:
                raise
            return refused(error, source=self._state.declared.source)

    async def _catch_up(self) -> None:
        """Take in all that was stored when we began: half of it would be worse than to wait."""
        read = 0
        latest_s = -math.inf
        while True:
            try:
                async with asyncio.timeout(_WAITED_S):
                    item = await self._inbox.get()
            except TimeoutError:
                _log.warning("planner.catching_up", read=read, reason="the bus is slow")
                continue
            if isinstance(item, _CaughtUp):
                break
            if isinstance(item, _Asked | PolicyChanged | PolicyRefused):  # we serve nobody yet
                continue
            read += 1
            # When it was stored, by the bus's clock: a sender's may be hours off.
            latest_s = max(latest_s, self._clock() - item.age_s)
            self._fold(item.payload, latest_s)
        self._stepped_s = self._clock()
        incarnation = await self._incarnation() if self._state.membership is not None else 1
        fences = self._fences()
        declared = self._declared()
        _tell(declared)
        try:
            self._state, commands = core.resume(
                self._state, self._stepped_s, incarnation=incarnation, declared=declared
            )
        except Exception as error:  # noqa: BLE001 - each event that comes is tried by itself
            self._set_aside(Tick(), error)
            commands = ()
        self._carry_out((*fences, *commands))

    def _fold(self, event: Envelope, stored_s: float) -> None:
        """Take in a stored fact, at the time at which the bus stored it."""
        try:
            self._state = core.fold(self._state, _fact(event), stored_s)
        except Exception as error:  # noqa: BLE001 - it is stored, and would end each planner
            self._set_aside(event, error)

    def _set_aside(self, event: Envelope | Event, error: Exception) -> None:
        """One event is lost, but whoever may fail next still finds a planner."""
        told = {"id": event.id} if isinstance(event, Envelope | Fact | Request) else {}
        what = event.payload if isinstance(event, Envelope | Fact) else event
        # No locals: they hold all that is known of the job.
        where = "".join(traceback.format_tb(error.__traceback__, limit=-3))
        reason = f"{type(error).__name__}: {error}"
        self._complain(
            "planner.event_refused", **told, event_=repr(what)[:500], reason=reason, at=where
        )

    def _fences(self) -> tuple[Command, ...]:
        """First of all, every machine hears that this planner leads: no other is obeyed then."""
        if self._lease is None:
            return ()
        names = (host.machine.name for host in self._state.inventory.sorted())
        return tuple(
            SendCommand(name, Lead(), f"{self._job}:{name}:lead", urgent=True) for name in names
        )

    async def _incarnation(self) -> int:
        """Count this start in the key-value store: no two planners get the same number."""
        bucket, key = "tm_jobs", f"{self._job}.incarnation"
        while True:
            try:
                known = await self._bus.get(bucket, key)
                number = 1 if known is None else _count(known) + 1
                revision = None if known is None else known.revision
                await self._bus.put(bucket, key, str(number).encode(), revision=revision)
            except (BusUnavailableError, ConflictError) as error:
                _log.warning("planner.bus_unavailable", retry_in_s=RETRY_S, reason=str(error))
                await asyncio.sleep(RETRY_S)
            else:
                return number

    async def _loop(self) -> None:
        while True:
            wake_s = core.next_wake_s(self._state)
            timeout_s = None if wake_s is None else max(wake_s - self._clock(), 0.0)
            try:
                # Not wait_for: until Python 3.12 it may swallow our own cancellation.
                async with asyncio.timeout(timeout_s):
                    item = await self._inbox.get()
            except TimeoutError:
                self._step(Tick())
                continue
            if isinstance(item, PolicyChanged | PolicyRefused):
                _tell(item)
                self._step(item)
            elif isinstance(item, _Asked):
                self._waiting[item.request.id] = item.reply
                self._step(item.request)
            elif not isinstance(item, _CaughtUp) and item.payload.source != SOURCE:
                self._step(_fact(item.payload))  # our own facts are decisions we took already

    def _step(self, event: Event) -> None:
        self._stepped_s = self._clock()
        try:
            self._state, commands = core.step(self._state, event, self._stepped_s)
        except Exception as error:  # noqa: BLE001 - a bug of ours; the state is as it was before
            self._set_aside(event, error)
            if isinstance(event, Request):
                failure = ProtocolError(f"the planner could not: {type(error).__name__}: {error}")
                self._waiting.pop(event.id).set_exception(failure)
            return
        self._carry_out(commands)
        self._attic.settle(len(self._state.inventory.hosts) + len(self._state.holdings))

    def _carry_out(self, commands: tuple[Command, ...]) -> None:
        assert self._outbox is not None  # noqa: S101 - set before the first step
        self._outbox.carry_out(commands)
        for command in commands:
            if isinstance(command, Reply):
                reply = self._waiting.pop(command.request, None)
                if reply is not None and not reply.done():
                    reply.set_result(command.body)

    async def _answer(self, verb: str, body: bytes) -> bytes:
        with observe.span("planner.request", verb=verb):
            trace = observe.current_trace()
            request = Request(f"r-{next(self._numbers)}", verb, body, trace)
            reply: asyncio.Future[Frozen] = asyncio.get_running_loop().create_future()
            self._inbox.put_nowait(_Asked(request, reply))
            answer = await reply
            if self._lease is not None:
                await self._lease.confirmed()
        return answer.model_dump_json().encode()


def _tell(declared: PolicyChanged | PolicyRefused) -> None:
    if isinstance(declared, PolicyRefused):
        _log.error("policy.refused", source=declared.source, problems=declared.problems)
    else:
        _log.info("policy.read", source=declared.source, rules=len(declared.policy.rules))


def _count(known: Entry) -> int:
    """How many planners there were; never too few, whatever somebody put there instead."""
    # Each count was a revision of the bucket.
    digits = known.value.isdigit() and len(known.value) < _COUNT_DIGITS
    return int(known.value) if digits else known.revision


def _fact(event: Envelope) -> Fact:
    return Fact(payload=event.payload, source=event.source, id=event.id, trace=event.trace)
