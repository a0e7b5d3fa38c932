"""Telemetry of this machine's workers, one batch per period: also its sign of life.

Workers write into memory that is read here; see ``clock_memory.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.telemetry.records import LINK, Batch, Sections, encode_batch
from trainmover.telemetry.repeats import FirstWildSteps
from trainmover.telemetry.stages import MachineStages
from trainmover.tracing.observe import get_logger
from trainmover_executor.clock.memory import ClockMemory
from trainmover_executor.clock.reader import ClockReader
from trainmover_executor.messages.worker import Links

__all__ = ["TelemetryRelay", "period_of"]

_log = get_logger(__name__)
_LOOK_S: Final = 0.25
"""Between two looks at the clocks; as often as a worker gives a sign of life."""
_PERIOD_S: Final = 0.5
_MANY_MACHINES: Final = 1024
_MANY_PERIOD_S: Final = 1.0
"""One detector hears thousands of machines; what a rank that stands still says comes at once."""
_MOST_RECORDS: Final = 14_000
"""Per batch; 800 KB, below the bus's usual limit of 1 MiB a message."""
_NOTHING: Final = Sections()

_GROUPS_EVERY: Final = 10
"""Batches between two that say which ranks a group has: whoever listens later must learn it."""

_SILENT_S: Final = 0.6
"""A worker that said nothing for so long has its state read from the kernel."""


def period_of(machines: int) -> float:
    """Seconds between two batches of one machine in a job of so many."""
    return _PERIOD_S if machines <= _MANY_MACHINES else _MANY_PERIOD_S


