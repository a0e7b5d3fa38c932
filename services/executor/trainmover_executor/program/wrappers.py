"""Iterators around ``session.steps``, such as ``enumerate``: brought to where the job's stand.

A joiner was asked for another number of steps than the other ranks, so the index that ``enumerate``
counts, and what ``itertools.islice`` has left, differ from theirs. Counts that are too low grow by
drawing what is missing through the wrapper.

Generators and iterators of the program's own or of a library may hand the steps on: a progress bar,
a logger. They are in the middle of that, and nothing can be drawn through them. So what counts
their items is set.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import itertools
import types
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType
from typing import Any, Final

from trainmover.errors import ConfigError

__all__ = ["bring_along", "generators_around"]

_COUNTING: Final = (enumerate, itertools.islice)
_REFUSED: Final = (zip, map, filter, itertools.chain, itertools.takewhile, itertools.zip_longest)


def bring_along(
    steps: Iterator[Any],
    *,
    by: int,
    empty: Callable[[Callable[[], None]], None],
    frame: FrameType | None = None,
    around: Collection[CodeType] = (),
) -> None:
    """Have the wrappers of ``steps`` count ``by`` items more, or fewer.

    To be called while the outermost of them asks ``steps`` for an item.

    Args:
        steps: The iterator over steps that the program wraps.
        by: Steps that the job drew more than this process; negative for fewer.
        empty: Runs its argument while ``steps`` gives empty items to whoever asks.
        frame: The innermost one that asks.
        around: Code of generators in which bodies run, see ``generators_around``.

    Raises:
        ConfigError: The count of a wrapper cannot be changed.
    """
    if not by:
        return
    found = _counting(steps)
    outermost = found[0] if found else steps
    _refuse(outermost)
    for giver in _handing_on(frame, around):
        counting = _counting(giver)
        _refuse(counting[0] if counting else giver)
        for each in counting:
            _move(each, by)
    if by < 0:
        for each in found:
            _move(each, by)
    elif found:
        empty(lambda: _draw(found[0], by))


def generators_around(frame: FrameType | None) -> frozenset[CodeType]:
    """The code of the generators in which a body runs that begins in ``frame``."""
    found = set()
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            found.add(frame.f_code)
        frame = frame.f_back
    return frozenset(found)


def _draw(wrapper: Iterator[Any], count: int) -> None:
    for _ in range(count):
        next(wrapper)


def _handing_on(frame: FrameType | None, around: Collection[CodeType]) -> Iterator[Any]:
    """What hands the steps on and is wrapped itself, from the inside outwards.

    Args:
        frame: The innermost one that asks for a step.
        around: A generator of these runs the bodies itself, and gives something else.
    """
    wrapped: dict[int, Any] | None = None
    while frame is not None and frame.f_code not in around:
        code = frame.f_code
        if code.co_flags & inspect.CO_GENERATOR:
            wrapped = _wrapped_generators() if wrapped is None else wrapped
            if (generator := wrapped.get(id(frame))) is not None:
                yield generator
        elif code.co_name == "__next__" and code.co_argcount:
            yield frame.f_locals.get(code.co_varnames[0])
        else:
            return
        frame = frame.f_back


def _wrapped_generators() -> dict[int, Any]:
    """Generators that are inside of a wrapper, by ``id`` of their frames.

    A generator that runs does not tell what it holds, so they are found from the outside.
    """
    found = {}
    for each in gc.get_objects():
        if type(each) in {*_COUNTING, *_REFUSED}:
            for inner in gc.get_referents(each):
                for one in gc.get_referents(inner) if type(inner) is tuple else (inner,):
                    if type(one) is types.GeneratorType and one.gi_running:
                        found[id(one.gi_frame)] = one
    return found


def _refuse(outermost: Any) -> None:
    for each in _holders(outermost):
        if type(each) in _REFUSED:
            raise ConfigError(
                f"session.steps() is wrapped in {type(each).__name__}(), whose place a joiner "
                "cannot take over: use enumerate(), or count with step.index"
            )


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


def _move(wrapper: Any, by: int) -> None:
    """Change the count of ``enumerate``, which it keeps as the first field behind its header.

    Raises:
        ConfigError: It is not there, or the wrapper is another one.
    """
    if type(wrapper) is enumerate:
        field = ctypes.c_ssize_t.from_address(id(wrapper) + object.__basicsize__)
        if field.value == wrapper.__reduce__()[1][1]:
            field.value += by
            return
    raise ConfigError(
        f"a joiner cannot take over the place of {type(wrapper).__name__}() around "
        "session.steps(), at the beginning of a loop or where something else hands the steps on: "
        "use max_steps="
    )
