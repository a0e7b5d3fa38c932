"""Facts on their way to the bus: in order, exactly once, and never in anybody's way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from trainmover.errors import BusUnavailableError
from trainmover.events.envelope import Envelope
from trainmover.events.executor import StepProgress
from trainmover.tracing.observe import get_logger

__all__ = ["Outbox"]

_log = get_logger(__name__)
_LIMIT: Final = 4096
_FIRST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 1.0


class Outbox:
    """A bounded queue that one task empties.

    While the bus is unreachable the newest facts are kept, and progress reports are the first to
    go. A fact whose outcome is unknown is published again under the same id.

    Args:
        publish: ``Bus.publish``.
        limit: Most facts that wait.
    """

    def __init__(
        self, publish: Callable[[Envelope], Awaitable[None]], *, limit: int = _LIMIT
    ) -> None:
        self._publish = publish
        self._limit = limit
        self._waiting: deque[Envelope] = deque()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._dropped = 0
        self._cut_off = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def dropped(self) -> int:
        """Facts given up so far."""
        return self._dropped

    def put(self, event: Envelope, *, urgent: bool = False) -> None:
        """Queue a fact; an urgent one overtakes all that wait."""
        if urgent:
            self._waiting.appendleft(event)
        else:
            self._waiting.append(event)
        if len(self._waiting) > self._limit:
            self._shed()
        self._empty.clear()
        self._wake.set()

    def _shed(self) -> None:
        progress = (event for event in self._waiting if isinstance(event.payload, StepProgress))
        self._remove(next(progress, self._waiting[0]))
        self._dropped += 1

    def _remove(self, event: Envelope) -> None:
        """Take out this very envelope, wherever it is by now, if it is still there."""
        for index, waiting in enumerate(self._waiting):
            if waiting is event:
                del self._waiting[index]
                return

    async def run(self) -> None:
        """Publish until cancelled."""
        retry_s = _FIRST_RETRY_S
        while True:
            while not self._waiting:
                self._empty.set()
                self._wake.clear()
                await self._wake.wait()
            event = self._waiting[0]
            try:
                await self._publish(event)
            except BusUnavailableError as error:
                self._on_outage(error)
                await asyncio.sleep(retry_s)
                retry_s = min(_LONGEST_RETRY_S, 2 * retry_s)
                continue
            except Exception as error:  # noqa: BLE001 - no fault of the bus may end the training
                _log.error("fact.lost", type=event.type, error=str(error))
                self._dropped += 1
            else:
                self._on_success()
            retry_s = _FIRST_RETRY_S
            self._remove(event)

    async def drain(self, *, timeout_s: float) -> int:
        """Wait until everything is published.

        Args:
            timeout_s: Longest wait, in seconds.

        Returns:
            How many facts are left.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            pass
        return len(self._waiting)

    def _on_outage(self, error: BusUnavailableError) -> None:
        if not self._cut_off:
            self._cut_off = True
            _log.warning(
                "bus.unreachable",
                consequence="the bus is unreachable; training continues without it",
                error=str(error),
            )

    def _on_success(self) -> None:
        if self._cut_off:
            self._cut_off = False
            _log.info("bus.back", waiting=len(self._waiting), dropped=self._dropped)