class TelemetryRelay:
    """Gathers what workers did between two batches.

    Args:
        job: Job name.
        machine: This machine.
        now: (generation, epoch) of this machine, for a batch without records.
        send: Takes an encoded batch; may lose it.
        trains: Whether a worker does the job's work by now; what it did before does not count.
        state_of: The kernel's one-letter state of a worker's process, by the worker's key.
        period_s: Seconds between batches; a rank that stands still is reported at once.
        clock: Seconds, steady.
    """

    def __init__(
        self,
        *,
        job: str,
        machine: str,
        now: Callable[[], tuple[int, int]],
        send: Callable[[bytes], Awaitable[None]],
        trains: Callable[[str], bool] = lambda _: True,
        state_of: Callable[[str], str] = lambda _: "",
        period_s: float = _PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._machine = machine
        self._now = now
        self._send = send
        self._trains = trains
        self._state_of = state_of
        self._period_s = period_s
        self._clock = clock
        self._clocks: dict[str, ClockReader] = {}
        self._pieces: dict[int, list[Sections]] = {}
        self._dropped: dict[int, int] = {}
        self._latest: dict[str, Sections] = {}
        self._pulses: dict[str, tuple[npt.NDArray[np.void], int, float]] = {}
        self._groups: dict[int, tuple[range, ...]] = {}
        self._new_groups = True
        self._batches = 0
        self._stands_still = False
        self._stages = MachineStages()
        self._first_wild = FirstWildSteps()

    def place(self, stages: Iterable[str]) -> None:
        """Run these stages of the analysis here from the next batch on."""
        self._stages.place(stages)

    def watch(self, key: str, rank: int, memory: ClockMemory) -> None:
        """A process is about to start: read its clock from now on."""
        self._clocks[key] = ClockReader(rank=rank, memory=memory)

    def forget(self, key: str) -> None:
        """A process is gone: the last that it wrote is read."""
        if (clock := self._clocks.pop(key, None)) is not None:
            self._read(key, clock)
        self._pulses.pop(key, None)
        self._latest.pop(key, None)

    def add_links(self, key: str, message: Links, body: bytes) -> None:
        """Take in the counters of a worker's links; they replace those before them."""
        for group, spans in message.groups.items():
            self._groups[group] = tuple(range(*span) for span in spans)
            self._new_groups = True
        try:
            links = np.frombuffer(body, LINK)
        except ValueError as error:
            _log.error("telemetry.malformed", worker=key, error=str(error))
            return
        if self._trains(key):
            self._latest[key] = replace(self._latest_of(key), links=links)

    def look(self) -> None:
        """Read every clock."""
        for key, clock in list(self._clocks.items()):
            self._read(key, clock)

    def _latest_of(self, key: str) -> Sections:
        return self._latest.get(key, _NOTHING)

    def _read(self, key: str, clock: ClockReader) -> None:
        try:
            if not self._trains(key):
                clock.skip()
                return
            sections, dropped = clock.read()
        except Exception as error:  # noqa: BLE001 - who wrote there has a wild pointer, not we
            _log.error("telemetry.unreadable", worker=key, error=str(error))
            self._clocks.pop(key, None)
            return
        epoch = clock.epoch
        passing = Sections(records=sections.records, steps=sections.steps)
        self._pieces.setdefault(epoch, []).append(passing)
        self._dropped[epoch] = self._dropped.get(epoch, 0) + dropped
        if not len(sections.pulses):
            return
        # What runs and how far a rank is replace what was known about them before.
        self._latest[key] = replace(self._latest_of(key), open=sections.open, heads=sections.heads)
        self._pulses[key] = (sections.pulses, epoch, self._clock())
        if len(sections.heads) and len(sections.open):
            self._stands_still = True

    def take(self) -> list[Batch]:
        """What there is since the last call: a batch per epoch, at least one, oldest first."""
        generation, epoch = self._now()
        pieces, self._pieces = self._pieces, {}
        pieces.setdefault(epoch, [])
        dropped, self._dropped = self._dropped, {}
        latest, self._latest = self._latest, {}
        newest = max(pieces)
        self._batches += 1
        groups: dict[int, tuple[range, ...]] = {}
        if self._new_groups or self._batches % _GROUPS_EVERY == 0:
            groups, self._new_groups = dict(self._groups), False
        batches = []
        for at, parts in sorted(pieces.items()):
            late = [self._signs_of_life(at), *latest.values()] if at == newest else []
            joined = Sections.join([*parts, *late])
            joined = replace(joined, steps=self._first_wild.apply(joined.steps, epoch=at))
            whole = Batch(
                job=self._job,
                machine=self._machine,
                generation=generation,
                epoch=at,
                records=joined.records,
                dropped=dropped.get(at, 0),
                more=joined,
                groups=groups,
            )
            batches.append(_within_limit(self._stages.apply(whole)))
        return batches

    def _signs_of_life(self, epoch: int) -> Sections:
        """The latest pulse of each worker, however old."""
        now, pulses = self._clock(), []
        for key, (pulse, at, heard_s) in list(self._pulses.items()):
            silent_s = now - heard_s
            state = self._state_of(key) if silent_s > _SILENT_S else ""
            if silent_s > _SILENT_S and not state:
                del self._pulses[key]  # its process is gone
                continue
            if at != epoch:
                continue
            aged = pulse.copy()
            aged["age_ns"] = int(silent_s * 1e9)
            aged["state"] = ord(state) if state else 0
            pulses.append(aged)
        return Sections(pulses=np.concatenate(pulses)) if pulses else Sections()

    async def run(self) -> None:
        """Send a batch every period, and at once when a rank stands still, until cancelled."""
        while True:
            due_s = self._clock() + self._period_s
            while not self._stands_still and self._clock() < due_s:
                await asyncio.sleep(min(_LOOK_S, due_s - self._clock()))
                self.look()
            self._stands_still = False
            for batch in self.take():
                try:
                    await self._send(encode_batch(batch))
                except Exception as error:  # noqa: BLE001 - lossy: no fault of the bus may end us
                    _log.debug("telemetry.lost", error=str(error))


def _within_limit(batch: Batch) -> Batch:
    """Without the oldest operations of a batch that has too many for one message."""
    excess = len(batch.records) - _MOST_RECORDS
    if excess <= 0:
        return batch
    return replace(batch, records=batch.records[excess:], dropped=batch.dropped + excess)
