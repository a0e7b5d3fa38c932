"""One optimizer step: ``with step as batch``, aborted or committed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Final, Protocol

from trainmover.errors import ConfigError
from trainmover_executor.checks.determinism import NotDeterministicError
from trainmover_executor.feed.batches.kept import KeptBatch
from trainmover_executor.feed.batches.microbatches import split
from trainmover_executor.program.frames import place_in
from trainmover_executor.program.jump import go_back

__all__ = ["Attempts", "Step", "StepAborted"]


class StepAborted(BaseException):
    """Leaves the body of a step whose vote failed; ``with step`` swallows it.

    A BaseException, so that no ``except Exception`` in user code can catch it.
    """


class Attempts(Protocol):
    """What a step asks of its loop."""

    def begin(self, step: Step, frame: FrameType) -> None:
        """An attempt at ``step`` begins, for the first time or again."""

    def vote(self, step: Step) -> bool:
        """Whether the step is committed."""

    def is_broken(self) -> bool:
        """Whether communication broke: what a body raises then is a consequence."""

    def end(self, step: Step) -> bool:
        """The attempt is over; whether the body has to run again."""


class Step:
    """One optimizer step, attempted until it is committed.

    Attributes:
        index: Number of this step, from 0; equal on all ranks.
        epoch: Pass over the data the batch belongs to.
    """

    def __init__(
        self,
        *,
        index: int,
        epoch: int,
        batch: KeptBatch,
        attempts: Attempts,
        loop: FrameType | None = None,
    ) -> None:
        self.index = index
        self.epoch = epoch
        self.kept = batch
        self._attempts = attempts
        self._loop = loop
        self._frame: FrameType | None = None
        self._line = 0
        self.entered = False
        self.running = False
        self.voted = False
        self.committed = False

    def __enter__(self) -> Any:
        if self.running or self.committed:
            raise ConfigError(f"step {self.index} was entered twice: use one 'with step' for each")
        self._frame = sys._getframe(1)  # noqa: SLF001 - the documented way
        self._line = self._frame.f_lineno
        if self._loop is not None and self._loop.f_code.co_name in _COLLECTS:
            self._check_loop(self._loop, self._frame)
        self.voted = False
        self._attempts.begin(self, self._frame)
        self.entered = self.running = True
        return self.kept.batch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.running = False
        frame, self._frame = self._frame, None
        if not self._leave(kind):
            return False
        if self._attempts.end(self) and frame is not None:
            self.committed = False
            go_back(frame, self._line, loop=self._loop)
        return True

    def _leave(self, kind: type[BaseException] | None) -> bool:
        """Whether the body was left in an orderly way."""
        if kind is StepAborted:
            return True
        if kind is not None:
            # Whatever the body raises after communication broke is a consequence, not a bug.
            broken = self._attempts.is_broken() and not self.committed
            return broken and issubclass(kind, Exception) and not issubclass(kind, _VERDICTS)
        self.cast_vote()
        return True

    def cast_vote(self) -> bool:
        """Vote once in each attempt; the result is kept."""
        if not self.voted:
            self.voted = True
            self.committed = self._attempts.vote(self)
        return self.committed

    def check_body(self) -> None:
        """Make sure that an optimizer's step is taken where ``with step`` can leave the body.

        Raises:
            ConfigError: ``with step`` stands in a generator that is suspended: it yielded from
                inside the body, and what is aborted there could be neither left nor run again.
        """
        frame = self._frame
        if frame is None or not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return
        if frame.f_back is None:  # no generator has a caller while it is suspended
            raise ConfigError(
                f"the body of step {self.index} runs outside of its 'with step': "
                f"{frame.f_code.co_qualname} ({place_in(frame)}) yields from inside of it. A step "
                "that breaks could not be done again. Yield the step, and write 'with step as "
                "batch:' around the code that trains."
            )

    def _check_loop(self, loop: FrameType, body: FrameType) -> None:
        """Make sure that no comprehension collects what bodies give.

        Raises:
            ConfigError: One does: what it has so far is on no other machine, and an aborted body
                gives something, too.
        """
        frame: FrameType | None = body
        while frame is not None and frame is not loop:
            frame = frame.f_back
        if frame is loop:
            raise ConfigError(
                f"the loop over the steps is a comprehension ({place_in(loop)}): what it has "
                "collected could not be handed to a joiner. Write a loop, and append to a list."
            )

    def __iter__(self) -> Iterator[Any]:
        """Refused: ``for step, batch in session.steps(loader)`` would skip what commits a step.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "session.steps() gives steps, which cannot be unpacked: the batch comes with the body. "
            "Write 'for step in session.steps(loader):', and in it 'with step as (x, y):'"
        )

    def microbatches(self, count: int) -> Iterator[Any]:
        """The batch in ``count`` parts as equal as possible, for accumulation.

        See ``microbatches.split`` for what is cut and what is passed whole.
        """
        return split(self.kept.batch, count)

    def put_batch_back(self) -> None:
        """Have the batch be what it was before the body ran.

        Raises:
            BatchChangedError: The body changed it in place, for the first time.
        """
        self.kept.put_back(of=f"step {self.index}")


_COLLECTS: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Names of the code of comprehensions; Python 3.12 has none for lists, sets and dictionaries."""
_VERDICTS: Final = (ConfigError, NotDeterministicError)
"""Of this package on the program: another rank may have ended for the same reason already."""
