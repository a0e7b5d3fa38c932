"""What a program changes and nobody carries, looked for while its first steps are taken.

The session knows what it was given. All that can be seen of the rest is compared from one step to
the next: three times, and then now and again, since a list may outgrow what is carried. A module
that changes late, a target network that is brought up to date every hundred steps say, is noticed
at once, and so is one that a program makes late.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Mapping
from types import FrameType
from typing import Any, Final

import structlog
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from trainmover.errors import ConfigError
from trainmover_executor.checks.left_behind import LeftBehind, attributes_of
from trainmover_executor.checks.portable import check_state
from trainmover_executor.checks.strangers import Strangers, memory_of
from trainmover_executor.program.frames import place_in
from trainmover_executor.program.looking.parts import is_made_by_script
from trainmover_executor.program.variables import LoopVariables
from trainmover_executor.state.optimizers.numbers import NUMBERS
from trainmover_executor.state.optimizers.settings import constants_of
from trainmover_executor.state.packing.shards import local_of
from trainmover_executor.state.training import TrainingState

__all__ = ["Lookout"]

log = structlog.get_logger(__name__)

_EARLY_STEPS: Final = 3
_EVERY: Final = 64
_PATIENT_STEPS: Final = 1000
"""So many steps may be lost by an error; behind them it is a warning."""
_OWN_TO_TORCH: Final = frozenset({"state", "param_groups", "defaults"})


class Lookout:
    """Asked each time the program asks for a step.

    Args:
        state: What the session knows.
        variables: The program's own.
    """

    def __init__(self, state: TrainingState, variables: LoopVariables) -> None:
        self._state = state
        self._variables = variables
        self._strangers = Strangers(state)
        self._left_behind = LeftBehind()
        self._hidden: list[dict[str, Any]] = []
        self._first: int | None = None
        self._last = -1
        self._joined = False
        self._outgrown = 0
        self._newcomers = 0
        self._closely_to = _EARLY_STEPS

    def joined(self) -> None:
        """This rank took another's place: its program was looked at there."""
        self._joined = True

    def look(self, frame: FrameType, *, committed: int) -> None:
        """Compare with what was there a step ago.

        Args:
            frame: Asks for the next step.
            committed: Steps completed by the job.

        Raises:
            ConfigError: Something changes that must be passed to the session, or what was passed
                cannot be carried any more.
        """
        if self._first is None:
            self._first = committed
        done = committed - self._first
        if committed == self._last:
            return
        newcomers, self._newcomers = self._newcomers, self._variables.newcomers.count
        if newcomers != self._newcomers:
            self._closely_to = done + _EARLY_STEPS
        early = done <= self._closely_to
        moved = not early and self._strangers.moved()
        outgrown, self._outgrown = self._outgrown, self._variables.outgrown
        grew = outgrown != self._outgrown
        if not early and done % _EVERY and not (moved or grew):
            return
        self._last = committed
        variables = self._variables.passed_over(frame)
        if (early or moved) and not self._joined:
            self._look_closely(variables, frame, done=done)
        variables += attributes_of(self._state.models)
        self._left_behind.look(
            variables,
            frame,
            memory=memory_of(self._state),
            was_plain=self._variables.was_plain,
        )

    def _look_closely(
        self, variables: list[tuple[str, Any]], frame: FrameType, *, done: int
    ) -> None:
        if done == 1:
            check_state(self._state)
        if done in {0, 1, self._closely_to}:
            self._variables.explore(frame, ends=done == self._closely_to)
        try:
            self._strangers.look(variables, frame)
        except ConfigError as error:
            if done <= _PATIENT_STEPS:
                raise
            self._strangers = Strangers(self._state)  # it was looked at for the last time
            log.warning("the session does not know all that changes", reason=str(error))
        memory = memory_of(self._state)
        hidden = [_hidden_in(optimizer, memory) for optimizer in self._state.optimizers]
        for optimizer, before, now in zip(
            self._state.optimizers, self._hidden, hidden, strict=False
        ):
            for name, value in now.items():
                if before.get(name, value) != value:
                    raise ConfigError(
                        f"{type(optimizer).__name__} keeps {name}, which changes from step to step "
                        f"(the loop at {place_in(frame)}) and would stay behind when a machine is "
                        "replaced. Keep numbers in its param_groups, tensors in its state."
                    )
        self._hidden = hidden


def _hidden_in(optimizer: torch.optim.Optimizer, memory: Collection[int]) -> dict[str, Any]:
    """Prints of what an optimizer keeps neither in its state nor in its groups, but numbers."""
    held = sorted(vars(optimizer).items())
    kept = {name: each for name, each in held if type(each) not in NUMBERS}
    prints = {name: _print_of(kept[name], memory) for name in kept.keys() - _OWN_TO_TORCH}
    prints |= {name: repr(value) for name, value in constants_of(optimizer)}
    return {name: found for name, found in prints.items() if found is not None}


def _print_of(value: Any, memory: Collection[int], *, depth: int = 3) -> Any:
    """What differs when numbers, tensors and containers of them have changed; None for others."""
    if isinstance(value, torch.Tensor):
        is_known = is_lazy(value) or value.layout is not torch.strided
        if is_known or local_of(value).untyped_storage().data_ptr() in memory:
            return None
        return value._version, id(value)  # noqa: SLF001 - no public name
    if isinstance(value, Mapping):
        value = list(value.values())
    elif _is_object_of_program(value):
        value = list(vars(value).values())
    if isinstance(value, list | tuple | deque) and depth:
        return [_print_of(each, memory, depth=depth - 1) for each in itertools.islice(value, 64)]
    return value if type(value) in {int, float} else None


def _is_object_of_program(value: Any) -> bool:
    if isinstance(value, type | nn.Module | torch.optim.Optimizer):
        return False
    return is_made_by_script(type(value)) and hasattr(value, "__dict__")
