"""The agent's shell: feeds the core with what happens and carries out what it decides."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from pydantic import ValidationError

from trainmover.bus.protocol import Bus, Delivery
from trainmover.commands import Command, Prepare, Recover
from trainmover.errors import (
    BusError,
    BusUnavailableError,
    ConfigError,
    MalformedEventError,
    PermissionDeniedError,
)
from trainmover.events.envelope import Envelope
from trainmover.events.incident import AnalysisPlaced
from trainmover.events.migration import JobFailed, JobFinished
from trainmover.job.topology import Frozen
from trainmover.runtime import failpoints
from trainmover.tracing.observe import current_trace, get_logger, new_event, process, record
from trainmover.tracing.timeline import bars_of
from trainmover_executor.agent.core import core, effects
from trainmover_executor.agent.core.state import AgentState, Identity
from trainmover_executor.agent.incarnation import (
    newest_generation,
    private_folder,
    refuse_namesake,
)
from trainmover_executor.agent.options import AgentOptions
from trainmover_executor.agent.outbox import Outbox
from trainmover_executor.agent.processes.listeners import Listeners
from trainmover_executor.agent.processes.workers import WorkerPool
from trainmover_executor.agent.telemetry import TelemetryRelay, period_of
from trainmover_executor.messages.worker import Fact, FromWorker, Links

__all__ = ["Agent"]

T = TypeVar("T")

_log = get_logger(__name__)
_LAST_FACTS_S: Final = 2.0
_LAST_FACTS_OF_WORK_DONE_S: Final = 10.0
"""That the program ended normally must not be lost: the machine would pass for a dead one. A bus of
three servers that lost its leader is back in about half of that."""
_END_S: Final = 5.0
_RETRY_S: Final = 1.0
_TRACES: Final = 64
_SIGTERM_EXIT: Final = 143


class Agent:
    """One machine's agent.

    Args:
        bus: A connected bus.
        options: What this machine is to do.
        generation: Of its first incarnation; higher than that of any earlier agent when omitted.
    """

    def __init__(self, bus: Bus, options: AgentOptions, *, generation: int | None = None) -> None:
        self._bus = bus
        self._options = options
        self._scratch = private_folder()
        if options.log_dir is not None:
            options.log_dir.mkdir(parents=True, exist_ok=True)
        self._listeners = Listeners(host=options.host, ranks=options.ranks, towards=options.nats)
        self._telemetry = TelemetryRelay(
            job=options.job,
            machine=options.machine,
            now=lambda: (self._state.generation, self._state.epoch),
            send=lambda data: bus.send_telemetry(options.job, options.machine, data),
            trains=self._trains,
            state_of=self._state_of,
            period_s=period_of(options.nnodes_max),
        )
        self._workers = WorkerPool(
            options,
            scratch=self._scratch,
            listeners=self._listeners,
            clocked=self._telemetry.watch,
            heard=self._on_worker,
            exited=self._on_exit,
        )
        self._outbox = Outbox(bus.publish)
        self._events: deque[effects.Event] = deque()
        self._feeding = False
        self._timers: list[asyncio.TimerHandle] = []
        self._fault: Exception | None = None
        self._traces: dict[str, Mapping[str, str]] = {}
        self._exit_code = 0
        self._over = asyncio.Event()
        self._first_generation = generation
        self._state = AgentState(
            generation=(newest_generation() if generation is None else generation) - 1,
            me=Identity(
                job=options.job,
                machine=options.machine,
                nnodes_min=options.nnodes_min,
                nnodes_max=options.nnodes_max,
                ranks=options.ranks,
                pid=os.getpid(),
                host=socket.gethostname(),
                warm_limit=options.warm_limit,
                labels=dict(options.labels),
                pool=options.pool,
            ),
        )

    async def run(self) -> int:
        """Work until the job, or somebody with a signal, needs this machine no more.

        Returns:
            The exit code: 0 when the work is done or the planner said stop, 1 when the job failed
            under us, 143 when cancelled.

        Raises:
            TrainMoverError: The fork server cannot start, or the host address is not ours.
        """
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(coroutine)
                    for coroutine in (
                        self._workers.run(),
                        self._outbox.run(),
                        self._telemetry.run(),
                        self._obey(),
                        self._watch_job(),
                        self._watch_name(),
                    )
                ]
                self._feed(effects.Begin())
                await self._until_over()
                if self._fault is not None:
                    raise self._fault
                await self._say_the_last()
                for helper in helpers:
                    helper.cancel()
        finally:
            for timer in self._timers:
                timer.cancel()
            self._listeners.close()
            shutil.rmtree(self._scratch, ignore_errors=True)
        return self._exit_code

    async def _until_over(self) -> None:
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            # Our own end is orderly too: processes first.
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
            self._feed(effects.Terminate(_SIGTERM_EXIT))
            try:
                async with asyncio.timeout(_END_S):
                    await self._over.wait()
            except TimeoutError:
                # Whoever does not react is ended with the fork server, by the kernel.
                _log.error("agent.end_forced", after_s=_END_S)
                self._exit_code = _SIGTERM_EXIT

    async def _say_the_last(self) -> None:
        patience_s = _LAST_FACTS_S if self._exit_code else _LAST_FACTS_OF_WORK_DONE_S
        left = await self._outbox.drain(timeout_s=patience_s)
        if left or self._outbox.dropped:
            _log.warning(
                "facts.undelivered",
                facts=left + self._outbox.dropped,
                consequence="the bus could not be reached; the work of this machine is unaffected",
            )

    # -- what happens ----------------------------------------------------------------------------

    def _feed(self, event: effects.Event) -> None:
        """Take an event through the core and carry out what it decides, at once.

        Carrying out may bring new events; they wait their turn.
        """
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                self._state, actions = core.step(self._state, self._events.popleft())
                for action in actions:
                    self._carry_out(action)
        except Exception as error:  # noqa: BLE001 - callbacks of the event loop end up here too
            self._fault = error
            self._over.set()
        finally:
            self._feeding = False

    def _on_worker(self, key: str, message: FromWorker, body: bytes) -> None:
        if isinstance(message, Links):
            self._telemetry.add_links(key, message, body)
        elif isinstance(message, Fact):
            try:
                fact = message.model()
            except (MalformedEventError, ValidationError) as error:
                _log.error("fact.malformed", worker=key, type=message.type, error=str(error))
            else:
                self._feed(effects.Reported(key, fact))
        else:
            self._feed(effects.Said(key, message))

    def _on_exit(self, exited: effects.Exited) -> None:
        self._telemetry.forget(exited.key)
        self._feed(exited)

    def _trains(self, key: str) -> bool:
        """Whether a worker does the job's work; shadow iterations say nothing about the job."""
        worker = self._state.workers.get(key)
        return worker is not None and (
            worker.role == "active" or worker.slot == self._state.joining
        )

    def _state_of(self, key: str) -> str:
        return self._workers.state_of(key)

    async def _obey(self) -> None:
        async def on_command(delivery: Delivery[Command]) -> None:
            command = delivery.payload
            with process(delivery):
                if isinstance(command, Prepare | Recover):
                    # What the workers report about a plan belongs to the trace that brought it.
                    self._traces[command.plan.id] = current_trace()
                    while len(self._traces) > _TRACES:
                        del self._traces[next(iter(self._traces))]
                self._reach("command.taken", command)
                self._feed(effects.Commanded(command))
                self._reach("command.done", command)
            await delivery.ack()

        options = self._options
        await self._read_for_ever(
            lambda: self._bus.commands(options.job, options.machine), on_command
        )

    def _reach(self, point: str, command: Command) -> None:
        if failpoints.ARMED:
            failpoints.reach(point, machine=self._options.machine, verb=command.verb)

    async def _watch_job(self) -> None:
        async def on_fact(delivery: Delivery[Envelope]) -> None:
            match delivery.payload.payload:
                case JobFinished():
                    self._feed(effects.JobOver(failed=False))
                case JobFailed():
                    self._feed(effects.JobOver(failed=True))
                case AnalysisPlaced(at_agents=stages):
                    self._telemetry.place(stages)
                case _:
                    pass

        job = self._options.job
        await self._read_for_ever(
            lambda: self._bus.events(job, entity="job", from_start=False), on_fact
        )

    async def _watch_name(self) -> None:
        options, first = self._options, self._first_generation
        if first is None:
            return
        try:
            await refuse_namesake(
                self._bus, job=options.job, machine=options.machine, generation=first
            )
        except ConfigError as error:
            self._fault = error
            self._over.set()

    async def _read_for_ever(
        self,
        read: Callable[[], AsyncIterator[Delivery[T]]],
        handle: Callable[[Delivery[T]], Awaitable[None]],
    ) -> None:
        """Handle what comes, through every outage.

        Raises:
            PermissionDeniedError: We may not read this, and no rank runs that would suffer.
        """
        while True:
            try:
                async for delivery in read():
                    # What was handled but not acknowledged comes again, and then changes nothing.
                    with contextlib.suppress(BusUnavailableError):
                        await handle(delivery)
            except PermissionDeniedError as error:
                if not self._state.workers:
                    raise
                _log.error("bus.reading_refused", error=str(error))
            except BusError as error:
                _log.debug("bus.reading_interrupted", error=str(error))
            await asyncio.sleep(_RETRY_S)

    # -- what is done about it -------------------------------------------------------------------

    def _carry_out(self, action: effects.Action) -> None:
        match action:
            case effects.Publish(fact=fact, urgent=urgent):
                self._publish(fact, urgent=urgent)
            case effects.Forward(key=key, message=message):
                self._workers.send(key, message)
            case effects.Log(level=level, event=event, fields=fields):
                getattr(_log, level)(event, machine=self._options.machine, **fields)
            case effects.Exit(exit_code=code):
                self._exit_code = code
                self._over.set()
            case _:
                self._carry_out_with_processes(action)

    def _carry_out_with_processes(self, action: effects.Action) -> None:
        match action:
            case effects.Spawn():
                self._workers.spawn(action)
            case effects.Prioritise(keys=keys):
                self._workers.prioritise(keys)
            case effects.End(keys=keys, grace_s=grace_s):
                self._workers.end(keys, grace_s=grace_s)
            case effects.Bind(generation=generation, slots=slots):
                self._feed(effects.Bound(generation, self._listeners.bind(slots)))
            case effects.Unbind():
                self._listeners.close()
            case effects.After(delay_s=delay_s, event=event):
                loop = asyncio.get_running_loop()
                self._timers.append(loop.call_later(delay_s, self._feed, event))
            case _:
                raise AssertionError(f"nobody carries out {action}")

    def _publish(self, fact: Frozen, *, urgent: bool) -> None:
        options = self._options
        event = new_event(job=options.job, source=f"/machine/{options.machine}", payload=fact)
        if trace := self._traces.get(getattr(fact, "migration", "")):
            event = replace(event, trace=trace)
            record(bars_of(event), parent=trace)
        self._outbox.put(event, urgent=urgent)
