"""One attempt at the body of a step: what it communicates and changes, and where it votes."""

from __future__ import annotations

from typing import Final

import torch

from trainmover.errors import TrainMoverError
from trainmover_executor.position.moment import Moment
from trainmover_executor.position.placement import Placement, Sighting
from trainmover_executor.state.packing.fingerprint import fingerprint_of
from trainmover_executor.state.packing.shards import local_of
from trainmover_executor.state.training import TrainingState
from trainmover_executor.training.body.step import Step, StepAborted
from trainmover_executor.worker.runtime import Runtime

__all__ = ["Attempt", "StepLostError"]

_CLOSE_LOOKS: Final = 3
"""Bodies whose parameters are compared bit by bit: what is changed through ``.data``, versions of
tensors do not show."""
_IDLE_LOOKS: Final = 16
"""As many more without an optimizer's step: they accumulate, or change parameters by hand."""


class StepLostError(TrainMoverError):
    """A step broke behind a change that cannot be taken back."""


class Attempt:
    """See the module's docstring.

    Args:
        runtime: This rank's.
        state: All mutable training state.
        placement: What is known of its bodies at first.

    Attributes:
        placement: What was seen of its bodies, that decides where votes are.
        accumulates: The bodies since the last optimizer step left gradients that count.
        in_sandbox: The running attempt is for warming up only, and is never committed.
        was_in_sandbox: The attempt before was.
    """

    def __init__(self, runtime: Runtime, state: TrainingState, *, placement: Placement) -> None:
        self._runtime = runtime
        self._state = state
        self.placement = placement
        self.accumulates = False
        self.in_sandbox = self.was_in_sandbox = False
        self._attempted: Step | None = None
        self._running = False
        self._whole = False
        self._versions = 0
        self._looks = self._idle_looks = 0
        self._bits: int | None = None
        self._optimizer_at: int | None = None
        self._changed = False
        self._stand_ins = 0
        self._needs_the_end = Sighting()

    def is_redone(self, step: Step) -> bool:
        """Whether ``step`` was attempted before."""
        return self._attempted is step

    def adopt(self, moment: Moment) -> None:
        """A joiner goes on as the others do."""
        self.placement = moment.placement
        self.accumulates = moment.accumulates

    def begin(self, step: Step, *, catches_up: bool) -> None:
        """The body begins.

        Args:
            step: Which step.
            catches_up: In the sandbox, so that lazy wrappers are as far as the joiner's.
        """
        self._attempted, self._running = step, True
        self.was_in_sandbox, self.in_sandbox = False, catches_up
        if catches_up:
            self._runtime.enter_sandbox()
        self._whole = self.keeps_all
        self._versions = self._sum_of_versions()
        self._bits = self._bits_of_parameters()
        self._optimizer_at = None
        self._changed = False
        latch = self._runtime.latch
        latch.protected = True
        self._stand_ins = latch.stand_ins

    @property
    def keeps_all(self) -> bool:
        """Whether parameters and optimizers are kept until the next vote, at the end of a body."""
        return self._runtime.decisions.state.votes_at_end

    @property
    def accumulating(self) -> bool:
        """Whether gradients belong to the state now: at the vote, that of the running body."""
        if not self._running:
            return self.accumulates
        return self._optimizer_at is None and self._has_gradients()

    @property
    def votes_at_end(self) -> bool:
        """At a vote: whether it is cast at the end of the body."""
        return self._whole or self._optimizer_at is None

    def before_optimizer(self, step: Step) -> None:
        """An optimizer is about to take a step.

        Raises:
            StepAborted: The step is aborted.
        """
        if self._optimizer_at is None:
            self._optimizer_at = self._runtime.latch.issued
            self._changed = self._has_changed()
        if self._whole and not self.in_sandbox:
            # What an optimizer does in a broken step is taken back; a backward pass that calls it
            # has to run through (see the latch).
            if self._runtime.latch.is_set and not _in_backward():
                raise StepAborted
            return
        if not step.cast_vote() and not _in_backward():
            raise StepAborted

    def voting(self) -> bool:
        """Whether this rank asks for the next vote to be at the end of the body."""
        if self._whole:
            self.placement = self.placement.saw(self._sighting())
        return self.placement.wants_the_end(at_end=self._whole)

    def end(self, step: Step, *, kept: bool) -> None:
        """The body has ended.

        Args:
            step: Which step.
            kept: Parameters and optimizers were kept when it began.

        Raises:
            StepLostError: It broke behind a change that was not kept.
        """
        latch = self._runtime.latch
        latch.protected = self._running = False
        if self.in_sandbox:
            self._runtime.leave_sandbox()
            self.in_sandbox, self.was_in_sandbox = False, True
            return
        sighting = self._sighting()
        if not self._whole:
            self.placement = self.placement.saw(sighting)
        if step.committed:
            self._end_committed(step)
        elif sighting.changed and not (self._whole or kept):
            raise StepLostError(
                f"step {step.index} broke ({latch.reason}) after its body had changed parameters "
                "in front of the optimizer, for the first time, so that nothing was kept to take "
                "it back. Start the job again; pass Session(vote='end') to have all kept from the "
                "first step on."
            )

    def _end_committed(self, step: Step) -> None:
        latch = self._runtime.latch
        if not self._whole and latch.stand_ins != self._stand_ins:
            raise StepLostError(
                f"communication broke in step {step.index} behind its optimizer's step "
                f"({latch.reason}): the step is committed, and what its body communicated after "
                "that is lost, for the first time it did so. Start the job again; pass "
                "Session(vote='end') to have all kept from the first step on."
            )
        self.accumulates = self._optimizer_at is None and self._has_gradients()

    def _has_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self._state.parameters())

    def _sighting(self) -> Sighting:
        at = self._optimizer_at
        if at is None:  # no optimizer took a step: the program may change parameters by hand
            self._changed = self._changed or self._has_changed()
        seen = Sighting(
            communicated=at is not None and self._runtime.latch.issued != at,
            changed=self._changed,
        )
        if seen.needs_the_end:
            self._needs_the_end = seen
        return seen

    @property
    def because(self) -> str:
        """Why the vote is at the end of the body, for people."""
        if self._needs_the_end.changed:
            return "the body changes parameters in front of its optimizer"
        if self._needs_the_end.communicated:
            return "the body communicates behind its optimizer's step"
        if self.placement.wants_the_end(at_end=self.keeps_all):
            return "several optimizers are taken to alternate until some steps were seen"
        return "another rank needs it"

    def _has_changed(self) -> bool:
        if self._sum_of_versions() != self._versions:
            return True
        differs = self._bits is not None and self._bits_of_parameters() != self._bits
        if self._optimizer_at is None:
            self._idle_looks += 1
        else:
            self._looks += 1
        return differs

    def _bits_of_parameters(self) -> int | None:
        if self._whole or self._looks >= _CLOSE_LOOKS or self._idle_looks >= _IDLE_LOOKS:
            return None
        return fingerprint_of(local_of(each).detach() for each in self._state.parameters())

    def _sum_of_versions(self) -> int:
        return sum(parameter._version for parameter in self._state.parameters())  # noqa: SLF001


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no public name
