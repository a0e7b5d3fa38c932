"""Iterators around ``session.steps``, such as ``enumerate``: brought to where the job's stand.

A joiner was asked for another number of steps than the other ranks, so the index that ``enumerate``
counts, and what ``itertools.islice`` has left, differ from theirs. Counts that are too low grow by
drawing what is missing through the wrapper.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from trainmover.errors import ConfigError

__all__ = ["bring_along"]

_COUNTING: Final = (enumerate, itertools.islice)
_REFUSED: Final = (zip, map, filter, itertools.chain, itertools.takewhile, itertools.zip_longest)


def bring_along(
    steps: Iterator[Any], *, by: int, empty: Callable[[Callable[[], None]], None]
) -> None:
    """Have the wrappers of ``steps`` count ``by`` items more, or fewer.

    To be called while the outermost of them asks ``steps`` for an item.

    Args:
        steps: The iterator over steps that the program wraps.
        by: Steps that the job drew more than this process; negative for fewer.
        empty: Runs its argument while ``steps`` gives empty items to whoever asks.

    Raises:
        ConfigError: The count of a wrapper cannot be changed.
    """
    if not by:
        return
    found = _counting(steps)
    outermost = found[0] if found else steps
    for each in _holders(outermost):
        if type(each) in _REFUSED:
            raise ConfigError(
                f"session.steps() is wrapped in {type(each).__name__}(), whose place a joiner "
                "cannot take over: use enumerate(), or count with step.index"
            )
    if not found:
        return
    if by < 0:
        for each in found:
            _take_back(each, -by)
        return

    def draw() -> None:
        for _ in range(by):
            next(found[0])

    empty(draw)


def _holders(inner: Any) -> Iterator[Any]:
    """What refers to ``inner``, by itself or in a tuple as ``zip`` and ``map`` do."""
    for each in gc.get_referrers(inner):
        yield each
        if type(each) is tuple:
            yield from gc.get_referrers(each)


def _counting(steps: Iterator[Any]) -> list[Iterator[Any]]:
    """What counts the items of ``steps``, outermost first."""
    found: list[Iterator[Any]] = []
    inner: Any = steps
    while True:
        outer = next((o for o in gc.get_referrers(inner) if type(o) in _COUNTING), None)
        if outer is None:
            return found
        found.insert(0, outer)
        inner = outer


def _take_back(wrapper: Any, count: int) -> None:
    """Lower the count of ``enumerate``, which it keeps as the first field behind its header.

    Raises:
        ConfigError: It is not there, or the wrapper is another one.
    """
    if type(wrapper) is enumerate:
        field = ctypes.c_ssize_t.from_address(id(wrapper) + object.__basicsize__)
        if field.value == wrapper.__reduce__()[1][1]:
            field.value -= count
            return
    raise ConfigError(
        f"a joiner cannot take over the place of {type(wrapper).__name__}() around "
        "session.steps() at the beginning of a loop: use max_steps="
    )
