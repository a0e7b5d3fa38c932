"""A file that is fresh while the bus answers: the health check of a container.

The process asks over the connection that it works with, so a check costs no second process with
credentials of its own: it looks at the file's age.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NoReturn

from trainmover.errors import BusError

__all__ = ["FILE_VARIABLE", "keep_fresh"]

FILE_VARIABLE: Final = "TRAINMOVER_HEALTH_FILE"
_PERIOD_S: Final = 2.0


async def keep_fresh(
    path: Path, ask: Callable[[], Awaitable[None]], *, period_s: float = _PERIOD_S
) -> NoReturn:
    """Touch ``path`` each time ``ask`` gets its answer; until cancelled.

    Args:
        path: The file; its folder exists.
        ask: A round trip to the bus; raises ``BusError`` when there is no answer in time.
        period_s: Seconds between two questions.
    """
    while True:
        try:
            await ask()
        except BusError:
            pass  # the age of the file tells
        else:
            path.touch()  # noqa: ASYNC240 - one inode in memory, not worth a thread
        await asyncio.sleep(period_s)
