"""What a joiner's program wrote to parameters behind the vote of the rank that it replaces.

A rank that is followed left its state at its last vote with the follower. What its program did to
parameters since (averaged weights, clipping) is nowhere. The joiner's program runs that code again,
on that state; what it writes there is as it was at the dead rank, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trainmover_executor.state.handing_over.written import WrittenElsewhere, beginning_of
from trainmover_executor.state.packing.shards import local_of
from trainmover_executor.state.training import TrainingState
from trainmover_executor.state.units import StateUnits

__all__ = ["OwnWrites"]


class OwnWrites:
    """Keeps what is written between ``begin`` and ``end``, any number of times.

    Attributes:
        communicated: Whether collectives were issued between these, which are stand-ins here.
    """

    def __init__(self) -> None:
        self._parameters: dict[str, torch.Tensor] = {}
        self._elsewhere: WrittenElsewhere | None = None
        self._kept: dict[str, torch.Tensor] = {}
        self._issued = 0
        self.communicated = False

    @property
    def names(self) -> set[str]:
        """Units whose parameters were written to."""
        return set(self._kept)

    def begin(self, state: TrainingState, *, issued: int) -> None:
        """The program goes on with ``state``, which holds what was handed over and is kept here.

        Args:
            state: Of this process.
            issued: Collectives that the program has issued.
        """
        self._issued = issued
        self._parameters = StateUnits(state).parameters()
        self._elsewhere = WrittenElsewhere(self._parameters)
        self._elsewhere.note()

    def end(self, *, issued: int) -> None:
        """The program has run, and what happens to the state from here on does not count."""
        if self._elsewhere is None:
            return
        self.communicated |= issued != self._issued
        for name in self._elsewhere.names():
            self._kept[name] = local_of(self._parameters[name]).detach().clone()
        self._elsewhere = None

    @torch.no_grad()
    def put_back(self) -> None:
        """Have them in the state again."""
        for name, value in self._kept.items():
            local_of(self._parameters[name]).copy_(value)

    def differing(self, beginnings: Mapping[str, int]) -> str:
        """A parameter that is not as the dead rank had it; empty where none is known.

        Args:
            beginnings: What that one showed of those that it wrote to; see ``Moment.written``.
        """
        if beginnings.keys() != self._kept.keys():
            return next(iter(beginnings.keys() ^ self._kept.keys()))
        mine = self._parameters
        return next((n for n, each in beginnings.items() if beginning_of(mine[n]) != each), "")
