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
from trainmover_executor.program.frames import write_locals

__all__ = ["bring_along", "generators_around", "is_bar"]

_COUNTING: Final = (enumerate, itertools.islice)
_REFUSED: Final = (zip, map, filter, itertools.chain, itertools.takewhile, itertools.zip_longest)
_WRAPPERS: Final = frozenset({*_COUNTING, *_REFUSED})


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
    for each, name in _bars(frame, around):
        write_locals(each, {name: each.f_locals[name] + by})
    wrappers = _Wrappers()
    direct = wrappers.counting(steps)
    farther = [
        each for giver in wrappers.handing_on(frame, around) for each in wrappers.counting(giver)
    ]
    for each in farther if by > 0 else [*farther, *direct]:
        _move(each, by)
    if by > 0 and direct:
        empty(lambda: _draw(direct[-1], by))


def generators_around(frame: FrameType | None) -> frozenset[CodeType]:
    """The code of the generators in which a body runs that begins in ``frame``."""
    found = set()
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            found.add(frame.f_code)
        frame = frame.f_back
    return frozenset(found)


def is_bar(data: object) -> bool:
    """Whether ``data`` is a progress bar of tqdm, of whatever frontend, around something."""
    return any(kind.__module__ == "tqdm.std" for kind in type(data).__mro__)


def _bars(frame: FrameType | None, around: Collection[CodeType]) -> Iterator[tuple[FrameType, str]]:
    """Progress bars of tqdm around the steps, and the local variable in which each counts."""
    while frame is not None and frame.f_code not in around:
        if frame.f_code.co_flags & inspect.CO_GENERATOR and frame.f_code.co_name == "__iter__":
            counts = isinstance(frame.f_locals.get("n"), int)  # not where the bar is disabled
            if counts and is_bar(frame.f_locals.get("self")):
                yield frame, "n"
        frame = frame.f_back


class _Wrappers:
    """All wrappers of the process, by what they hold: found in one look at all objects.

    What holds a generator that runs is found from its outside: it does not tell what it holds.
    """

    def __init__(self) -> None:
        self._holding: dict[int, Any] = {}
        self._running: dict[int, Any] = {}
        for wrapper in gc.get_objects():
            if type(wrapper) in _WRAPPERS:
                for inner in _held_by(wrapper):
                    self._holding[id(inner)] = wrapper
                    if type(inner) is types.GeneratorType and inner.gi_running:
                        self._running[id(inner.gi_frame)] = inner

    def counting(self, inner: Any) -> list[Any]:
        """What counts the items of ``inner``, from the inside outwards.

        Raises:
            ConfigError: A wrapper among them has a place of its own.
        """
        found: list[Any] = []
        while (wrapper := self._holding.get(id(inner))) is not None:
            if type(wrapper) in _REFUSED:
                raise ConfigError(
                    f"session.steps() is wrapped in {type(wrapper).__name__}(), whose place a "
                    "joiner cannot take over: use enumerate(), or count with step.index"
                )
            found.append(wrapper)
            inner = wrapper
        return found

    def handing_on(self, frame: FrameType | None, around: Collection[CodeType]) -> Iterator[Any]:
        """What hands the steps on and may be wrapped itself, from the inside outwards.

        Args:
            frame: The innermost one that asks for a step.
            around: A generator of these runs the bodies itself, and gives something else.
        """
        while frame is not None and frame.f_code not in around:
            code = frame.f_code
            if code.co_flags & inspect.CO_GENERATOR:
                if (generator := self._running.get(id(frame))) is not None:
                    yield generator
            elif code.co_name == "__next__" and code.co_argcount:
                yield frame.f_locals.get(code.co_varnames[0])
            else:
                return
            frame = frame.f_back


def _held_by(wrapper: Any) -> Iterator[Any]:
    """What it draws from, by itself or in a tuple as ``zip`` and ``map`` do.

    An ``enumerate`` that has given nothing has a tuple with None in it, for its first item.
    """
    for each in gc.get_referents(wrapper):
        for inner in each if type(each) is tuple else (each,):
            if inner is not None:
                yield inner


def _draw(wrapper: Iterator[Any], count: int) -> None:
    for _ in range(count):
        next(wrapper)


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
