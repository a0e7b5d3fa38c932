"""Global variables that functions of the program use: a loader may count its passes in one."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from trainmover_executor.program.frames import is_of_script

__all__ = ["Namespace", "functions_in", "uses_of"]

_GLOBAL: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"})
_ATTRIBUTE: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"})


class Namespace:
    """Global variables of one module, of which some are used.

    Args:
        names: All of them, as they are at any time.

    Attributes:
        names: As given.
        used: Names of those that are used.
    """

    __slots__ = ("names", "used")

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.used: set[str] = set()

    @property
    def name(self) -> str:
        """That of the module, for people."""
        return str(self.names.get("__name__", "?")).strip("_")


def functions_in(kind: type[Any]) -> Iterator[tuple[str, types.FunctionType]]:
    """(name, function) of what a class says that its objects do."""
    for name, value in list(vars(kind).items()):
        for each in _unwrapped(value):
            if isinstance(each, types.FunctionType):
                yield name, each


def _unwrapped(value: Any) -> tuple[Any, ...]:
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget, value.fset)
    if isinstance(value, functools.cached_property):
        return (value.func,)
    return (value,)


def uses_of(function: types.FunctionType) -> Iterator[tuple[dict[str, Any], str]]:
    """(names of a module, one of them) for each global variable that ``function`` names.

    Of modules that the script brought along, also by their attributes: ``settings.level``.
    """
    names = function.__globals__
    used, attributes = _names_in(function.__code__)
    for name in used:
        if name not in names:
            continue  # built in, or not set yet
        yield names, name
        value = names[name]
        if isinstance(value, types.ModuleType) and is_of_script(value.__name__):
            inside = vars(value)
            yield from ((inside, each) for each in attributes if each in inside)


@lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of global variables and of attributes in ``code`` and in functions within; sorted."""
    used: set[str] = set()
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL:
            used.add(instruction.argval)
        elif instruction.opname in _ATTRIBUTE:
            attributes.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names_in(constant)
            used.update(inner[0])
            attributes.update(inner[1])
    return tuple(sorted(used)), tuple(sorted(attributes))
