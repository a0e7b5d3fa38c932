"""The data of a standby's open calls: kept near the job's place, and compared with its batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from trainmover.events.machine import MachineDataDiffers
from trainmover_executor.checks.same_batches import Drawn, SameBatches
from trainmover_executor.feed import Feed
from trainmover_executor.feed.batches.prints import print_of_batch
from trainmover_executor.position.position import Position
from trainmover_executor.program.frames import place_in
from trainmover_executor.state.rng import restore_rng
from trainmover_executor.worker.runtime import Runtime

if TYPE_CHECKING:
    from trainmover_executor.training.loop import TrainingLoop

__all__ = ["StandbyData"]

_BUDGET_S: Final = 0.05
"""How long a waiting standby draws batches before it looks for a plan again."""


class StandbyData:
    """See ``Data``.

    Args:
        runtime: This rank's.
        loop: Has the program's open calls.
        stand: Has the program's variables and data be those of a position, seen from a frame;
            returns paths of variables that did not come.

    Attributes:
        asks: The program's frame, while it waits for a step.
    """

    def __init__(
        self,
        runtime: Runtime,
        loop: TrainingLoop,
        *,
        stand: Callable[[Position, FrameType], list[str]],
    ) -> None:
        self._runtime = runtime
        self._loop = loop
        self._stand = stand
        self._same_batches = SameBatches(differs=self._differs)
        self.asks: FrameType | None = None

    def approach(self, feeds: Sequence[dict[str, Any] | None]) -> bool:
        """See ``Data.approach``."""
        pairs = self._with(feeds)
        arrived = [feed.approach(position, budget_s=_BUDGET_S) for feed, position in pairs]
        behind = sum(feed.behind(position) for feed, position in pairs if feed.how == "draw")
        self._loop.costs.followed([feed for feed, _ in pairs], behind=behind)
        return all(arrived)

    def preload(
        self, feeds: Sequence[dict[str, Any] | None], *, budget_s: float = math.inf
    ) -> bool:
        """See ``Data.preload``."""
        pairs = self._with(feeds)
        loaded = [feed.preload(position, budget_s=budget_s) for feed, position in pairs]
        return all(loaded)

    def _with(self, feeds: Sequence[dict[str, Any] | None]) -> list[tuple[Feed, dict[str, Any]]]:
        pairs = zip(self._loop.calls.feeds, feeds, strict=False)
        return [(feed, position) for feed, position in pairs if position is not None]

    def compare(self, seen: Mapping[str, Any]) -> None:
        """See ``Data.compare``."""
        if self.asks is not None:
            draw = partial(self._draw_there, seen, self.asks)
            self._same_batches.look(seen, now=time.monotonic(), draw=draw)

    def stop_comparing(self) -> None:
        """See ``Data.stop_comparing``."""
        self._same_batches.stop()

    def _draw_there(self, seen: Mapping[str, Any], frame: FrameType) -> Drawn:
        """In a copy of this process: stand where the rank was ``seen``, and draw a batch."""
        position = Position.from_tree(seen["position"])
        missing = self._stand(position, frame)
        restore_rng({"host": position.rng["host"]})  # a copy of a process has no devices
        more, batch = self._loop.calls.feeds[-1].draw()
        return Drawn(print_of_batch(batch) if more else None, whole=not missing)

    def _differs(self, what: str, batch: int) -> None:
        runtime, feed = self._runtime, self._loop.calls.feeds[-1]
        runtime.report(
            MachineDataDiffers(
                machine=runtime.spec.machine,
                slot=runtime.membership.layout.slot_of(runtime.rank),
                rank=runtime.rank,
                batch=batch,
                loader=feed.loader,
                where=place_in(self.asks) if self.asks is not None else "",
                what=what,
            )
        )
