"""What a value of the program consists of: members of objects and containers, closures."""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import inspect
import queue
import re
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import lru_cache, partial
from multiprocessing.sharedctypes import Synchronized
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler

from trainmover_executor.program.frames import is_of_script, is_program
from trainmover_executor.program.looking.generators import is_carried, parts_of_generator
from trainmover_executor.program.values.plain import (
    CONTAINERS,
    is_changeable,
    is_generator,
    is_plain,
)

__all__ = [
    "BAGS",
    "MOST_MEMBERS",
    "NO_PATHS",
    "SCALARS",
    "Part",
    "Paths",
    "Seen",
    "cells_of",
    "is_looked_into",
    "is_made_by_script",
    "is_mere_code",
    "is_name",
    "is_own",
    "is_passed_over",
    "is_threaded",
    "members_of",
    "name_in",
    "nowhere",
    "parts_of",
    "set_attribute",
    "slots_of",
    "wraps",
]

BAGS: Final = (types.SimpleNamespace, argparse.Namespace)
_WRAPPERS: Final = frozenset(
    {collections.UserDict, collections.UserList, collections.UserString, collections.ChainMap}
)
"""Classes of Python that hold a container in an attribute."""
SCALARS: Final = frozenset({type(None), bool, int, float, complex})
_NOT_LOOKED_AT: Final = (
    torch.Tensor,
    nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
    DataLoader,
    Sampler,
    types.ModuleType,
)
"""Known to the session, part of the data, or nobody's."""

Part = tuple[str, Any, Callable[[Any], None]]


@lru_cache(maxsize=4096)
def is_passed_over(kind: type[Any]) -> bool:
    """Whether objects of a class are known to the session, part of the data, or code."""
    return issubclass(kind, _NOT_LOOKED_AT) and not issubclass(kind, torch.Tensor)


_KEPT_BY_TORCH: Final = "torch.distributed.algorithms."
"""Objects that a program makes and torch counts in: states of communication hooks, averagers."""


@lru_cache(maxsize=4096)
def is_own(kind: type[Any]) -> bool:
    """Whether a class is the program's own, or a bag of values."""
    if issubclass(kind, BAGS) or kind in _WRAPPERS or kind.__module__.startswith(_KEPT_BY_TORCH):
        return True
    module = inspect.getmodule(kind)
    return is_program(kind.__module__, getattr(module, "__file__", None) or "<frozen")


def is_made_by_script(kind: type[Any]) -> bool:
    """Whether a class is of the script's modules, or a bag of values."""
    return kind in BAGS or is_of_script(kind.__module__)


@lru_cache(maxsize=4096)
def wraps(kind: type[Any], inside: type[Any]) -> bool:
    """Whether two classes are derived from the same one, apart from those of Python."""
    return any(is_own(each) and each in inside.__mro__ for each in kind.__mro__)


def name_in(root: str, path: str) -> str:
    """The name by which a variable is held in ``root`` itself; empty for what is in another one."""
    holder, _, name = path.rpartition(".")
    return name if holder == root and name.isidentifier() else ""


def is_name(path: str) -> bool:
    """Whether a variable is a name of a function or of a script, and no part of another one."""
    return path.count(".") == 1 and not path.endswith("]")


def parts_of(value: Any, *, is_loader: bool = False) -> Iterable[Part] | None:
    """(name, value, how to set it) of what ``value`` holds; None for what is not the program's.

    Args:
        value: What holds it.
        is_loader: Steps are made of it: what it gives is no state.
    """
    return _parts_of_loader(value) if is_loader else _parts_of(value)


def _parts_of(value: Any) -> Iterable[Part] | None:
    if isinstance(value, types.FunctionType):
        # Decorators give a wrapper the name of the module of what it wraps.
        mine = is_program(value.__globals__.get("__name__", ""), value.__code__.co_filename)
        return _parts_of_function(value) if mine else ()
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        return [("self", value.__self__, nowhere)]
    if isinstance(value, functools.partial | Synchronized):
        return _parts_of_wrapper(value)
    if isinstance(value, type):
        return _with_classes(value, value.__bases__) if is_own(value) else ()
    kind = type(value)
    if not is_own(kind):  # type: ignore[arg-type]
        return parts_of_generator(value) if is_carried(value) else None
    slots = slots_of(kind)  # type: ignore[arg-type] # classes are hashable
    return _with_classes(value, ()) if slots or hasattr(value, "__dict__") else None


_THREADED: Final = (threading.Thread, queue.Queue, queue.SimpleQueue, Executor)
MOST_MEMBERS: Final = 128
"""A container of more is not looked into."""


def is_looked_into(loader: object) -> bool:
    """Whether what ``loader`` keeps for attributes is looked at beside what it gives."""
    kind = type(loader)
    apart = isinstance(loader, Iterator) or hasattr(loader, "state_dict")  # has a place of its own
    if apart or kind in CONTAINERS:
        return False
    return is_own(kind) and not is_passed_over(kind)  # type: ignore[arg-type] # as above


def _parts_of_loader(loader: Any) -> list[Part]:
    """Counts and weights of a loader of the program's own; not the data that it gives."""
    if is_threaded(loader):
        return []  # a thread changes them at any time: they cannot be put back for a step's redo
    return [part for part in members_of(loader) if _is_kept_by_loader(part[1])]


def is_threaded(loader: Any) -> bool:
    """Whether ``loader`` has a thread of its own, or a queue for one."""
    held = getattr(loader, "__dict__", {}).values()
    return any(isinstance(each, _THREADED) for each in (loader, *held))


