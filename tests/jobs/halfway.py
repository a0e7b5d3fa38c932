"""A fail-point in the middle of an agreement: programs under test install it before they train.

Ranks agree in several rounds of messages. A rank that dies between two of them leaves some ranks
with the outcome and some without.
"""

from __future__ import annotations

from typing import Any

from trainmover.runtime import failpoints
from trainmover_executor.worker.runtime import current_runtime

POINT = "agree.half"


def install() -> None:
    """Reach ``agree.half`` after this rank's first message of each vote and other agreement."""
    if not failpoints.ARMED:
        return
    runtime = current_runtime()
    control = runtime.control
    exchange = control._exchange_words
    latest: list[Any] = [None]

    def exchange_and_reach(frame: Any, *arguments: Any) -> Any:
        arrived = exchange(frame, *arguments)
        if latest != [frame]:
            latest[0] = frame
            runtime.reach(POINT)
        return arrived

    control._exchange_words = exchange_and_reach
