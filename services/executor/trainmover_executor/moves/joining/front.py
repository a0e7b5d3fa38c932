"""What a joiner's program does between being given a step and its body, where the job has done it.

After a crash the state comes from a rank that may stand in the body of the next step. The code in
front of that body has run there, and runs at the joiner, too: weights that it decays would decay
twice. So the state that was given is put back when the body begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trainmover.errors import ProtocolError
from trainmover_executor.moves.joining.own_extras import keeping_own_extras
from trainmover_executor.state.handing_over.written import WrittenElsewhere
from trainmover_executor.state.packing.shards import local_of
from trainmover_executor.state.redo import StepStart
from trainmover_executor.state.training import TrainingState

__all__ = ["Front", "parameters_of"]

_SMALL_BYTES: Final = 16 * 1024 * 1024
"""State up to this size is kept in any case: copying it takes some milliseconds."""


def parameters_of(state: TrainingState) -> WrittenElsewhere:
    """Watches all parameters, those of modules that are no model included."""
    every = [each for model in state.all_models for each in model.parameters()]
    return WrittenElsewhere({str(at): each for at, each in enumerate(every)})


class Front:
    """From the state that was given to the body of the first step.

    Args:
        state: Of this process, with what was given.
        given: A copy of it, if there is one already.
        step: Steps completed by the job.
        writes: Whether the program wrote to parameters there in its shadow iterations.
        take_gradients: Has the gradients that were given again.
    """

    def __init__(
        self,
        state: TrainingState,
        *,
        given: StepStart | None,
        step: int,
        writes: bool,
        take_gradients: Callable[[], None],
    ) -> None:
        self._state = state
        self._take_gradients = take_gradients
        self._given = given
        tensors = [local_of(each) for model in state.all_models for each in model.parameters()]
        if given is None and (writes or sum(each.nbytes for each in tensors) <= _SMALL_BYTES):
            self._given = StepStart(state)
            self._given.capture(step, whole=True)
        self._elsewhere = parameters_of(state)
        self._elsewhere.note()

    def body_begins(self) -> None:
        """Have the state that was given again, if the program has written to parameters.

        What may be each rank's own is as the program has it.

        Raises:
            ProtocolError: The program has, and nobody foresaw it: there is no copy.
        """
        if not self._elsewhere.names():
            return
        if self._given is None:
            raise ProtocolError(
                "the program writes to parameters between 'for step in session.steps()' and 'with "
                "step', in this step and not in the first ones. The state came from a rank that "
                "had done so already, and no copy of it was kept. Write to parameters in the body "
                "or behind it, and start the job again from its latest checkpoint"
            )
        state, settings = self._state, self._state.settings()
        buffers = [each.clone() for each in state.buffers()]
        with keeping_own_extras(state):
            self._given.restore()
        self._take_gradients()
        state.load_buffers(enumerate(buffers))
        state.load_settings(settings)
