"""A warm standby waits for the plan that needs it, and keeps its data where the job is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from trainmover.job.plan import Plan
from trainmover_executor.feed.catching_up import Data
from trainmover_executor.position.course import Course, EndCall, Stay, TakeOver, way_to
from trainmover_executor.position.position import Place
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Waiting"]

_FIRST_PLACE_S: Final = 1.0
"""How long a standby waits to hear where the job is before it says that it is ready."""
_READS_S: Final = 2.0
"""How long it reads data first. Where loading bounds training, it may never get there by itself."""


class Waiting:
    """Played by the training thread of a standby that no plan needs yet.

    Args:
        runtime: This rank.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._approaching = False
        self._began_s: float | None = None

    def until_needed(
        self, course: Course, *, between: bool, data: Data, ready: Callable[[], None]
    ) -> Plan | EndCall | Stay:
        """Wait until a plan needs this standby, or the job has left where its program is.

        Args:
            course: Where the program is.
            between: It asks for work between steps; else for a step.
            data: Its data.
            ready: Called, maybe again and again, while this standby can do no more before a plan.
        """
        runtime = self._runtime
        timeout_s: float | None = _FIRST_PLACE_S if runtime.places.seen() is None else 0.0
        self._began_s = self._began_s or time.monotonic()
        while True:
            plan = runtime.wait_for_news(timeout_s=0.0 if self._approaching else timeout_s)
            if plan is not None:
                self._approaching = False
                data.stop_comparing()
                ready()
                return plan
            seen = runtime.places.seen()
            if seen is not None:
                way = way_to(Place.from_tree(seen["place"]), course, between=between)
                if isinstance(way, EndCall | Stay):
                    return way
                here = isinstance(way, TakeOver) and not between
                self._approaching = here and not data.approach(seen["position"]["feeds"])
                if here and not self._approaching:
                    data.compare(seen)
            if not self._approaching or time.monotonic() - self._began_s > _READS_S:
                ready()
            timeout_s = None
