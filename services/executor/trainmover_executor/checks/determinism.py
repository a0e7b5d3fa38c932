"""Whether a program computes the same bits twice: asked for with ``trainmover run``.

A step that broke is done again, and a joiner goes on where another rank stood; both are the same
run only if a body gives the same bits from the same state. So the second, third and fourth step of
a job are done twice: once as a rehearsal that all ranks abort, and once for good. What both have in
front of the optimizer is compared, at the end of the body where votes are there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

import torch

from trainmover.errors import StaleEpochError, TrainMoverError
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.state.packing.fingerprint import fingerprint_of
from trainmover_executor.state.packing.portable import pack_tree
from trainmover_executor.state.packing.shards import local_of
from trainmover_executor.state.rng import capture_rng
from trainmover_executor.state.training import TrainingState
from trainmover_executor.worker.runtime import Runtime

__all__ = ["DETERMINISM_VARIABLE", "DeterminismCheck", "NotDeterministicError"]

DETERMINISM_VARIABLE: Final = "TRAINMOVER_CHECK_DETERMINISM"
"""``1`` compares; the same at all machines, since they rehearse together."""

_FIRST: Final = 2
"""In the first step wrappers, compilers and libraries settle on what they do from then on."""

_LAST: Final = 4
_NAMED: Final = 3


class NotDeterministicError(TrainMoverError):
    """A step that was done twice from the same state had two results."""


class DeterminismCheck:
    """The rehearsals of one rank.

    Args:
        runtime: This rank's.
        state: All mutable training state.

    Attributes:
        rehearses: The running attempt is the first of two, and never committed.
        rehearsed: The attempt before was, and nothing broke in it.
    """

    def __init__(self, runtime: Runtime, state: TrainingState) -> None:
        self._runtime = runtime
        self._state = state
        self._wanted = os.environ.get(DETERMINISM_VARIABLE) == "1"
        self._steps = 0
        self._seen: dict[str, int | bytes] | None = None
        self.rehearses = self.rehearsed = False

    def begin(self, *, redone: bool) -> None:
        """An attempt begins.

        Args:
            redone: The step was attempted before.
        """
        self.rehearsed = self.rehearses and self._seen is not None
        self.rehearses = False
        if redone:
            return
        self._steps += 1
        self._seen = None
        # A joiner begins its count elsewhere, so nobody rehearses once one has come.
        self.rehearses = (
            self._wanted and _FIRST <= self._steps <= _LAST and self._is_as_it_was_formed
        )

    @property
    def _is_as_it_was_formed(self) -> bool:
        spec = self._runtime.spec
        return spec.role == "active" and self._runtime.epoch == spec.membership.epoch

    def keep(self) -> None:
        """The rehearsal came to its vote."""
        self._runtime.drain()
        if not self._runtime.latch.is_set:
            self._seen = dict(self._prints())

    def compare(self) -> None:
        """The second attempt came to its vote.

        Raises:
            NotDeterministicError: It differs from the first, at this rank or at another.
        """
        seen, self._seen = self._seen, None
        if seen is None:
            return
        self._runtime.drain()
        if self._runtime.latch.is_set or not self._is_as_it_was_formed:
            return
        differs = [name for name, now in self._prints() if seen.get(name) != now]
        try:
            (anywhere,) = self._runtime.agree([len(differs)], best=max)
        except (LinkBrokenError, StaleEpochError):
            return  # the vote will see the same
        if anywhere:
            with contextlib.suppress(LinkBrokenError, StaleEpochError):
                self._runtime.agree([0], best=max)  # all have heard before the first of them ends
            raise NotDeterministicError(_words(differs, step=self._steps - 1))

    def _prints(self) -> Iterator[tuple[str, int | bytes]]:
        """(What, a number that differs when it does), the most telling first."""
        for prefix, model in self._named_models():
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    yield f"the gradient of {prefix}{name}", _print(parameter.grad)
                yield f"parameter {prefix}{name}", _print(parameter)
            for name, buffer in model.named_buffers():
                yield f"buffer {prefix}{name}", _print(buffer)
        yield "what was drawn from random generators", pack_tree(capture_rng())

    def _named_models(self) -> Iterator[tuple[str, torch.nn.Module]]:
        models = self._state.models
        for index, model in enumerate(models):
            yield f"model {index}: " if len(models) > 1 else "", model


def _print(tensor: torch.Tensor) -> int:
    return fingerprint_of([local_of(tensor).detach()])


def _words(differs: list[str], *, step: int) -> str:
    if not differs:
        found = "another rank had two results (its message names what differs)"
    else:
        more = len(differs) - _NAMED
        found = ", ".join(differs[:_NAMED]) + (f" and {more} more" if more > 0 else "") + " differ"
    return (
        f"this program is not deterministic: step {step} was done twice from the same state, with "
        f"the same batch and random numbers, and {found}. A step that is done again after a crash "
        "would change the run. Draw random numbers from the generators of torch, numpy and random "
        "only; keep clocks and the system's randomness out of the loss; use "
        "torch.use_deterministic_algorithms(True); and give state of your own that the body "
        "changes to session.track(...)."
    )
