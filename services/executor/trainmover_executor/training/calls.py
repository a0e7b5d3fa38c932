"""Calls of ``session.steps``: what each is about, and the iterator that the program gets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

from trainmover_executor.feed import Feed
from trainmover_executor.position.course import Level
from trainmover_executor.program.wrappers import bring_along
from trainmover_executor.training.step import Step

__all__ = ["Call", "StepIterator", "Steps"]


class Steps(Protocol):
    """What an iterator asks of the loop."""

    def next(self, call: Call, iterator: StepIterator, frame: FrameType) -> Step | None:
        """The next step of ``call``; None when it is over."""

    def leave(self, call: Call) -> None:
        """The program let go of the iterator."""


class Call:
    """One call of ``session.steps``.

    Attributes:
        open_feed: Makes its data.
        max_steps: Stop when the job has completed so many steps.
        start_step: Steps that the job counts as completed before its first.
        level: Where it is in the course of the program; None before its first step is asked for.
        feed: Its data, from then on.
        beginning: Where its data began, at a standby.
        over: Whether it has ended.
    """

    def __init__(
        self, open_feed: Callable[[], Feed], *, max_steps: int | None, start_step: int = 0
    ) -> None:
        self.open_feed = open_feed
        self.max_steps = max_steps
        self.start_step = start_step
        self.level: Level | None = None
        self.feed: Feed | None = None
        self.beginning: dict[str, Any] = {}
        self.over = False


class StepIterator(Iterator[Step]):
    """What ``session.steps`` returns."""

    def __init__(self, loop: Steps, call: Call) -> None:
        self._loop = loop
        self._call = call
        self._empty = False

    def __next__(self) -> Step:
        if self._empty:
            return None  # type: ignore[return-value] # for a wrapper that counts, and nobody else
        step = self._loop.next(self._call, self, sys._getframe(1))  # noqa: SLF001 - documented
        if step is None:
            raise StopIteration
        return step

    @property
    def drawn(self) -> int:
        """Steps that this call has given to the program, those before a joiner came included."""
        return 0 if self._call.level is None else self._call.level.drawn

    def bring_wrappers_along(self, *, by: int) -> None:
        """Have ``enumerate`` and the like count ``by`` steps more; negative for fewer.

        Raises:
            ConfigError: They cannot.
        """
        bring_along(self, by=by, empty=self._while_empty)

    def _while_empty(self, work: Callable[[], None]) -> None:
        self._empty = True
        try:
            work()
        finally:
            self._empty = False

    def __del__(self) -> None:
        self._loop.leave(self._call)
