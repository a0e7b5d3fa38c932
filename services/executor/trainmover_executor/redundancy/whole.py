"""Small state that cannot be followed goes to the next slot as a whole, with every vote.

Several optimizers without a wrapper (reinforcement learning, averages by hand), optimizers that
look at more than single elements, ranks that train apart: what they do to the state can be neither
computed by a neighbour nor taken again from gradients. A few megabytes of it need not be. The vote
is at the end of the body then, and what came with one that passed is the state behind it.

What the program does behind the vote (a scheduler's step, an average) a joiner's program does
again, on that state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from trainmover_executor.redundancy.advance import same
from trainmover_executor.state.handing_over.written import WrittenElsewhere, beginning_of
from trainmover_executor.state.packing.memory import on_host
from trainmover_executor.state.packing.shards import local_of
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.units import StateUnits

__all__ = ["WholeFollowed"]

_LIMIT_BYTES: Final = 16 * 1024 * 1024
_KEPT_BY_OPTIMIZERS: Final = 3
"""A parameter and two averages of its gradient, as with Adam, which has none before it steps."""


class WholeFollowed:
    """The side of a rank whose whole state goes with its votes: see ``Followed``.

    Args:
        state: The state of this rank, small as ``obstacle`` makes sure.

    Attributes:
        budget: See ``Followed``.
    """

    budget = 0

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._units = StateUnits(state)
        self._elsewhere = WrittenElsewhere(self._units.parameters())
        self._settings = state.settings()
        self._since_vote: dict[str, int] = {}
        self._between = False

    @staticmethod
    def obstacle(state: TrainingState) -> str:
        """Why not all of ``state`` can go with every vote, for people; empty when it can."""
        if any(not on_host(parameter) for parameter in state.parameters()):
            return "parameters are on a device"
        parameters = sum(local_of(parameter).nbytes for parameter in state.parameters())
        kept = sum(_bytes_in(entry) for each in state.optimizers for entry in each.state.values())
        nbytes = max(_KEPT_BY_OPTIMIZERS * parameters, parameters + kept)
        if nbytes > _LIMIT_BYTES:
            return (
                f"with what optimizers keep, its parameters have {nbytes / 2**20:.0f} MiB, and up "
                f"to {_LIMIT_BYTES // 2**20} go with a vote"
            )
        return ""

    def message(self, *, step: int, at_end: bool) -> dict[str, Any]:
        """What goes with the vote of ``step``.

        Args:
            step: Steps completed by the job once the vote has passed.
            at_end: Whether the body is over, and the state the one that this step leads to.
        """
        return {
            "step": step,
            "whole": self._state.tree() if at_end else None,
            "structure": self._state.structure.tree(),
            "names": list(self._units.names),
            "between": self._between,
        }

    def committed(self) -> list[str]:
        """The vote has passed; see ``Followed.committed``."""
        if self._units.are_outdated():
            self._units = StateUnits(self._state)
            self._elsewhere = WrittenElsewhere(self._units.parameters())
        self._elsewhere.note()
        self._settings = self._state.settings()
        self._since_vote = {}
        return []

    def written_between(self) -> dict[str, int]:
        """See ``FollowerService.written_between``."""
        if names := self._elsewhere.names():
            self._elsewhere.note()
            parameters = self._units.parameters()
            self._since_vote |= {name: beginning_of(parameters[name]) for name in names}
        self._between |= bool(self._since_vote) or not same(self._settings, self._state.settings())
        return self._since_vote

    def changed_by_work(self) -> str:
        """A parameter that work between steps left another than it was; empty if none is known."""
        return next(iter(self._elsewhere.changed()), "")

    @property
    def current(self) -> list[str]:
        """Nothing that a process in this one's place would not tell again."""
        return []

    def restart(self) -> None:
        """Each message says all."""

    def adopt(self, names: list[str]) -> None:
        """As for ``restart``."""

    def has_other_parameters(self) -> bool:
        """Whatever the parameters are, all of them go."""
        return False

    def is_given_others(self) -> bool:
        """As for ``has_other_parameters``."""
        return False

    def changed(self) -> str:
        """As for ``has_other_parameters``."""
        return ""

    def stepped(self) -> None:
        """What optimizers do is no matter."""

    def written(self) -> list[str]:
        """As for ``stepped``."""
        return []


def _bytes_in(kept: Any) -> int:
    """Of tensors: an optimizer may keep lists of them, as L-BFGS does its history."""
    if isinstance(kept, torch.Tensor):
        return local_of(kept).nbytes
    if isinstance(kept, Mapping):
        return sum(map(_bytes_in, kept.values()))
    return sum(map(_bytes_in, kept)) if isinstance(kept, list | tuple) else 0
