"""Other weights that plain code between two steps puts in for an evaluation, and takes out again.

A machine may die in a collective of that evaluation. Then whoever replaces it is given the weights
that are in the model at the others, and its program, which has yet to put them in, would store them
as the trained ones. So the job ends there, with the cure; inside of ``session.between_steps`` all
goes back to where the evaluation began.
"""

from __future__ import annotations

from types import FrameType
from typing import Final

import structlog

from trainmover_executor.program.frames import place_in
from trainmover_executor.state.handing_over.written import WrittenElsewhere
from trainmover_executor.state.training import TrainingState

__all__ = ["Swaps"]

log = structlog.get_logger(__name__)

_LOOKED_AT: Final = 8
"""Parameters: who puts other weights in, does so with all of them."""


class Swaps:
    """Learns from one evaluation what the next ones do. Weights on a device are not looked at.

    Args:
        state: All mutable training state.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._weights: WrittenElsewhere | None = None
        self._place = ""
        self._known = False

    def body_ended(self) -> None:
        """The weights are the trained ones."""
        if self._weights is None:
            trained = [each for each in self._state.parameters() if each.requires_grad]
            named = {str(at): each for at, each in enumerate(trained[:_LOOKED_AT])}
            self._weights = WrittenElsewhere(named)
        self._weights.note()
        self._place = ""

    def communicates(self, frame: FrameType) -> None:
        """Plain code between two steps is about to communicate."""
        if self._weights is not None and self._weights.changed():
            self._place = place_in(frame)

    def asks(self) -> None:
        """The program asks for the next step."""
        if not self._place or self._known or self._weights is None or self._weights.changed():
            return
        self._known = True
        log.warning(
            "other weights are put in between two steps while the program communicates, and the "
            "trained ones again: if a machine dies there, the job ends",
            place=self._place,
            cure="put the evaluation into session.between_steps(...)",
        )

    @property
    def others_are_in(self) -> str:
        """Where the program communicates with other weights in the model; empty where it does not.

        Of the first time nobody can tell.
        """
        return self._place if self._known else ""
