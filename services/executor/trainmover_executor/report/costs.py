"""What it costs a rank that its machine can be replaced, told once and when it changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainmover.events.executor import WorkerCosts
from trainmover_executor.feed import Feed
from trainmover_executor.state.redo import StepStart
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Costs"]

_SETTLING_STEPS: Final = 3
"""The first copies take longer than those into the same memory."""
_LONG_S: Final = 2.0
"""Drawing that takes longer is told of before it is over."""


class Costs:
    """Says ``worker.costs``.

    Args:
        runtime: Where it goes.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._at_end: bool | None = None
        self._in_steps = 0
        self._drawing_s = 0.0
        self._behind = 0

    def committed(
        self, start: StepStart, feeds: Sequence[Feed], *, at_end: bool, because: str
    ) -> None:
        """A step is committed; one comparison, but for the few after a change.

        Args:
            start: What is kept to take it back.
            feeds: The data of the open calls.
            at_end: Whether it voted at the end of its body, and kept what the body changes.
            because: Why, if so.
        """
        if at_end != self._at_end:
            self._at_end, self._in_steps = at_end, _SETTLING_STEPS
        if self._in_steps == 0:
            return
        self._in_steps -= 1
        if self._in_steps == 0:
            self._say(
                WorkerCosts(
                    machine=self._runtime.spec.machine,
                    rank=self._runtime.rank,
                    vote="end" if at_end else "front",
                    kept_bytes=start.nbytes,
                    keep_s=start.keep_s,
                    because=because if at_end else "",
                    drawn=_drawn(feeds),
                    state_bytes=start.state_bytes,
                )
            )

    def followed(self, feeds: Sequence[Feed], *, behind: int = 0) -> None:
        """A standby has drawn data; told when it is where its rank is, and when it cost twice more.

        Args:
            feeds: The data of the open calls.
            behind: Batches that it has still to draw.
        """
        drawing_s = sum(feed.cost_s for feed in feeds if feed.how == "draw")
        least_s = 2 * self._drawing_s if self._drawing_s or not behind else _LONG_S
        arrived = self._behind > 0 and not behind
        if drawing_s <= least_s and not arrived:
            return
        self._drawing_s, self._behind = drawing_s, behind
        self._say(
            WorkerCosts(
                machine=self._runtime.spec.machine,
                rank=self._runtime.rank,
                drawn=_drawn(feeds),
                drawing_s=drawing_s,
                behind=behind,
            )
        )

    def _say(self, costs: WorkerCosts) -> None:
        self._runtime.report(costs)


def _drawn(feeds: Sequence[Feed]) -> str:
    return ", ".join(feed.loader for feed in feeds if feed.how == "draw")
