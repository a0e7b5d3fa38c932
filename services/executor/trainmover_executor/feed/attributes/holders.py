"""Whose attributes a pass over the data depends on: found from the loader, through its code too."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from trainmover_executor.feed.attributes.uses import Namespace, functions_in, uses_of
from trainmover_executor.program.frames import is_of_script
from trainmover_executor.program.looking.parts import BAGS, cells_of, slots_of

__all__ = ["Holder", "get_attribute", "held_by", "holders_in", "identity_of", "set_attribute"]

_MOST_ITEMS: Final = 256
_MOST_HOLDERS: Final = 256

Holder = tuple[str, Any]
"""An object with attributes, by a name for people that is the same in all processes.

It may be a class, a function, whose attributes are the variables around it that it uses, or a
``Namespace``.
"""


def holders_in(roots: Iterable[Holder], *, apart: tuple[type[Any], ...] = ()) -> list[Holder]:
    """``roots``, what they hold of the program's objects and of torch's for data, and their code.

    Args:
        roots: Loaders or samplers.
        apart: Objects of these kinds are left out.

    Returns:
        Each once: objects, their classes, functions that these and the program call, and at the
        end a ``Namespace`` for each module whose global variables they use.
    """
    queue: list[Holder] = list(roots)
    seen = {id(holder) for _, holder in queue}
    named = collections.Counter(path for path, _ in queue)
    spaces: dict[int, Namespace] = {}
    for path, holder in queue:
        for at, each in _inside(path, holder, spaces):
            if id(each) not in seen and len(queue) < _MOST_HOLDERS and not isinstance(each, apart):
                seen.add(id(each))
                named[at] += 1  # two classes may have one name
                queue.append((at if named[at] == 1 else f"{at}#{named[at]}", each))
    return [*queue, *((f"{space.name}:", space) for space in spaces.values())]


def _inside(path: str, holder: Any, spaces: dict[int, Namespace]) -> Iterator[Holder]:
    if isinstance(holder, type):
        yield from ((f"{path}.{name}", each) for name, each in functions_in(holder))
        return
    for name, each in held_by(holder):
        yield from _objects_in(f"{path}.{name}", each)
    if isinstance(holder, types.FunctionType):
        for names, name in uses_of(holder):
            space = spaces.setdefault(id(names), Namespace(names))
            space.used.add(name)
            yield from _objects_in(f"{space.name}:.{name}", names[name])
        return
    for kind in type(holder).__mro__:
        if is_of_script(kind.__module__):
            yield kind.__name__, kind


def _objects_in(path: str, value: Any) -> Iterator[Holder]:
    if type(value) in {list, tuple} and len(value) <= _MOST_ITEMS:
        for at, each in enumerate(value):
            yield from _object(f"{path}[{at}]", each)
    elif type(value) is dict and len(value) <= _MOST_ITEMS:
        for key, each in value.copy().items():
            yield from _object(f"{path}[{key!r}]", each)
    else:
        yield from _object(path, value)


def _object(path: str, value: Any) -> Iterator[Holder]:
    if isinstance(value, functools.partial):
        given = (value.func, *value.args, *value.keywords.values())
        for at, each in enumerate(given):
            yield from _object(f"{path}[{at}]", each)
    elif isinstance(value, types.MethodType):
        yield from _object(f"{path}.self", value.__self__)
    elif _is_holder(value):
        yield path, value


def _is_holder(value: Any) -> bool:
    if isinstance(value, torch.nn.Module | Iterator):
        return False
    if isinstance(value, type | types.FunctionType):
        return is_of_script(value.__module__ or "")
    kind = type(value)
    known = isinstance(value, (DataLoader, Dataset, Sampler, *BAGS))
    return known or is_of_script(kind.__module__)


def identity_of(holder: Any) -> Any:
    """What stays the same object as long as ``holder`` stands for the same thing."""
    return holder.names if isinstance(holder, Namespace) else holder


def held_by(holder: Any) -> list[tuple[str, Any]]:
    """Names and values of all attributes of ``holder``."""
    if isinstance(holder, Namespace):
        return [(name, holder.names[name]) for name in sorted(holder.used) if name in holder.names]
    held = dict(getattr(holder, "__dict__", {}))
    if isinstance(holder, type):
        return [(name, each) for name, each in held.items() if not name.startswith("__")]
    if isinstance(holder, types.FunctionType):
        return [*held.items(), *((n, each.cell_contents) for n, each in cells_of(holder).items())]
    slots = slots_of(type(holder))  # type: ignore[arg-type] # classes are hashable
    return [
        *held.items(),
        *((name, getattr(holder, name)) for name in slots if hasattr(holder, name)),
    ]


def get_attribute(holder: Any, name: str) -> Any:
    """What ``held_by`` has by that name; None where it is gone."""
    if isinstance(holder, Namespace):
        return holder.names.get(name)
    if isinstance(holder, types.FunctionType) and (cell := cells_of(holder).get(name)):
        return cell.cell_contents
    return getattr(holder, name, None)


def set_attribute(holder: Any, name: str, value: Any) -> None:
    """Set what ``held_by`` names; torch's loaders let nobody set theirs in the usual way."""
    if isinstance(holder, Namespace):
        holder.names[name] = value
    elif isinstance(holder, types.FunctionType) and (cell := cells_of(holder).get(name)):
        cell.cell_contents = value
    else:
        by: Any = type if isinstance(holder, type) else object
        by.__setattr__(holder, name, value)