def _is_kept_by_loader(value: Any) -> bool:
    if is_generator(value):
        return False  # the feed sets it to where the pass has it
    kind = type(value)
    if kind in CONTAINERS:
        return is_plain(value) or len(value) <= MOST_MEMBERS
    if is_plain(value) or isinstance(value, DataLoader | Sampler):
        return True
    return is_own(kind)  # type: ignore[arg-type] # as above


def _with_classes(value: Any, bases: Iterable[Any]) -> list[Part]:
    """Its attributes, and classes: a program may have no other name for them."""
    classes = [each for each in (type(value), *bases) if each not in BAGS and is_own(each)]
    return [*members_of(value), *((each.__name__, each, nowhere) for each in classes)]


@lru_cache(maxsize=4096)
def slots_of(kind: type[Any]) -> tuple[str, ...]:
    """Names of attributes that objects of a class hold outside of their ``__dict__``."""
    found: list[str] = []
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in found if not name.startswith("__"))


def members_of(value: Any) -> list[Part]:
    """(name, value, how to set it) of the attributes of ``value``."""
    is_stream = isinstance(value, IterableDataset)  # what it draws and streams belongs to the data
    held = dict(getattr(value, "__dict__", {}))
    if not isinstance(value, type):
        names = slots_of(type(value))  # type: ignore[arg-type] # classes are hashable
        held |= {name: getattr(value, name) for name in names if hasattr(value, name)}
    return [
        (name, each, partial(set_attribute, value, name))
        for name, each in held.items()
        if not (is_stream and type(each) not in SCALARS) and not name.startswith("__")
    ]


def set_attribute(holder: Any, name: str, value: Any) -> None:
    """Set an attribute of any object, also of one that is frozen."""
    try:
        setattr(holder, name, value)
    except (AttributeError, TypeError, ValueError):  # frozen, and another field cannot be carried
        object.__setattr__(holder, name, value)


def is_mere_code(value: Any, *, objects: bool = False) -> bool:
    """Whether ``value`` is a function that holds nothing, as most functions and methods are.

    Args:
        value: A function, or not.
        objects: Whether objects that are defaults count, too; many have one that is a setting.
    """
    if type(value) is not types.FunctionType or value.__closure__ or value.__dict__:
        return False
    if not (value.__defaults__ or value.__kwdefaults__):
        return True
    defaults = _defaults_of(value)
    return not any(is_changeable(type(e)) or (objects and not is_plain(e)) for e in defaults)


def _defaults_of(function: types.FunctionType) -> list[Any]:
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _parts_of_wrapper(value: functools.partial[Any] | Synchronized[Any]) -> list[Part]:
    if isinstance(value, Synchronized):  # multiprocessing.Value; who died may have its lock
        held = value.get_obj()
        return [("value", held.value, partial(setattr, held, "value"))]
    given = [*value.args, *value.keywords.values()]
    return [("func", value.func, nowhere), *_changeable("args", given)]


def _changeable(name: str, given: Iterable[Any]) -> list[Part]:
    """Of what a function was given, all that is not as it is for good."""
    return [
        (f"{name}[{at}]", each, nowhere)
        for at, each in enumerate(given)
        if is_changeable(type(each)) or not is_plain(each)
    ]


def _parts_of_function(function: types.FunctionType) -> Iterator[Part]:
    """Attributes of a function, lists for its defaults, variables around it that it uses."""
    yield from members_of(function)
    yield from _changeable("defaults", _defaults_of(function))
    for name, cell in cells_of(function).items():
        yield name, cell.cell_contents, partial(setattr, cell, "cell_contents")


def cells_of(function: types.FunctionType) -> dict[str, types.CellType]:
    """Where the variables of functions around ``function`` that it uses are; those that are set."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name == "__class__":  # of a method that calls super()
            continue
        with contextlib.suppress(ValueError):  # not set yet
            cell.cell_contents  # noqa: B018 - raises
            found[name] = cell
    return found


def nowhere(value: Any) -> None:
    """What cannot be replaced can be overwritten only."""
    del value


_STEP: Final = re.compile(r"[.\[(]")


class Paths:
    """Paths of variables, and of all that they lead through.

    Args:
        paths: Of variables.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._ends = frozenset(paths)
        self._through = {path[: at.start()] for path in self._ends for at in _STEP.finditer(path)}

    def lead_through(self, path: str) -> bool:
        """Whether ``path`` is where one of them leads through."""
        return path in self._through

    def lead_to(self, path: str) -> bool:
        """Whether ``path`` is one of them, or where one leads through."""
        return path in self._ends or path in self._through


NO_PATHS: Final = Paths(())


class Seen(set[int]):
    """Ids of objects: each is looked into once, by the first of its names.

    Which name is the first may differ: a caller's name for an argument is needed on in one place of
    the program, and not in another. So whoever looks for given paths goes by those again.

    Args:
        known: Ids of objects that are not looked into.
        paths: What is looked for.
    """

    def __init__(self, known: Iterable[int], *, paths: Paths) -> None:
        super().__init__(known)
        self._paths = paths
        self._left_out: set[int] = set()
        self._entered: set[str] = set()

    def leave_out(self, ids: Iterable[int]) -> None:
        """Objects that need not be looked into; they do not count as looked into, either."""
        self._left_out.update(ids)

    def enters(self, path: str) -> bool:
        """Whether an object whose members' paths begin so is looked into for the first time."""
        before = len(self._entered)
        self._entered.add(path)
        return len(self._entered) > before

    def seeks(self, path: str) -> bool:
        """Whether what is looked for is there, or is found through it."""
        return self._paths.lead_to(path)

    def has(self, value: object, path: str) -> bool:
        """Whether ``value``, found by ``path``, has been looked into, or need not be."""
        known = id(value) in self or id(value) in self._left_out
        return known and not self._paths.lead_through(path)
