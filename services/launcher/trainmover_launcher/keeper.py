"""Keeps one process running: started again each time that it ends, less and less eagerly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from trainmover.errors import TrainMoverError

__all__ = ["Keeper", "Pauses"]

_GROWTH: Final = 2.0


@dataclass(slots=True, kw_only=True)
class Pauses:
    """How long to wait before the next start. Pure.

    Attributes:
        first_s: After the first end, and after one that ran for ``forgiven_s``.
        longest_s: The pauses double up to this one.
        forgiven_s: Whoever ran for so long did not end because of how it was started.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    forgiven_s: float = 60.0
    _next_s: float = field(init=False, default=0.0)

    def after(self, ran_s: float) -> float:
        """The pause after a run of ``ran_s`` seconds."""
        pause_s = self.first_s if ran_s >= self.forgiven_s else max(self._next_s, self.first_s)
        self._next_s = min(pause_s * _GROWTH, self.longest_s)
        return pause_s


class Keeper:
    """Starts one process, and starts it again each time that it ends.

    Args:
        start: Starts it; what it returns waits for the end and tells how that came about.
        lost: Called with (how it ended, seconds until it is started again).
        started: Called with (how it had ended, number of starts) after each further start.
        steady: Called once a further start has held for ``steady_s``.
        pauses: How long to wait.
        steady_s: A process that ran for so long is back, in seconds.
    """

    def __init__(
        self,
        start: Callable[[], Callable[[], Awaitable[str]]],
        *,
        lost: Callable[[str, float], None],
        started: Callable[[str, int], None],
        steady: Callable[[], None],
        pauses: Pauses | None = None,
        steady_s: float = 5.0,
    ) -> None:
        self._start = start
        self._lost = lost
        self._started = started
        self._steady = steady
        self._pauses = pauses or Pauses()
        self._steady_s = steady_s
        self._ended = start()

    async def run(self) -> None:
        """Keep it running until cancelled; ending it then is the caller's."""
        starts = 1
        clock = asyncio.get_running_loop().time
        began_s = clock()
        while True:
            why = await self._until_it_ends(first=starts == 1)
            pause_s = self._pauses.after(clock() - began_s)
            self._lost(why, pause_s)
            await asyncio.sleep(pause_s)
            began_s = clock()
            starts += 1
            try:
                self._ended = self._start()
            except (OSError, TrainMoverError) as error:
                self._ended = _never_began(error)
            else:
                self._started(why, starts)

    async def _until_it_ends(self, *, first: bool) -> str:
        if not first:
            try:
                async with asyncio.timeout(self._steady_s):
                    return await self._ended()
            except TimeoutError:
                self._steady()
        return await self._ended()


def _never_began(error: Exception) -> Callable[[], Awaitable[str]]:
    async def told() -> str:
        return f"it does not start: {error}"

    return told
