"""What a body may change before it is committed, kept so that an aborted step can be redone."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from typing import Any

import torch

from trainmover_executor.state.handing_over.written import WrittenElsewhere, marks_of_states
from trainmover_executor.state.optimizers.settings import set_by_step
from trainmover_executor.state.packing.shards import local_of
from trainmover_executor.state.rng import capture_rng, restore_rng
from trainmover_executor.state.training import TrainingState

__all__ = ["AsBefore", "StepStart"]


class AsBefore:
    """Whether parameters and what optimizers keep are as they were when this was made.

    Args:
        state: All mutable training state.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        parameters = state.parameters()
        self._written = WrittenElsewhere({str(at): each for at, each in enumerate(parameters)})
        self._written.note()
        self._marks = marks_of_states(state.optimizers)

    def is_so(self) -> bool:
        """Whether nobody wrote to them since."""
        return not self._written.names() and self._marks == marks_of_states(self._state.optimizers)


class StepStart:
    """Random generators, buffers, small state and gradients at a step's start.

    Parameters and optimizer state need no copy where they change only after the vote has passed;
    ``whole`` keeps them as well.

    Attributes:
        nbytes: What is kept of parameters and optimizers.
        keep_s: How long keeping that took, in seconds.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._step: int | None = None
        self._rng: dict[str, Any] = {}
        self._small: dict[str, Any] = {}
        self._buffers: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor | None] = []
        self._had_gradient: list[bool] = []
        self._accumulates = False
        self._private: set[int] = set()
        self._large: dict[str, Any] | None = None
        self._as_kept: AsBefore | None = None
        self.nbytes = 0
        self.keep_s = 0.0

    @torch.no_grad()
    def capture(self, step: int, *, whole: bool = False, accumulates: bool = False) -> None:
        """Remember the start of ``step``; tensors are copied into the same memory each time.

        Args:
            step: Steps completed by the job.
            whole: Keep parameters and optimizer state, too: the body changes them before its vote.
            accumulates: Gradients are part of the state: earlier bodies accumulated them.
        """
        self._step = step
        self._rng = capture_rng()
        self._small = _kept(self._state.small(), self._small)
        self._buffers = _kept(self._state.buffers(), self._buffers)
        self._accumulates = accumulates
        gradients = self._state.note_gradients()
        self._had_gradient = [gradient is not None for gradient in gradients]
        self._gradients = _kept(gradients, self._gradients) if accumulates else []
        began = time.perf_counter()
        self._large = _kept(self._state.large(), self._large) if whole else None
        self._as_kept = None
        self.keep_s = time.perf_counter() - began
        self.nbytes = 0 if self._large is None else _size_of(self._large)

    @property
    def rng(self) -> dict[str, Any]:
        """Random generators at the start."""
        return self._rng

    @property
    def state_bytes(self) -> int:
        """Parameters and what optimizers keep, as they are now; of shards, this rank's."""
        return _size_of(self._state.large())

    @property
    def keeps_all(self) -> bool:
        """Whether parameters and optimizer state are kept, too."""
        return self._large is not None

    @property
    def fits(self) -> bool:
        """Whether there are as many parameters and buffers as there were at the start."""
        then = len(self._had_gradient), len(self._buffers)
        return then == (len(self._state.parameters()), len(self._state.buffers()))

    def private_buffers(self) -> list[list[Any]]:
        """(index, buffer) of the buffers that training changes, after the body of a step.

        Replicas agree on parameters, not on these: BatchNorm's statistics are each rank's own
        until the next forward pass copies rank 0's. Constant buffers (masks, tables) are left out.
        """
        live = self._state.buffers()
        for index, (kept, buffer) in enumerate(zip(self._buffers, live, strict=False)):
            if index not in self._private and not torch.equal(kept, buffer):
                self._private.add(index)
        return [[index, live[index]] for index in sorted(self._private)]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        self._state.forget_passes()
        self._put_back()
        if self._accumulates:
            for parameter, kept in zip(self._state.parameters(), self._gradients, strict=True):
                _restore_gradient(parameter, kept)
            return
        for parameter, had in zip(self._state.parameters(), self._had_gradient, strict=True):
            if not had:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()
    def restore_large(self, *, settings: dict[str, Any]) -> None:
        """Put parameters and what optimizers keep back where that is kept, behind their step.

        Args:
            settings: In front of that step. What it set is put back, too; what code set is not.
        """
        if self._large is None:
            return
        after = self._state.settings()
        self._state.load_large(self._large)
        theirs = self._state.settings()["groups"]
        groups = zip(settings["groups"], after["groups"], theirs, strict=True)
        self._state.load_settings({**after, "groups": [set_by_step(*each) for each in groups]})
        self._as_kept = AsBefore(self._state)

    def _put_back(self) -> None:
        restore_rng(self._rng)
        self._state.load_small(copy.deepcopy(self._small))
        self._state.load_buffers(enumerate(self._buffers))
        if self._large is not None:
            # Of a model of a hundred million parameters a copy takes a third of a second.
            is_there = self._as_kept is not None and self._as_kept.is_so()
            self._state.load_large(self._large, but_tensors=is_there)
            self._as_kept = None

    @contextlib.contextmanager
    def in_place(self, step: int) -> Iterator[None]:
        """While it lasts, all but gradients is as it was when ``step`` began; then as before.

        Changes nothing when ``step`` has not begun: what is there is its start.
        """
        if self._step != step:
            yield
            return
        now = StepStart(self._state)
        now.capture(step, whole=self._large is not None)
        with torch.no_grad():
            self._put_back()
        try:
            yield
        finally:
            with torch.no_grad():
                now._put_back()


def _restore_gradient(parameter: torch.Tensor, kept: torch.Tensor | None) -> None:
    if kept is None:
        parameter.grad = None
    elif parameter.grad is None:
        parameter.grad = kept.clone()
    else:  # in place: wrappers keep views of it
        parameter.grad.copy_(kept)


def _size_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return local_of(value).nbytes
    if isinstance(value, dict):
        return sum(map(_size_of, value.values()))
    return sum(map(_size_of, value)) if isinstance(value, list | tuple) else 0


def _kept(value: Any, memory: Any) -> Any:
    """A copy of ``value``, with the tensors of ``memory`` where they fit.

    Args:
        value: Nested dicts, lists and tuples; what else there is, is copied deeply.
        memory: What was returned for the step before. It may be a running average of a whole model.
    """
    if isinstance(value, torch.Tensor):
        like = ("shape", "dtype", "device", "layout")
        if type(memory) is type(value) and all(
            getattr(memory, each) == getattr(value, each) for each in like
        ):
            return memory.copy_(value)
        return value.detach().clone()
    if isinstance(value, dict):
        before = memory if isinstance(memory, dict) else {}
        copied = copy.copy(value)  # of its class, with what else it carries
        for key, each in value.items():  # update() of a Counter adds
            copied[key] = _kept(each, before.get(key))
        return copied
    if type(value) in {list, tuple}:
        fits = type(memory) is type(value) and len(memory) == len(value)
        return type(value)(map(_kept, value, memory if fits else [None] * len(value)))
    return copy.deepcopy(value)
