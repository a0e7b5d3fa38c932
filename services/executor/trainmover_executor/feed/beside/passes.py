"""Passes over a loader that the program begins by itself: ``iter(loader)``, a generator's loop.

A program with two loaders draws from the second with ``next``, and begins it anew when it ends;
another wraps a loader into a generator without an end. Both hold an iterator of torch's, which has
no place that could be told. So the script gets one that has. Loops over a loader that no step
interrupts, an evaluation's, and libraries get torch's own.
"""

from __future__ import annotations

import dis
import inspect
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

from torch.utils.data import DataLoader

from trainmover_executor.feed.beside.drawer import Drawer, Drawers, Drawn
from trainmover_executor.feed.feed import Feed
from trainmover_executor.feed.sources.map_style import has_map_style_data
from trainmover_executor.program.frames import is_called_by_script

__all__ = ["Pass", "carry_passes"]

_FOR: Final = "GET_ITER"
_CALLED: Final = ("PRECALL", "CALL")
_KEPT: Final = ("iter", "zip", "map", "filter", "__iter__")
"""Functions whose result stands in a variable, mostly."""


class Pass(Drawer):
    """One pass over a loader.

    Args:
        loader: The loader.
        drawers: Know whether a body runs.
    """

    def __init__(self, loader: DataLoader[Any], drawers: Drawers) -> None:
        super().__init__(Feed(loader, apart=True))
        begun = [each for each in drawers.begun if isinstance(each, Pass)]
        self._previous = next((each for each in reversed(begun) if each.reads(loader)), None)
        self._loader = loader
        self._drawers = drawers
        self._beginning = self._feed.position()
        drawers.add(self)

    def __len__(self) -> int:
        return len(self._loader)

    def reads(self, loader: object) -> bool:
        """Whether it is a pass over ``loader``."""
        return self._loader is loader

    def __next__(self) -> Any:
        # A loader of the program's own draws from it: the loop's position leads here, too.
        self.follows_loop = self.follows_loop or Feed.is_reading
        return super().__next__()

    @property
    def keeps(self) -> bool:
        """See ``Drawer``: an evaluation may be as long as it likes."""
        return self._drawers.in_body and not self.follows_loop

    def restart(self) -> None:
        """Go back to where it was begun."""
        self.seek(self._beginning)

    def become(self, other: Pass) -> None:
        """Go on as ``other``, in whose place it is: a generator's loop cannot be given another."""
        vars(self).update(vars(other))

    def replay(self, other: Pass) -> None:
        """Give what ``other`` would, and all that the body drew behind it, as one pass."""
        if other.again is self.again:
            return  # they were made one when the body was done again before
        place = other.position()
        drawn = [each for each in other.again if each.kept is not None]
        drawn += self.drawn_since(other)
        self.again.clear()
        self.again.extend(drawn)
        if drawn:
            self.again[0] = drawn[0]._replace(before=place)
        other.become(self)

    def drawn_since(self, other: Pass) -> list[Drawn]:
        """What the body drew behind ``other``: from this one, and all between them."""
        self.restart()
        last = self._previous
        before = [] if last is None or last is other else last.drawn_since(other)
        return [*before, *(each for each in self.again if each.kept is not None)]

    def forget(self) -> None:
        """See ``Drawer``."""
        super().forget()
        self._previous = None


def carry_passes(drawers: Drawers) -> None:
    """From now on the script has passes over torch's DataLoaders that can be carried.

    Args:
        drawers: Get to know them.
    """
    begin_pass = DataLoader.__iter__

    def begin(loader: DataLoader[Any]) -> Iterator[Any]:
        is_wanted = _is_wanted(sys._getframe(1), loader)  # noqa: SLF001 - the documented way
        return Pass(loader, drawers) if is_wanted else begin_pass(loader)

    DataLoader.__iter__ = begin  # type: ignore[method-assign, assignment]


def _is_wanted(caller: FrameType, loader: DataLoader[Any]) -> bool:
    if Feed.is_reading or threading.current_thread() is not threading.main_thread():
        return False
    if not _outlasts(caller.f_code, caller.f_lasti):
        return False
    if type(loader).__iter__ is DataLoader.__iter__:
        return is_called_by_script(caller)
    # A loader of a class of its own that keeps one iterator for all passes, a library's maybe.
    is_kept = caller.f_code.co_name == "__init__" or is_called_by_script(caller)
    return is_kept and has_map_style_data(loader)


@lru_cache(maxsize=4096)
def _outlasts(code: CodeType, at: int) -> bool:
    """Whether what an instruction begins may be drawn from in more than one step.

    A generator may be suspended in its loops. Elsewhere ``iter(loader)`` is kept, ``zip`` and the
    like, and what is handed to a generator's expression; a loop is not left before it ends.
    """
    if code.co_flags & inspect.CO_GENERATOR:
        return True
    instructions = list(dis.get_instructions(code))
    index = sum(each.offset <= at for each in instructions) - 1  # caches follow an instruction
    here = instructions[index]
    if here.opname == _FOR:
        inner = [each.argval for each in instructions[:index] if isinstance(each.argval, CodeType)]
        is_handed_on = instructions[index + 1].opname in _CALLED
        return is_handed_on and inner[-1].co_name == "<genexpr>"
    return any(_begins_call(each, here) for each in instructions[:index])


def _begins_call(each: dis.Instruction, call: dis.Instruction) -> bool:
    """Whether ``each`` loads such a function where the expression that ``call`` ends begins."""
    if each.argval not in _KEPT:
        return False
    one, other = each.positions, call.positions
    return (
        one is not None
        and other is not None
        and (one.lineno, one.col_offset) == (other.lineno, other.col_offset)
    )
