"""Data sets that are met among the program's variables: what is looked at in them, and what not.

The program may replace a transform, or set a number in one; examples are no state. What a data set
draws from generators of random numbers the feed sees to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from trainmover_executor.program.values.plain import CONTAINERS, list_of

__all__ = ["DataSets", "Met", "OfOthers", "bare_of_data", "held_by_data", "is_large", "is_resumed"]

_MOST_OBJECTS: Final = 256
"""So many are looked into: a data set may have one for each item."""
_LONG: Final = 128
_MOST_OF_AN_ARRAY: Final = 16 * 1024
_MOST_OF_A_CONTAINER: Final = 1024 * 1024
"""So many bytes one may have, and be looked at."""


class OfOthers:
    """An object of an installed package in a data set: nobody could make another one at a joiner.

    Attributes:
        of: It.
    """

    __slots__ = ("of",)

    def __init__(self, of: object) -> None:
        self.of = of


def bare_of_data(value: object) -> object:
    """``value``, or the object of a package that it stands for."""
    return value.of if isinstance(value, OfOthers) else value


@dataclass(frozen=True, slots=True)
class Met:
    """A data set, or what makes batches of its items.

    Attributes:
        value: It.
        path: By which it was found.
        put: Has another one be in its place.
        depth: How deep it is.
        by_name: Whether a variable or an attribute holds it, and not a loader alone.
    """

    value: Any
    path: str
    put: Callable[[Any], None]
    depth: int
    by_name: bool


class DataSets:
    """Those that one look has met: looked into last, since they may refer to all of the program.

    Attributes:
        now: The one that is looked into; None outside of them.
    """

    def __init__(self) -> None:
        self._met: list[Met] = []
        self._objects = 0
        self.now: Met | None = None

    def begin(self) -> None:
        """A look begins."""
        self._met.clear()
        self._objects = 0

    def meet(
        self, value: Any, path: str, put: Callable[[Any], None], depth: int, *, by_name: bool
    ) -> None:
        """A data set was found; see ``Met``."""
        self._met.append(Met(value, path, put, depth, by_name))

    def meet_in(
        self, loader: DataLoader[Any], path: str, put: Callable[[str, Any], None], depth: int
    ) -> None:
        """What gives the items of ``loader``, and what makes batches of them."""
        self.meet(loader.dataset, f"{path}.dataset", lambda _: None, depth, by_name=False)
        collate = f"{path}.collate_fn"
        self.meet(
            loader.collate_fn,
            collate,
            lambda value: put("collate_fn", value),
            depth,
            by_name=False,
        )

    def met(self) -> Iterator[Met]:
        """One after the other; the one that is given is ``now``."""
        try:
            for each in self._met:  # a data set may hold a loader, which is met meanwhile
                self.now = each
                yield each
        finally:
            self.now = None

    def is_one_too_many(self, *, times: int) -> bool:
        """Count an object in the data; whether there were too many before.

        Args:
            times: So many times as many as usual may be.
        """
        self._objects += 1
        return self._objects > times * _MOST_OBJECTS


def held_by_data(value: Any) -> list[tuple[str, Any]]:
    """(name, value) of what a data set of torch reads: one that this is a part of, or several."""
    held = vars(value)
    return [(name, held[name]) for name in ("dataset", "datasets") if name in held]


def is_resumed(dataset: object) -> bool:
    """Whether a data set has a place of its own, to which the feed brings it."""
    return isinstance(dataset, IterableDataset) or hasattr(dataset, "state_dict")


def is_large(value: Any) -> bool:
    """Whether something in a data set is some of the examples, most likely."""
    if isinstance(value, np.ndarray):
        return value.nbytes > _MOST_OF_AN_ARRAY
    if type(value) not in CONTAINERS or len(value) <= _LONG:
        return False
    first = next(iter(list_of(value)), None)
    nbytes = first.nbytes if isinstance(first, np.ndarray | torch.Tensor) else 0
    return len(value) * nbytes > _MOST_OF_A_CONTAINER
