"""The batches of a standby: those of its sandbox serve one more step, too, where they fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from trainmover_executor.feed import Feed
from trainmover_executor.feed.batches.kept import Batches, KeptBatch
from trainmover_executor.training.body.step import Step

__all__ = ["BorrowedBatches"]

log = structlog.get_logger(__name__)


class BorrowedBatches:
    """Batches that a standby's program is given, of which nothing counts.

    Args:
        batches: Of the place from which the program asks for steps now.

    Attributes:
        memory: Ids of their tensors and arrays, which may be views of what a loader keeps.
        is_another: Whether the running body was given a second batch, as the first did not fit.
    """

    def __init__(self, batches: Callable[[], Batches]) -> None:
        self._batches = batches
        self._by_site: dict[Any, KeptBatch] = {}
        self._given: Step | None = None
        self._other: KeptBatch | None = None
        self.memory: frozenset[int] = frozenset()
        self.is_another = False

    def draw(self, feed: Feed, *, site: Any) -> KeptBatch | None:
        """A batch for the sandbox; None where there is no data."""
        more, batch = feed.draw()
        if not more:
            feed.rewind()
            more, batch = feed.draw()
        if not more:
            return None
        self._by_site[site] = kept = self._batches().keep(batch, copies=True)
        self.memory = frozenset().union(*(each.memory for each in self._by_site.values()))
        return kept

    def last_of(self, site: Any) -> KeptBatch | None:
        """The last one that was given to the program there: the job may be waiting."""
        return self._by_site.get(site)

    def gave(self, step: Step) -> None:
        """``step`` goes to the program."""
        self._given = step

    def put_back(self) -> None:
        """The program is done with the step that was given last; its data may be used again."""
        if self._given is not None:
            self._given.put_batch_back()
            self._given = None

    def draw_another(self, feed: Feed) -> bool:
        """The body raised: whether it can run with another batch, once.

        What it had may be of another call of ``session.steps``, with shorter sequences than the
        masks that the program has made by now.
        """
        if self.is_another:
            return False
        more, batch = feed.draw()
        if more:
            self.is_another = True
            self._other = self._batches().keep(batch, copies=True)
            log.warning("the body raised with a batch of the sandbox, and runs with one of now")
        return more

    def replace(self, step: Step) -> bool:
        """Have ``step`` be of the other batch, if there is one now."""
        if self._other is None:
            return False
        step.kept, self._other = self._other, None
        return True

    def clear(self) -> None:
        """This process has taken over."""
        self._by_site.clear()
