"""Work between two steps: an evaluation, a sharded checkpoint. All ranks do it, or all again."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

from trainmover.errors import StaleEpochError, TrainMoverError
from trainmover_executor.decisions.effects import BetweenBroke, BetweenPassed
from trainmover_executor.links.link import LinkBrokenError
from trainmover_executor.moves.handover import Handover
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.packing.portable import pack_tree
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.rng import restore_rng
from trainmover_executor.state.training import TrainingState
from trainmover_executor.worker.runtime import Runtime

__all__ = ["BetweenSteps", "told_of"]


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
        self, work: Callable[[], Any], frame: FrameType, *, accumulates: bool
    ) -> tuple[bool, Any]:
        """Do it once; where it broke, all is as it was when it began.

        Args:
            work: What the program passed.
            frame: The program's frame that asks.
            accumulates: Gradients are part of the state: earlier bodies accumulated them.

        Returns:
            Whether no rank's communication broke, and what ``work`` returned.
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
        except Exception:
            if not latch.is_set:
                raise
        finally:
            restore_rng(start.rng)
        if self._is_whole():
            self._variables.note_changes()
            return True, result
        # A consequence of the broken communication: all is as it was when the work began.
        start.restore()
        self._state.load_modes(modes)
        self._variables.put_back(frame)
        return False, None

    def _is_whole(self) -> bool:
        """Whether no rank's communication broke since the step; all ranks come to the same."""
        runtime, handover = self._runtime, self._handover
        runtime.drain()
        if runtime.latch.is_set:
            return False
        try:
            runtime.agree([1], best=min)
        except (LinkBrokenError, StaleEpochError) as error:
            runtime.decisions.take(BetweenBroke(str(error)))
            return handover.resolve_undecided()
        runtime.decisions.take(BetweenPassed())
        return True


def told_of(result: Any) -> Any:
    """What a joiner on its way is told that ``between_steps`` returned; None if it cannot be."""
    try:
        pack_tree({"result": result})
    except TrainMoverError:
        return None
    return result
