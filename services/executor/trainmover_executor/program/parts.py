"""What a value of the program consists of: members of objects, what functions close over."""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from trainmover_executor.program.frames import is_program
from trainmover_executor.program.values import is_plain

__all__ = ["SCALARS", "is_passed_over", "nowhere", "parts_of"]

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


@lru_cache(maxsize=4096)
def _is_own(kind: type[Any]) -> bool:
    """Whether a class is the program's own, or a bag of values."""
    if issubclass(kind, types.SimpleNamespace | argparse.Namespace):
        return True
    module = inspect.getmodule(kind)
    return is_program(kind.__module__, getattr(module, "__file__", None) or "<frozen")


def parts_of(value: Any) -> Iterable[Part] | None:
    """(name, value, how to set it) of what ``value`` holds; None for what is not the program's."""
    if isinstance(value, types.FunctionType):
        # Decorators give a wrapper the name of the module of what it wraps.
        mine = is_program(value.__globals__.get("__name__", ""), value.__code__.co_filename)
        return _parts_of_function(value) if mine else ()
    if isinstance(value, types.MethodType | types.BuiltinMethodType):
        return [("self", value.__self__, nowhere)]
    if isinstance(value, functools.partial):
        return _parts_of_partial(value)
    if isinstance(value, type):
        return _members_of(value) if _is_own(value) else ()
    own = hasattr(value, "__dict__") and _is_own(type(value))  # type: ignore[arg-type]
    return _members_of(value) if own else None


def _members_of(value: Any) -> list[Part]:
    # Containers and generators of a data set belong to the data.
    plain = isinstance(value, Dataset)
    return [
        (name, each, partial(setattr, value, name))
        for name, each in vars(value).items()
        if not plain or type(each) in SCALARS
    ]


def _parts_of_partial(value: functools.partial[Any]) -> list[Part]:
    given = [*value.args, *value.keywords.values()]
    parts = [(f"args[{at}]", each, nowhere) for at, each in enumerate(given) if not is_plain(each)]
    return [("func", value.func, nowhere), *parts]


def _parts_of_function(function: types.FunctionType) -> Iterator[Part]:
    """Attributes of a function, and the variables of functions around it that it uses."""
    yield from _members_of(function)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not set yet
            yield name, cell.cell_contents, partial(setattr, cell, "cell_contents")


def nowhere(value: Any) -> None:
    """What cannot be replaced can be overwritten only."""
    del value
