"""Work between two steps: an evaluation, a sharded checkpoint. All ranks do it, or all again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException

from trainmover.errors import StaleEpochError
from trainmover_executor.decisions.effects import BetweenBroke, BetweenPassed
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.moves.course_packing import told_of
from trainmover_executor.moves.handover import Handover
from trainmover_executor.position.position import Position, WorkDone
from trainmover_executor.position.results import Returned
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.rng import restore_rng
from trainmover_executor.state.training import TrainingState
from trainmover_executor.worker.runtime import Runtime

__all__ = ["BetweenSteps"]


class BetweenSteps:
    """Attempts at work between steps.

    Args:
        runtime: This rank's.
        state: All mutable training state.
        handover: Resolves an attempt that broke at its end.
        variables: The program's own.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: TrainingState,
        *,
        handover: Handover,
        variables: LoopVariables,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._handover = handover
        self._variables = variables

    def attempt(
        self,
        work: Callable[[], Any],
        frame: FrameType,
        *,
        accumulates: bool,
        here: Callable[[], Position],
    ) -> tuple[WorkDone | None, Any]:
        """Do it once; where it broke, all is as it was when it began.

        Args:
            work: What the program passed.
            frame: The program's frame that asks.
            accumulates: Gradients are part of the state: earlier bodies accumulated them.
            here: Where this rank is, once the work is done.

        Returns:
            What others are told of it, and what ``work`` returned; the former is None where some
            rank's communication broke.
        """
        start = StepStart(self._state)
        start.capture(self._handover.committed, accumulates=accumulates)
        modes = self._state.modes()
        self._variables.keep(frame)
        latch = self._runtime.latch
        result = None
        try:
            with latch.protecting(), self._runtime.saves.allowing():
                self._runtime.reach("between.begin")
                result = work()
        except (Exception, CheckpointException):  # torch derives the latter from BaseException
            if not latch.is_set:
                raise
        finally:
            restore_rng(start.rng)
        if (done := self._agreed(result, here)) is not None:
            self._variables.note_changes()
            return done, result
        # A consequence of the broken communication: all is as it was when the work began.
        start.restore()
        self._state.load_modes(modes)
        self._variables.put_back(frame)
        return None, None

    def pass_over(self, done: WorkDone, frame: FrameType) -> None:
        """Be where the rank that this one replaces was behind work between steps.

        Args:
            done: The work.
            frame: The program's frame that asks for it.
        """
        values, large = copy.deepcopy(done.position.variables), self._variables.contents
        self._variables.load(values, frame, contents=large)
        self._state.load_buffers(done.position.buffers)

    def _agreed(self, result: Any, here: Callable[[], Position]) -> WorkDone | None:
        """The work, where no rank's communication broke since the step; so it is at all ranks."""
        runtime, handover = self._runtime, self._handover
        runtime.drain()
        if runtime.latch.is_set:
            return None
        value = told_of(result)
        there = here()
        there = replace(there, buffers=[[index, each.clone()] for index, each in there.buffers])
        done = WorkDone(Returned(runtime.decisions.state.between + 1, value), there)
        try:
            handover.private_state.exchange_work(done, step=handover.committed)
            runtime.reach("between.cast")
            runtime.agree([1], best=min)
        except (LinkBrokenError, StaleEpochError) as error:
            runtime.decisions.take(BetweenBroke(str(error)))
            return done if handover.resolve_undecided() else None
        runtime.decisions.take(BetweenPassed())
        return done
