"""Batches that the program draws where it likes, as part of its state."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakSet

from trainmover_executor.feed.batches.kept import Batches, KeptBatch
from trainmover_executor.feed.feed import Feed
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.plain import Positioned
from trainmover_executor.state.rng import capture_rng, restore_rng

__all__ = ["Drawer", "Drawers", "Drawn"]


class Drawn(NamedTuple):
    """A batch, where the data stood in front of it, and the random numbers behind it.

    None is the end of the data. See ``Source.beside`` for what the loader had beside that, in
    front of it and behind it.
    """

    before: dict[str, Any]
    had: dict[str, Any]
    kept: KeptBatch | None
    rng: dict[str, Any]
    has: dict[str, Any]


class Drawer(Positioned, Iterator[Any]):
    """An iterator over a loader.

    What holds it, a variable say, has its place in the data for a value: that is put back when a
    step is aborted, and handed to joiners.

    Args:
        feed: What it reads.

    Attributes:
        again: What was drawn before, and is given before anything new.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._had = feed.beside()
        self._batches = Batches()
        self._drawn: list[Drawn] = []
        self.again: collections.deque[Drawn] = collections.deque()

    def __next__(self) -> Any:
        drawn = self._given_again() if self.again else self._draw()
        if self.keeps:
            self._drawn.append(drawn)
        if drawn.kept is None:
            raise StopIteration
        return drawn.kept.batch

    def _given_again(self) -> Drawn:
        drawn = self.again.popleft()
        if drawn.kept is not None:
            drawn.kept.put_back(of=f"a step that draws from {self._feed.loader}")
        restore_rng(drawn.rng)  # loading in this process, and each new pass, draw from it
        self._feed.put_beside(drawn.has)
        return drawn

    def _draw(self) -> Drawn:
        feed = self._feed
        beside = feed.beside if self.keeps else dict[str, Any]
        before, had = feed.position(), beside()
        more, batch = feed.draw()
        kept = self._batches.keep(batch) if more else None
        return Drawn(before, had, kept, capture_rng(), beside())

    @property
    def keeps(self) -> bool:
        """Whether what is drawn now may be wanted again."""
        return True

    def position(self) -> dict[str, Any]:
        """See ``Positioned``."""
        return self.again[0].before if self.again else self._feed.position()

    def seek(self, position: dict[str, Any]) -> None:
        """See ``Positioned``: what was drawn since ``forget`` is given again as it was."""
        if equal(self.position(), position):
            return
        for at, drawn in enumerate(self._drawn):
            if equal(drawn.before, position):
                self.again.extendleft(reversed(self._drawn[at:]))
                del self._drawn[at:]
                self._feed.recount(position)
                self._feed.put_beside(drawn.had)
                return
        self._drawn.clear()
        self.again.clear()
        rng = capture_rng()
        self._feed.seek(position)
        restore_rng(rng)

    def put_back(self) -> None:
        """The body that began it is to begin it anew."""
        self._feed.put_beside(self._had)

    def forget(self) -> None:
        """What was drawn so far is committed."""
        for drawn in self._drawn:
            if drawn.kept is not None:
                self._batches.look(drawn.kept)
        self._drawn.clear()


class Drawers:
    """All that the program draws from besides ``session.steps``.

    Attributes:
        in_body: Whether a body runs, which may have to run again.
        begun: Those that this body has begun, and may have dropped.
    """

    def __init__(self) -> None:
        self.in_body = False
        self.begun: list[Drawer] = []
        self._all: WeakSet[Drawer] = WeakSet()

    def add(self, drawer: Drawer) -> None:
        """One more."""
        self._all.add(drawer)
        if self.in_body:
            self.begun.append(drawer)

    def put_back(self) -> None:
        """The body is about to run again, with the loaders that it began to draw from as they were.

        The program may hold nothing of these then that could be put back.
        """
        for each in reversed(self.begun):
            each.put_back()

    def forget(self) -> None:
        """What was drawn so far is committed."""
        for each in self._all:
            each.forget()
        self.begun.clear()
