"""Iterators of loops that a generator stands in: how far they are, and how they are moved there.

A generator keeps them to itself: they can be moved on, and some of them back, but not replaced.
"""

from __future__ import annotations

import abc
import ast
import collections
import itertools
import operator
from collections.abc import Iterator
from typing import Any, Final, Protocol, runtime_checkable

from trainmover_executor.program.values.plain import Positioned

__all__ = ["Counted", "Resumable", "counted"]

_SIZED: Final[tuple[type, ...]] = (type(iter([])), type(iter(())), type(iter(range(0))))
"""Iterators that tell how much is left."""


@runtime_checkable
class Resumable(Protocol):
    """One that can stand in another's place: a pass over a loader, in that of the pass before."""

    def become(self, other: Any) -> None:
        """Go on as ``other``."""

    def replay(self, other: Any) -> None:
        """Give what ``other`` would, and go on behind that."""

    def restart(self) -> None:
        """Go back to the beginning."""


class Counted(Positioned):
    """An iterator that only counts.

    Args:
        iterator: The iterator.

    Attributes:
        is_ahead: It is beyond the place that it was to go to, and cannot go back.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.is_ahead = False
        self._iterator = iterator

    def hand_on(self, other: Counted) -> None:
        """Have the iterator of ``other``, which took the place of this one's, be as far."""
        if other._iterator is not self._iterator:
            other.seek(self.position())
            self.is_ahead = other.is_ahead

    def _move_on(self, by: int) -> None:
        collections.deque(itertools.islice(self._iterator, by), maxlen=0)

    @abc.abstractmethod
    def seek(self, position: dict[str, Any]) -> None:
        """See ``Positioned``; where it cannot go back, it ``is_ahead``."""


class _Left(Counted):
    """Of a list or a range, by how much of it is left."""

    def position(self) -> dict[str, Any]:
        """See ``Positioned``."""
        return {"left": operator.length_hint(self._iterator)}

    def seek(self, position: dict[str, Any]) -> None:
        """See ``Counted``."""
        gap = operator.length_hint(self._iterator) - position["left"]
        if gap >= 0:
            self._move_on(gap)
            return
        reduced: Any = self._iterator.__reduce__()
        _, _, *index = reduced
        if index and index[0] is not None:
            self._iterator.__setstate__(index[0] + gap)  # type: ignore[attr-defined] # see pickle
        else:
            self.is_ahead = True  # a range's forgets where it began, since Python 3.12


class _Count(Counted):
    """``itertools.count``, by what comes next."""

    def position(self) -> dict[str, Any]:
        """See ``Positioned``."""
        return {"next": repr(self._iterator)}

    def seek(self, position: dict[str, Any]) -> None:
        """See ``Counted``."""
        (wanted, by), (here, _) = _numbers(position["next"]), _numbers(repr(self._iterator))
        gap = (wanted - here) / by
        self.is_ahead = gap < 0 or gap != int(gap)
        if not self.is_ahead:
            self._move_on(int(gap))


def _numbers(count: str) -> tuple[float, float]:
    given = ast.literal_eval(count.removeprefix("count"))
    return given if isinstance(given, tuple) else (given, 1)


def counted(iterator: Iterator[Any]) -> Counted | None:
    """``iterator`` as one whose place can be told; None for one that does more than count."""
    if type(iterator) in _SIZED:
        return _Left(iterator)
    return _Count(iterator) if type(iterator) is itertools.count else None
