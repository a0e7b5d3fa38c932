"""Modules of the program that hold what they held at first: they are not gone through again.

A repository brings hundreds of modules along, with constants, tables and classes that never change.
To go through all of them at each look takes longer than many a step. What such a module holds is
compared object by object instead, which takes some microseconds.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import torch

from trainmover_executor.program.looking.parts import (
    is_mere_code,
    is_own,
    is_passed_over,
    slots_of,
)
from trainmover_executor.program.values.kinds.named import CODE
from trainmover_executor.program.values.plain import PLAIN, is_changeable, is_plain

__all__ = ["StillModule"]

_NEVER_CHANGES: Final = PLAIN | {torch.device, torch.dtype, types.ModuleType}
_MAY_CHANGE: Final = (
    torch.Tensor,
    np.ndarray,
    functools.partial,
    types.MethodType,
    types.BuiltinMethodType,
    Iterator,
)
_MOST_HOLDERS: Final = 1000
_MOST_ITEMS: Final = 16_384


class StillModule:
    """What a module of the program held when it was met.

    Args:
        names: The module's variables.

    Attributes:
        is_simple: Whether all of it can be compared: constants, functions, classes, containers and
            objects made of them.
        holders: Ids of all that holds its variables.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.name: str = names["__name__"]
        self.is_simple = True
        self._names = names
        self._held: dict[int, tuple[Any, dict[Any, Any] | tuple[Any, ...]]] = {}
        self._objects: set[int] = set()
        self._views: list[Collection[Any]] = []
        self._enter(names)
        self._lengths = [*map(len, self._views)]
        self._items = [*chain.from_iterable(self._views)]
        self.holders = frozenset(self._held.keys() | self._objects)

    @property
    def is_still(self) -> bool:
        """Whether it holds the same objects as when it was met."""
        try:
            return (
                self.is_simple
                and [*map(len, self._views)] == self._lengths
                and all(map(operator.is_, chain.from_iterable(self._views), self._items))
            )
        except RuntimeError:  # a thread of the program is changing it
            return False

    def put_back(self) -> None:
        """Have it hold what it held when it was met."""
        if not self.is_still:
            for holder, then in self._held.values():
                if not _holds(holder, then):  # a thread may be reading the others
                    self._fill(holder, then)

    def _fill(self, holder: Any, then: Any) -> None:
        if isinstance(holder, type):
            for name, value in then.items():
                if vars(holder).get(name) is not value:
                    setattr(holder, name, value)
        elif isinstance(holder, list):
            holder[:] = then
        else:
            if holder is not self._names:  # names that a module was given since are left to it
                holder.clear()
            holder.update(then)

    def _enter(self, holder: Any) -> None:
        """Note what a dictionary, list, set or class holds, and all that this holds."""
        if id(holder) in self._held or not self.is_simple:
            return
        live = vars(holder) if isinstance(holder, type) else holder
        if len(self._held) >= _MOST_HOLDERS or len(live) > _MOST_ITEMS:
            self.is_simple = False
            return
        is_space = holder is self._names or isinstance(holder, type)
        if isinstance(live, list | set):
            self._held[id(holder)] = holder, tuple(live)
            self._views.append(live)
        else:
            self._held[id(holder)] = holder, dict(live)
            self._views.append(live.values())
            if not is_space:  # where nobody gives a value another name
                self._views.append(live.keys())
        for value in _looked_at(live, hides=is_space):
            if holder is not self._names or not self._is_imported(value):
                self._look(value)

    def _is_imported(self, value: Any) -> bool:
        return isinstance(value, CODE) and value.__module__ != self.name

    def _look(self, value: Any) -> None:
        kind = type(value)
        if kind in _NEVER_CHANGES or is_mere_code(value):
            return
        if isinstance(value, type):
            self._enter_class(value)
        elif isinstance(value, CODE):
            # A function with variables of its own; builtin ones have none.
            self.is_simple = self.is_simple and not isinstance(value, types.FunctionType)
        elif isinstance(value, tuple | frozenset):
            for each in value:
                self._look(each)
        elif kind in {dict, list, set}:
            self._enter(value)
        elif isinstance(value, _MAY_CHANGE) or is_changeable(kind) or is_passed_over(kind):  # type: ignore[arg-type] # classes are hashable
            self.is_simple = False
        elif is_own(kind):  # type: ignore[arg-type] # as above
            self._enter_object(value)
        elif is_plain(value):
            self.is_simple = self.is_simple and _is_immutable(value)

    def _enter_class(self, value: Any) -> None:
        """Of the program's, and those that it is derived from."""
        if is_own(value):
            self._enter(value)
            for base in value.__bases__:
                self._enter_class(base)

    def _enter_object(self, value: Any) -> None:
        kind: Any = type(value)
        if slots_of(kind) or not hasattr(value, "__dict__"):
            self.is_simple = False
        else:
            self._objects.add(id(value))
            self._enter(vars(value))
            self._enter_class(kind)


def _holds(holder: Any, then: Any) -> bool:
    live = vars(holder) if isinstance(holder, type) else holder
    if isinstance(live, list | set):
        return len(live) == len(then) and all(map(operator.is_, live, then))
    pairs = (chain(each.keys(), each.values()) for each in (live, then))
    return len(live) == len(then) and all(map(operator.is_, *pairs))


def _looked_at(live: Any, *, hides: bool) -> list[Any]:
    """Of what a holder holds that which may be a variable, or hold some."""
    if isinstance(live, list | set):
        return [*live]
    return [value for name, value in [*live.items()] if not (hides and name.startswith("__"))]


def _is_immutable(value: Any) -> bool:
    """Of plain objects that are no containers: whether nobody can change this one."""
    try:
        hash(value)
    except TypeError:
        return False
    return not isinstance(value, Iterator)
