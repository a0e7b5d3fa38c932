"""What may be each rank's own stays as a joiner's program has it, while given state is put back."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

from trainmover_executor.program.values.plain import is_plain
from trainmover_executor.state.packing.memory import without_history
from trainmover_executor.state.rng import capture_rng, restore_rng
from trainmover_executor.state.training import TrainingState

__all__ = ["keeping_own_extras"]


@contextlib.contextmanager
def keeping_own_extras(state: TrainingState) -> Iterator[None]:
    """Behind it, random generators and extras that may be own are as in front of it."""
    rng = capture_rng()
    states = {name: extra.state_dict() for name, extra in state.extras.items()}
    may_be = {n: each for n, each in states.items() if n in state.own_extras or is_plain(each)}
    own = copy.deepcopy(without_history(may_be))
    yield
    for name, each in own.items():
        state.extras[name].load_state_dict(each)
    restore_rng(rng)
