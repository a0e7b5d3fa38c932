"""One optimizer step: ``with step as batch``, void or committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

from trainmover.errors import TrainMoverError

__all__ = ["BatchChangedError", "Step", "VoidStep"]


class VoidStep(BaseException):
    """Leaves the body of a step whose vote failed; ``with step`` swallows it.

    A BaseException, so that no ``except Exception`` in user code can catch it.
    """


class BatchChangedError(TrainMoverError):
    """A void step cannot be redone because its batch was modified in place."""


class Step:
    """One attempt at one optimizer step.

    Attributes:
        index: Number of this step, from 0; equal on all ranks.
        epoch: Pass over the data the batch belongs to.
    """

    def __init__(
        self,
        *,
        index: int,
        epoch: int,
        batch: Any,
        vote: Callable[[], bool],
        is_broken: Callable[[], bool],
        left: Callable[[], None] = lambda: None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self.index = index
        self.epoch = epoch
        self._batch = batch
        self._versions = [(t, t._version) for t in _tensors(batch)]  # noqa: SLF001 - no public name
        self._vote = vote
        self._is_broken = is_broken
        self._done = done
        self._left = left
        self.entered = False
        self.running = False
        self.voted = False
        self.committed = False

    def __enter__(self) -> Any:
        self.entered = self.running = True
        return self._batch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.running = False
        whole = self._leave(kind)
        if whole and self.committed:
            self._done()
        self._left()
        return whole

    def _leave(self, kind: type[BaseException] | None) -> bool:
        if kind is VoidStep:
            return True
        if kind is not None:
            # Whatever the body raises after communication broke is a consequence, not a bug.
            return self._is_broken() and not self.committed and issubclass(kind, Exception)
        if not self.voted:
            self.cast_vote()
        return True

    def cast_vote(self) -> bool:
        """Vote once; the result is kept."""
        if not self.voted:
            self.voted = True
            self.committed = self._vote()
        return self.committed

    def before_optimizer(self) -> None:
        """Called in front of the optimizer's step: leave the body when the step is void.

        Raises:
            VoidStep: The vote did not pass.
        """
        if not self.cast_vote():
            raise VoidStep

    def microbatches(self, count: int) -> Iterator[Any]:
        """The batch in ``count`` equal parts along its first dimension, for accumulation."""
        parts = [tensor.chunk(count) for tensor in _tensors(self._batch)]
        for index in range(count):
            pieces = tuple(part[index] for part in parts)
            yield pieces if len(pieces) > 1 else pieces[0]

    def check_batch(self) -> None:
        """Make sure that the batch is what it was before the void attempt.

        Raises:
            BatchChangedError: The body changed it in place.
        """
        for tensor, version in self._versions:
            if tensor._version != version:  # noqa: SLF001 - no public name
                raise BatchChangedError(
                    f"step {self.index} broke and must be redone, but its body changed the batch "
                    f"in place (a tensor of shape {tuple(tensor.shape)}). Use an out-of-place "
                    "operation on the batch."
                )


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
