"""Counting the starts of a machine's agent, so that no two lives share a generation.

An agent counts its lives itself. One that is started again, in a container or by a service
manager, must not begin at the first life once more: the job would take it for the machine that it
gave up, and the command that ends the old life would end the new one.
"""

from __future__ import annotations

import asyncio
from typing import Final

from trainmover.bus.protocol import Bus
from trainmover.errors import BusUnavailableError, ConflictError, PermissionDeniedError
from trainmover.observe import get_logger

__all__ = ["LIVES_PER_START", "first_generation"]

LIVES_PER_START: Final = 1000
"""Generations kept for one start; a life that crashes is followed by a back-off of up to 30 s."""

_BUCKET: Final = "tm_machines"
_RETRY_S: Final = 0.5

_log = get_logger(__name__)


async def first_generation(bus: Bus, *, job: str, machine: str) -> int:
    """Count this start on the bus; the generation of the first life after it.

    0 at a machine's first start in a job; waits while the bus is away.
    """
    key = f"{job}.{machine}.starts"
    while True:
        try:
            known = await bus.get(_BUCKET, key)
            earlier = 0 if known is None else int(known.value)
            revision = None if known is None else known.revision
            await bus.put(_BUCKET, key, str(earlier + 1).encode(), revision=revision)
        except PermissionDeniedError as error:
            _log.warning(
                "starts.uncounted",
                consequence="the job will not take this machine back if it is started again",
                error=str(error),
            )
            return 0
        except (BusUnavailableError, ConflictError) as error:
            _log.debug("starts.retry", error=str(error))
            await asyncio.sleep(_RETRY_S)
        else:
            return LIVES_PER_START * earlier
