"""Batches of one more loader, drawn by the program where it likes, as part of its state."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from trainmover_executor.feed.batches.kept import Batches, KeptBatch
from trainmover_executor.feed.feed import ENDLESS, Feed
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.plain import Positioned
from trainmover_executor.state.rng import capture_rng, restore_rng

__all__ = ["Cycle"]


class _Drawn(NamedTuple):
    """A batch, where the data stood in front of it, and the random numbers behind it."""

    before: dict[str, Any]
    kept: KeptBatch
    rng: dict[str, Any]


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
        self._batches = Batches()
        self._drawn: list[_Drawn] = []
        self._again: collections.deque[_Drawn] = collections.deque()

    def __next__(self) -> Any:
        if self._again:
            drawn = self._again.popleft()
            drawn.kept.put_back(of=f"a step that draws from session.cycle({self._feed.loader})")
            restore_rng(drawn.rng)  # loading in this process, and each new pass, draw from it
        else:
            before = self._feed.position()
            _, batch = self._feed.draw()
            drawn = _Drawn(before, self._batches.keep(batch), capture_rng())
        self._drawn.append(drawn)
        return drawn.kept.batch

    def position(self) -> dict[str, Any]:
        """See ``Positioned``."""
        return self._again[0].before if self._again else self._feed.position()

    def seek(self, position: dict[str, Any]) -> None:
        """See ``Positioned``: what was drawn since ``forget`` is given again as it was."""
        if equal(self.position(), position):
            return
        for at, drawn in enumerate(self._drawn):
            if equal(drawn.before, position):
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
        for drawn in self._drawn:
            self._batches.look(drawn.kept)
        self._drawn.clear()
