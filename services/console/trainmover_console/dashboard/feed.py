"""Pictures of a job for many readers, each no faster than it can take them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Final

from trainmover_console.view.jsonable import dumps
from trainmover_console.view.live import Watched

__all__ = ["Feed"]

_LEAST_S: Final = 0.25
"""Between two states for one reader."""

_MOST_S: Final = 1.0
"""Lateness and timers move on although no fact came."""


class Feed:
    """What readers see of a job.

    Args:
        watched: Fed by ``watching.follow``, which calls ``changed``.
    """

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._news = asyncio.Event()
        self._over = False

    def changed(self) -> None:
        """Something is new."""
        self._news.set()
        self._news = asyncio.Event()

    def close(self) -> None:
        """Let every reader go."""
        self._over = True
        self.changed()

    def state(self) -> str:
        """The job now, as JSON."""
        return dumps(self.watched.as_data(datetime.now(UTC)))

    async def states(self) -> AsyncIterator[str]:
        """The job now, and again whenever it changed, until the feed is closed."""
        while not self._over:
            news = self._news
            yield self.state()
            await asyncio.sleep(_LEAST_S)
            if not self._over:
                try:
                    async with asyncio.timeout(_MOST_S):
                        await news.wait()
                except TimeoutError:
                    continue
