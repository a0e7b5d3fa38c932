"""The detector's shell: facts and telemetry into the core, incidents out."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Final

from trainmover.bus.facts import RETRY_S, every_fact
from trainmover.bus.protocol import Bus
from trainmover.detection.guard import Alarm, Guarded
from trainmover.errors import BusUnavailableError, MalformedEventError
from trainmover.events.envelope import Envelope
from trainmover.job.topology import Frozen
from trainmover.runtime.lease import Lease
from trainmover.telemetry.records import decode_batch
from trainmover.tracing import observe
from trainmover.tracing.seldom import Seldom
from trainmover.tracing.timeline import bars_of
from trainmover_detector.backlog import Backlog
from trainmover_detector.core import DetectorCore

__all__ = ["DetectorService"]

SOURCE: Final = "/detector"
TICK_S: Final = 0.2
_WAITED_S: Final = 5.0
"""So often a detector says that it still reads what happened before."""

_IN_A_ROW: Final = 16
"""So many facts are judged before telemetry gets its turn."""

_TOLD: Final = 400
"""Characters of a reason."""

_log = observe.get_logger(__name__)


class DetectorService:
    """The detector of one job.

    Args:
        bus: A connected bus.
        job: Job name.
        detectors: Whom to ask.
        clock: Seconds, steady.
        alarm: Gets the process out of a detector that does not return.
        lease: Held while it watches; None where there are no replicas.
        places: Whether agents may run stages of the analysis.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        job: str,
        detectors: list[Guarded],
        clock: Callable[[], float] = time.monotonic,
        alarm: Alarm | None = None,
        lease: Lease | None = None,
        places: bool = True,
    ) -> None:
        self._bus = bus
        self._job = job
        self._clock = clock
        self._lease = lease
        self._core = DetectorCore(detectors, alarm=alarm, places=places)
        self._facts: asyncio.Queue[Envelope | None] = asyncio.Queue()
        """None stands between what was stored when we began and what came since."""
        self._said: asyncio.Queue[Envelope] = asyncio.Queue()
        self._warn = Seldom(_log.warning)
        self._traces = observe.TraceBook()
        for guarded in detectors:
            if guarded.quarantined:
                _log.error("detector.unusable", detector=guarded.name, reason=guarded.quarantined)

    async def run(self) -> None:
        """Watch until cancelled; first reads everything that happened before.

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
                group.create_task(self._lease.keep(), name="detector-lease")
            group.create_task(self._read_facts(), name="detector-read")
            group.create_task(self._publish(), name="detector-publish")
            await self._catch_up()
            group.create_task(self._judge_facts(), name="detector-facts")
            group.create_task(self._read_telemetry(), name="detector-telemetry")
            group.create_task(self._tick(), name="detector-tick")
            _log.info("detector.ready", job=self._job)

    async def _read_facts(self) -> None:
        """Bring in all facts, once each, whatever happens to the connection."""

        def waits(error: BusUnavailableError) -> None:
            _log.warning("detector.bus_unavailable", reason=str(error))

        def caught_up() -> None:
            self._facts.put_nowait(None)

        facts = every_fact(self._bus, self._job, unavailable=waits, caught_up=caught_up)
        async with aclosing(facts):
            async for fact in facts:
                self._facts.put_nowait(fact.payload)

    async def _catch_up(self) -> None:
        backlog = Backlog(self._core)
        read = 0
        while True:
            try:
                async with asyncio.timeout(_WAITED_S):
                    event = await self._facts.get()
            except TimeoutError:
                _log.warning("detector.catching_up", read=read, reason="the bus is slow")
                continue
            if event is None:
                break
            read += 1
            backlog.take(event.payload, self._clock())
        self._say(backlog.rest())

    async def _judge_facts(self) -> None:
        for number in itertools.count(1):
            if number % _IN_A_ROW == 0:
                # A queue that is not empty lets nobody else run, and who is not heard meanwhile
                # would pass for silent.
                await asyncio.sleep(0)
            event = await self._facts.get()
            if event is None or event.source == SOURCE:
                continue
            with observe.span("detector.fact", parent=event.trace):
                self._say(self._core.on_fact(event.payload, self._clock()))

    async def _read_telemetry(self) -> None:
        while True:
            try:
                async for machine, data in self._bus.telemetry(self._job):
                    self._take_batch(machine, data)
            except BusUnavailableError as error:
                _log.warning("detector.bus_unavailable", reason=str(error))
            await asyncio.sleep(RETRY_S)

    def _take_batch(self, machine: str, data: bytes) -> None:
        try:
            batch = decode_batch(data)
        except MalformedEventError as error:
            self._warn("detector.batch_dropped", machine=machine, reason=str(error)[:_TOLD])
            return
        if batch.machine != machine or batch.job != self._job:
            self._warn("detector.batch_dropped", machine=machine, reason="names another sender")
            return
        self._say(self._core.on_batch(batch, self._clock()))

    async def _tick(self) -> None:
        while True:
            self._say(self._core.tick(self._clock()))
            await asyncio.sleep(TICK_S)

    def _say(self, payloads: Iterable[Frozen]) -> None:
        for payload in payloads:
            # The first span of an incident is the root of everything that follows from it.
            incident = getattr(payload, "id", None)
            trace = self._traces.of(incident)
            with observe.span("detector.incident", parent=trace, root=True):
                self._traces.keep(incident, observe.current_trace())
                event = observe.new_event(job=self._job, source=SOURCE, payload=payload)
            observe.record(bars_of(event), parent=event.trace)
            self._said.put_nowait(event)

    async def _publish(self) -> None:
        while True:
            event = await self._said.get()
            while True:
                try:
                    if self._lease is not None:
                        await self._lease.confirmed()
                    await self._bus.publish(event)
                except BusUnavailableError as error:
                    _log.warning("detector.bus_unavailable", reason=str(error))
                    await asyncio.sleep(RETRY_S)
                else:
                    break
            _log.info("detector.fact", type=event.type, **_brief(event.payload))


def _brief(payload: Frozen) -> dict[str, object]:
    fields = payload.model_dump(include={"id", "kind", "machine", "summary", "reason", "detector"})
    return {("incident" if name == "id" else name): value for name, value in fields.items()}
