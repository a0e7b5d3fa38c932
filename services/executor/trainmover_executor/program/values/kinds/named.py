"""Values that are told of by a name, and made or found by it at another process.

Members of enumerations, functions and classes, types of tensors, devices, paths, and what
``standard`` writes as text. A peer can name nothing but what the program itself and torch define:
nothing is imported for it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from trainmover_executor.program.frames import file_of, is_program
from trainmover_executor.program.values.kinds import standard

__all__ = ["CODE", "fields_of", "is_named", "name_of", "of_name", "rebuilt", "tree_of_name"]

CODE: Final = (types.FunctionType, types.BuiltinFunctionType, type)
_PATH: Final = type(Path())
"""Of this system; each object is asked for at each look."""
_LIBRARIES: Final = frozenset({"torch", "numpy", "math"})
_WHERE_TORCH_HAS_THEM: Final = ("torch", "torch.nn.functional")


def is_named(value: Any) -> bool:
    """Whether ``value`` can be found by a name."""
    return tree_of_name(value) is not None


def tree_of_name(value: Any) -> str | None:
    """The name of ``value``; None for what has none."""
    if isinstance(value, enum.Enum):
        owner = _name_of_code(type(value))
        name = value.name if value.name in type(value).__members__ else _combined(value)
        return owner and name and f"member {owner} {name}"
    if isinstance(value, CODE):
        name = _name_of_code(value)
        return name and f"code {name}"
    if isinstance(value, torch.dtype):
        return f"dtype {str(value).removeprefix('torch.')}"
    if isinstance(value, torch.device):
        return f"device {value}"
    return f"path {value}" if type(value) is _PATH else standard.written(value)


def name_of(kind: type[Any]) -> str | None:
    """The name by which a class is found; None for one that has none."""
    return _name_of(kind)  # type: ignore[arg-type] # classes are hashable


_name_of: Final = functools.lru_cache(maxsize=4096)(tree_of_name)
"""Asked for each object at each look."""


def of_name(name: str) -> Any:
    """What ``tree_of_name`` named.

    Raises:
        ValueError: There is no such thing here.
    """
    kind, _, rest = name.partition(" ")
    if kind == "member":
        owner, _, member = rest.rpartition(" ")
        found = _code_of(owner)
        if isinstance(found, type) and issubclass(found, enum.Enum):
            return found(int(member)) if member.isdecimal() else _member_of(found, member)
    elif kind == "code":
        return _code_of(rest)
    elif kind == "dtype" and isinstance(dtype := getattr(torch, rest, None), torch.dtype):
        return dtype
    elif kind == "device":
        return torch.device(rest)
    elif kind == "path":
        return Path(rest)
    elif standard.is_kind(kind):
        return standard.read(kind, rest)
    raise ValueError(f"this program has nothing of the name {name!r}")


def _combined(value: enum.Enum) -> str | None:
    """Of several flags, the number that they make."""
    return str(value.value) if isinstance(value, enum.Flag) and value.value >= 0 else None


def _member_of(kind: type[enum.Enum], name: str) -> enum.Enum:
    if name not in kind.__members__:
        raise ValueError(f"{kind.__qualname__} has no {name!r} here")
    return kind[name]


def _code_of(name: str) -> Any:
    module, _, path = name.partition(":")
    found = _found(module, path)
    if found is None or _name_of_code(found) != name:
        raise ValueError(f"this program has no {name!r}")
    return found


def _name_of_code(value: Any) -> str | None:
    """``module:function`` by which ``value`` is found in the program or in torch."""
    path = getattr(value, "__qualname__", "")
    if isinstance(value, types.BuiltinFunctionType):
        path = value.__name__
        modules: Sequence[Any] = (value.__module__, *_WHERE_TORCH_HAS_THEM)
    else:
        modules = (getattr(value, "__module__", None),)
    for module in modules:
        if isinstance(module, str) and _found(module, path) is value:
            return f"{module}:{path}"
    return None


def _found(module: str, path: str) -> Any:
    loaded = sys.modules.get(module)
    if loaded is None or not path or "<" in path:
        return None
    if module.partition(".")[0] not in _LIBRARIES and not is_program(module, file_of(module)):
        return None
    try:
        return operator.attrgetter(path)(loaded)
    except AttributeError:
        return None


# -- values that consist of named fields ---------------------------------------------------------


def fields_of(value: Any) -> list[Any] | None:
    """What a named tuple or a frozen dataclass of the program consists of; None for others."""
    names = _field_names(type(value))  # type: ignore[arg-type] # classes are hashable
    if names is None or (isinstance(value, tuple) and len(value) != len(names)):
        return None
    return list(value) if isinstance(value, tuple) else [getattr(value, name) for name in names]


@functools.lru_cache(maxsize=4096)
def _field_names(kind: type[Any]) -> tuple[str, ...] | None:
    if issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
    elif dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        names = tuple(field.name for field in dataclasses.fields(kind))
    else:
        return None
    return names if isinstance(names, tuple) and _name_of_code(kind) is not None else None


def rebuilt(kind: type[Any], values: Sequence[Any]) -> Any:
    """The value of class ``kind`` whose fields are ``values``.

    Raises:
        ValueError: Objects of this class do not consist of such fields.
    """
    names = _field_names(kind)  # type: ignore[arg-type] # classes are hashable
    if names is None or len(names) != len(values):
        raise ValueError(f"{kind.__qualname__} has other fields here")
    if issubclass(kind, tuple):
        return tuple.__new__(kind, values)
    made = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made
