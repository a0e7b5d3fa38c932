"""Numbers that optimizers keep as attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch

__all__ = ["NUMBERS", "OptimizerNumbers"]

NUMBERS: Final = frozenset({bool, int, float})
"""What is carried of an optimizer's attributes."""
_OWN_TO_TORCH: Final = frozenset({"_step_count", "_opt_called"})
"""Counts that schedulers of torch keep there, to warn whoever calls them too early."""


class OptimizerNumbers:
    """Numbers that optimizers keep as attributes, where they are others than at first.

    What never changes is left alone: one may note its rank.

    Args:
        optimizers: As they are before the first step.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._first = [(each, _numbers_of(each)) for each in optimizers]

    def changed(self) -> list[dict[str, Any]]:
        """By name, of each optimizer."""
        return [
            {name: n for name, n in _numbers_of(each).items() if not _same(first.get(name), n)}
            for each, first in self._first
        ]

    def load(self, numbers: Iterable[Mapping[str, Any]]) -> None:
        """Take over what ``changed`` returned here or at another rank."""
        for (optimizer, first), here, there in zip(
            self._first, self.changed(), numbers, strict=True
        ):
            for name in here.keys() - there.keys():
                if name in first:
                    setattr(optimizer, name, first[name])
                else:
                    delattr(optimizer, name)
            for name, number in there.items():
                setattr(optimizer, name, number)


def _numbers_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    held = vars(optimizer)
    return {name: held[name] for name in held.keys() - _OWN_TO_TORCH if type(held[name]) in NUMBERS}


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)  # NaN is NaN, 1 is not 1.0
