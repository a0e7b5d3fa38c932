"""Batches of one more loader, drawn by the program where it likes, as part of its state."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from trainmover_executor.feed.feed import ENDLESS, Feed
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.plain import Positioned
from trainmover_executor.state.rng import capture_rng, restore_rng

__all__ = ["Cycle"]


class Cycle(Positioned, Iterator[Any]):
    """Batches of a loader, pass after pass; what ``session.cycle`` returns.

    The variable that holds it has its place in the data for a value: that is put back when a step
    is aborted, and handed to joiners.

    Args:
        loader: Any iterable of batches.
        replay: See ``Feed``.
    """

    def __init__(self, loader: Iterable[Any], *, replay: int = 0) -> None:
        self._feed = Feed(loader, epochs=ENDLESS, replay=replay)
        self._drawn: list[tuple[dict[str, Any], Any, dict[str, Any]]] = []
        self._again: collections.deque[tuple[dict[str, Any], Any, dict[str, Any]]]
        self._again = collections.deque()

    def __next__(self) -> Any:
        if self._again:
            drawn = self._again.popleft()
            restore_rng(drawn[2])  # loading in this process, and each new pass, draw from it
        else:
            before = self._feed.position()
            _, batch = self._feed.draw()
            drawn = before, batch, capture_rng()
        self._drawn.append(drawn)
        return drawn[1]

    def position(self) -> dict[str, Any]:
        """See ``Positioned``."""
        return self._again[0][0] if self._again else self._feed.position()

    def seek(self, position: dict[str, Any]) -> None:
        """See ``Positioned``: what was drawn since ``forget`` is given again as it was."""
        if equal(self.position(), position):
            return
        for at, (before, _, _) in enumerate(self._drawn):
            if equal(before, position):
                self._again.extendleft(reversed(self._drawn[at:]))
                del self._drawn[at:]
                return
        self._drawn.clear()
        self._again.clear()
        rng = capture_rng()
        self._feed.seek(position)
        restore_rng(rng)

    def forget(self) -> None:
        """What was drawn so far is committed."""
        self._drawn.clear()
