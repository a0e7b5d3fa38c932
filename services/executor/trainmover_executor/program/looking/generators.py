"""Generators of the program's own, ``zip`` and the like: where they stand, and what they hold.

A loader is wrapped into a generator without an end, a schedule yields the next rate. Such a
generator is looked at as a running function is: by its variables, the iterators of the loops that
it stands in, and the place of its ``yield``. One in another process can be brought there: it is
begun if it was not, but it cannot be moved from one ``yield`` to another.
"""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from trainmover.errors import ProtocolError
from trainmover_executor.program.frames import is_program, write_locals
from trainmover_executor.program.liveness import needed
from trainmover_executor.program.looking.loops import Counted, Resumable, counted
from trainmover_executor.program.values.plain import Positioned
from trainmover_executor.state.rng import capture_rng, restore_rng

__all__ = ["Call", "is_carried", "move_to", "parts_of_generator", "place_of"]

_CURE: Final = (
    "let it have a single 'yield' in a loop over the loader, in 'while True', or draw from "
    "session.cycle(loader)"
)


_DECORATED_BY_TORCH: Final = "torch.utils._contextlib"
"""A generator function under ``@torch.no_grad()`` makes one that hands on what the program's
yields: nothing but that is in its variables."""

_PLACELESS: Final[dict[type[Any], int]] = {zip: 0, map: 1, filter: 1}
"""What has no place but that of the iterators that it holds, and where these begin in its parts."""


def is_carried(value: Any) -> bool:
    """Whether ``value`` is a generator of the program's, or one of ``_PLACELESS``, and all told."""
    if type(value) is types.GeneratorType:
        frame = value.gi_frame
        if frame is None:
            return True
        name = frame.f_globals.get("__name__", "")
        is_known = is_program(name, frame.f_code.co_filename) or name == _DECORATED_BY_TORCH
        if value.gi_running or not is_known:
            return False
    elif type(value) not in _PLACELESS:
        return False
    return all(
        isinstance(each, Positioned) or counted(each) is not None or is_carried(each)
        for each in _loops_of(value)
    )


def _loops_of(holder: Any) -> list[Iterator[Any]]:
    """The iterators of the loops that a generator stands in, or of a ``zip``; what it delegates to.

    A generator has them on the stack of its frame, which only the garbage collector lists.
    """
    if type(holder) in _PLACELESS:
        _, held = holder.__reduce__()
        return [*held[_PLACELESS[type(holder)] :]]
    frame = holder.gi_frame
    if frame is None:
        return []
    needs = needed(frame.f_locals, frame).items()
    named = {id(each) for name, each in needs if name.isidentifier()}
    found = {id(each): each for each in gc.get_referents(holder) if isinstance(each, Iterator)}
    return [each for key, each in found.items() if key not in named]


def parts_of_generator(holder: Any) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    """(name, value, how to set it) of what a suspended one holds, or one of ``_PLACELESS``."""
    writing = _Writing(holder)
    frame = getattr(holder, "gi_frame", None)
    if frame is not None:
        for name, value in needed(frame.f_locals, frame).items():
            if name.isidentifier():
                yield name, value, partial(writing.set_variable, name)
    for at, each in enumerate(_loops_of(holder)):
        part = counted(each) or each
        yield f"({at})", part, partial(writing.set_loop, part)


class _Writing:
    """Has a generator hold something else: first its variables, then its loops from the outermost.

    A step that is done again may have ended a pass over a loader, and begun the next in the same
    loop. Then the iterator of the next goes on as that of the last one. Where a loop around it only
    counts on, it gives again what both gave in that step, and the program does not notice.
    """

    def __init__(self, holder: Any) -> None:
        self._holder = holder
        self._wrote = False
        self._is_ahead = False

    def set_variable(self, name: str, value: Any) -> None:
        self._wrote = True
        write_locals(self._holder.gi_frame, {name: value})

    def set_loop(self, here: Any, wanted: Any) -> None:
        if isinstance(wanted, Counted):
            wanted.hand_on(here)
            self._is_ahead = self._is_ahead or wanted.is_ahead
            # The variables may be those of a count that has gone on; a joiner has nothing to give.
            if wanted.is_ahead and (self._wrote or wanted is here):
                raise ProtocolError(
                    f"a loop in the generator {self._holder.__qualname__} is ahead of where it has "
                    f"to go back to: {_CURE}"
                )
        elif wanted is not here and isinstance(here, Resumable):
            if self._is_ahead:
                here.replay(wanted)
            else:
                here.become(wanted)


def place_of(generator: types.GeneratorType[Any, Any, Any]) -> int | None:
    """The place in its code of the ``yield`` at which it stands; None where it is at none."""
    frame = generator.gi_frame
    is_begun = frame is not None and generator.gi_suspended
    return frame.f_lasti if is_begun and frame is not None else None


def move_to(generator: types.GeneratorType[Any, Any, Any], at: int | None, *, name: str) -> None:
    """Have it stand where ``place_of`` returned ``at``, in this or another process.

    Raises:
        ProtocolError: It cannot be moved there.
    """
    if place_of(generator) == at:
        return
    if at is None:  # what it does in front of its first ``yield``, it has done already
        for each in _loops_of(generator):
            if isinstance(each, Resumable):
                each.restart()
        return
    if place_of(generator) is None and generator.gi_frame is not None:
        rng = capture_rng()
        next(generator)
        restore_rng(rng)
    if place_of(generator) != at:
        raise ProtocolError(
            f"the generator {name} stands at another 'yield', or has ended, and cannot be brought "
            f"to where it was: {_CURE}"
        )


class Call:
    """What a generator that was not begun yet was made with.

    Args:
        generator: The generator.
    """

    def __init__(self, generator: types.GeneratorType[Any, Any, Any]) -> None:
        frame = generator.gi_frame
        self._given = {} if frame is None else {**frame.f_locals}
        self._places = [
            (each, each.position()) for each in self._given.values() if isinstance(each, Positioned)
        ]

    def again(self, generator: types.GeneratorType[Any, Any, Any]) -> Any:
        """Another one, not begun; ``generator`` itself, begun since, where it has ended."""
        code = generator.gi_code
        held = gc.get_referents(generator)
        functions = [each for each in held if isinstance(each, types.FunctionType)]
        made_by = next((each for each in functions if each.__code__ is code), None)
        if made_by is None:
            return generator
        for each, position in self._places:
            each.seek(position)
        names, given = [*code.co_varnames], self._given
        by_name = code.co_argcount + code.co_kwonlyargcount
        positional = [given[name] for name in names[: code.co_argcount]]
        named = {name: given[name] for name in names[code.co_argcount : by_name]}
        if code.co_flags & inspect.CO_VARARGS:
            positional += given[names[by_name]]
            by_name += 1
        if code.co_flags & inspect.CO_VARKEYWORDS:
            named |= given[names[by_name]]
        return made_by(*positional, **named)
