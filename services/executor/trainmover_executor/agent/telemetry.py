"""Collective records of this machine's workers, one batch per period: also its sign of life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from trainmover.observe import get_logger
from trainmover.telemetry import RECORD, Batch, encode_batch

__all__ = ["TelemetryRelay"]

_log = get_logger(__name__)
_PERIOD_S: Final = 0.5
_MOST_RECORDS: Final = 16_384
"""Per batch; 832 KiB, below the bus's usual limit of 1 MiB a message."""


class TelemetryRelay:
    """Gathers records between two batches.

    Args:
        job: Job name.
        machine: This machine.
        now: (generation, epoch) of this machine, for a batch without records.
        send: Takes an encoded batch; may lose it.
        period_s: Seconds between batches.
    """

    def __init__(
        self,
        *,
        job: str,
        machine: str,
        now: Callable[[], tuple[int, int]],
        send: Callable[[bytes], Awaitable[None]],
        period_s: float = _PERIOD_S,
    ) -> None:
        self._job = job
        self._machine = machine
        self._now = now
        self._send = send
        self._period_s = period_s
        self._pieces: dict[int, list[npt.NDArray[np.void]]] = {}
        self._dropped: dict[int, int] = {}

    def add(self, epoch: int, body: bytes, *, dropped: int) -> None:
        """Take in what one worker drained.

        Args:
            epoch: Epoch of the records.
            body: Raw records of dtype ``RECORD``.
            dropped: Records that the worker lost.
        """
        whole = len(body) // RECORD.itemsize * RECORD.itemsize
        self._pieces.setdefault(epoch, []).append(np.frombuffer(body[:whole], RECORD))
        self._dropped[epoch] = self._dropped.get(epoch, 0) + dropped

    def take(self) -> list[Batch]:
        """What there is since the last call: a batch per epoch, at least one, oldest first."""
        generation, epoch = self._now()
        pieces, self._pieces = self._pieces or {epoch: []}, {}
        dropped, self._dropped = self._dropped, {}
        batches = []
        for at, parts in sorted(pieces.items()):
            records = np.concatenate(parts) if parts else np.empty(0, RECORD)
            excess = max(0, len(records) - _MOST_RECORDS)
            batches.append(
                Batch(
                    job=self._job,
                    machine=self._machine,
                    generation=generation,
                    epoch=at,
                    records=records[excess:],
                    dropped=dropped.get(at, 0) + excess,
                )
            )
        return batches

    async def run(self) -> None:
        """Send a batch every period until cancelled."""
        while True:
            await asyncio.sleep(self._period_s)
            for batch in self.take():
                try:
                    await self._send(encode_batch(batch))
                except Exception as error:  # noqa: BLE001 - lossy: no fault of the bus may end us
                    _log.debug("telemetry.lost", error=str(error))
