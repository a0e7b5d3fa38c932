"""Calls of ``session.steps``: what each is about, its iterator, and which of them are open."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, Protocol

from trainmover.errors import ConfigError
from trainmover_executor.feed import Feed
from trainmover_executor.moves.course_packing import PACKING
from trainmover_executor.position.course import Course, Level
from trainmover_executor.position.position import Position
from trainmover_executor.program.wrappers import bring_along, generators_around
from trainmover_executor.training.body.step import Step

__all__ = ["Call", "OpenCalls", "StepIterator", "Steps"]


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
        length: How many steps its data makes, if that has a length; raises TypeError else.
        max_steps: Stop when the job has completed so many steps.
        start_step: Steps that the job counts as completed before its first.
        level: Where it is in the course of the program; None before its first step is asked for.
        feed: Its data, from then on.
        beginning: Where its data began, at a standby.
        over: Whether it has ended.
    """

    def __init__(
        self,
        open_feed: Callable[[], Feed],
        *,
        length: Callable[[], int],
        max_steps: int | None,
        start_step: int = 0,
    ) -> None:
        self.open_feed = open_feed
        self.length = length
        self.max_steps = max_steps
        self.start_step = start_step
        self.level: Level | None = None
        self.feed: Feed | None = None
        self.beginning: dict[str, Any] = {}
        self.over = False

    def is_enough(self, committed: int) -> bool:
        """Whether it ends where the job has completed so many steps, whatever data is left."""
        return self.max_steps is not None and committed >= self.max_steps


class OpenCalls:
    """The calls that have begun and not ended, outermost first.

    Attributes:
        course: Where this process is in its program.
        step: The step that was given last.
        around: Code of the generators in which the program's bodies run.
    """

    def __init__(self) -> None:
        self.course = Course(PACKING)
        self.step: Step | None = None
        self.around: frozenset[CodeType] = frozenset()
        self._body: CodeType | None = None
        self._open: list[Call] = []
        self._owner: Call | None = None

    @property
    def feeds(self) -> list[Feed]:
        """Their data."""
        return [call.feed for call in self._open if call.feed is not None]

    @property
    def beginnings(self) -> list[dict[str, Any]]:
        """Where their data began, at a standby."""
        return [call.beginning for call in self._open]

    @property
    def max_steps(self) -> int | None:
        """Of the call that gave the last step."""
        return None if self._owner is None else self._owner.max_steps

    @property
    def began(self) -> bool:
        """Whether there was a call."""
        levels = self.course.levels
        return len(levels) > 1 or bool(levels[0].ended)

    @property
    def in_body(self) -> bool:
        """Whether a body is under way."""
        return self.step is not None and self.step.running

    @property
    def holds_a_step(self) -> bool:
        """Whether the program was given a step whose body has not begun."""
        step = self.step
        innermost = bool(self._open) and self._owner is self._open[-1]
        return step is not None and innermost and not (step.entered or step.committed)

    def begin(self, call: Call) -> None:
        """The program asks ``call`` for its first step."""
        call.level = self.course.begin()
        call.feed = call.open_feed()
        self._open.append(call)
        self._owner = None

    def enter(self, frame: FrameType) -> None:
        """A body begins in ``frame``."""
        if frame.f_code is not self._body:
            self._body, self.around = frame.f_code, generators_around(frame)

    def gave(self, call: Call, step: Step) -> None:
        """``step`` goes to the program."""
        self._owner, self.step = call, step

    def unfinished(self, call: Call) -> Step | None:
        """The step that ``call`` gave last, where it is not committed.

        Raises:
            ConfigError: The program did not enter it.
        """
        step = self.step
        if step is None or step.committed or call not in self._open or self._owner is not call:
            return None
        if not step.entered:
            raise ConfigError(
                "the body of the loop did not enter the step: use 'with step as batch:'"
            )
        return step

    def aborted(self, call: Call) -> Step | None:
        """The step that ``call`` gave last, where it has to be done again."""
        step = self.step
        if step is None or self._owner is not call or not step.entered or step.committed:
            return None
        return step

    def close(
        self,
        call: Call,
        *,
        committed: int,
        variables: Mapping[str, Any],
        rng: dict[str, Any] | None,
        left_at: Position | None,
    ) -> None:
        """``call`` is over, with those inside of it.

        Args:
            call: Which call.
            committed: Steps that are committed.
            variables: What the program's were, where the data is used up.
            rng: What random generators were there.
            left_at: Where the job stood, where the program left the loop.
        """
        assert call.level is not None  # noqa: S101 - it has begun
        call.over = True
        self.course.end(
            call.level,
            committed=committed,
            variables=dict(variables),
            rng=rng,
            left_at=left_at,
        )
        if call in self._open:
            del self._open[self._open.index(call) :]
        if self._owner is call:
            self.step = self._owner = None


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

    def __len__(self) -> int:
        """Steps that this call gives, as far as its data has a length.

        Raises:
            TypeError: It has none.
        """
        return self._call.length()

    @property
    def drawn(self) -> int:
        """Steps that this call has given to the program, those before a joiner came included."""
        return 0 if self._call.level is None else self._call.level.drawn

    def bring_wrappers_along(self, *, by: int, around: Collection[CodeType]) -> None:
        """Have ``enumerate`` and the like count ``by`` steps more; negative for fewer.

        Args:
            by: So many.
            around: See ``OpenCalls``.

        Raises:
            ConfigError: They cannot.
        """
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented
        while frame is not None and frame.f_code is not StepIterator.__next__.__code__:
            frame = frame.f_back
        asks = None if frame is None else frame.f_back
        bring_along(self, by=by, empty=self._while_empty, frame=asks, around=around)

    def _while_empty(self, work: Callable[[], None]) -> None:
        self._empty = True
        try:
            work()
        finally:
            self._empty = False

    def __del__(self) -> None:
        self._loop.leave(self._call)
