"""What loaders and samplers keep as attributes and change: weights, a stage, a count of passes.

A pass over the data depends on them as they were when it began, so that is what a joiner begins it
with. What they are now is among the program's variables.
"""

from __future__ import annotations

import operator
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

import numpy as np
import structlog
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from trainmover.errors import ConfigError
from trainmover_executor.program.frames import is_of_script
from trainmover_executor.program.parts import slots_of
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.plain import is_plain, is_tensor_of_program
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable

__all__ = [
    "Attributes",
    "Holder",
    "attributes_of",
    "attributes_of_chain",
    "held_by",
    "set_attribute",
]

log = structlog.get_logger(__name__)

_MOST_BYTES: Final = 1024 * 1024
"""It goes to other machines with each vote."""
_MOST_PRINTED_BYTES: Final = 64 * 1024 * 1024
_SAMPLES: Final = 4096
"""Elements that are looked at of what is larger: data that a loader holds."""
_MOST_ITEMS: Final = 256
_MOST_HOLDERS: Final = 256
_NUMBERS: Final = (bool, int, float)
_ITEM_BYTES: Final = 4
"""What the place of an item of a long list takes."""
_ORDER, _LONG, _PRINT = "order", "numbers", "print"

Holder = tuple[str, Any]
"""An object with attributes, by a name for people that is the same in all processes."""


@dataclass(slots=True)
class _Seen:
    """What one holder had when it was first seen, whichever loader held it.

    Attributes:
        holder: Gives the holder, as long as there is one.
        first: Its attributes as portable trees, by name; of long lists nothing.
        orders: Its long lists.
        changed: Names of attributes that were another value since.
    """

    holder: Callable[[], Any]
    first: dict[str, Any] = field(default_factory=dict)
    orders: dict[str, list[Any]] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)


_seen: dict[int, _Seen] = {}


class Attributes:
    """Of objects that a pass over the data depends on.

    What has changed is told: data may be long, and stays; a number may be the handle of a file.

    Args:
        holders: Asked for the objects each time. All is told of those that come later.

    Attributes:
        holders: As given.
    """

    def __init__(self, holders: Callable[[], Iterable[Holder]]) -> None:
        self.holders = holders
        self._said: set[str] = set()
        for _, holder in holders():
            if _known(holder) is None:
                seen = _seen_of(holder)
                for name, value in _attributes_in(holder):
                    if _is_long(value):
                        seen.orders[name] = list(value)
                    else:
                        seen.first[name] = _tree_of(value)

    def state(self) -> dict[str, Any]:
        """What they are now; portable. What is too large to be told is named in the log, once."""
        told = {}
        left = _MOST_BYTES
        for of, holder in self.holders():
            seen = _seen_of(holder)
            for name, value in _attributes_in(holder):
                tree = _tree_in(seen, name, value)
                if name not in seen.changed:
                    if tree is None or equal(seen.first.get(name), tree):
                        continue
                    seen.changed.add(name)
                nbytes = _size_of(tree, value)
                if nbytes > left:
                    self._say(f"{of}.{name}", nbytes)
                    tree = {_PRINT: _print_of(tree)}
                else:
                    left -= nbytes
                told[f"{of}.{name}"] = tree
        return told

    def load(self, state: dict[str, Any]) -> None:
        """Have attributes be what ``state`` said; others what they were at first.

        Raises:
            ConfigError: One that is too large to be told is another one here.
        """
        for of, holder in self.holders():
            seen = _seen_of(holder)
            for name, value in _attributes_in(holder):
                path = f"{of}.{name}"
                here = _tree_in(seen, name, value)
                there = state.get(path, seen.first.get(name))
                if _has(there, _PRINT):
                    if _print_of(here) != there[_PRINT]:
                        raise _too_large(path)
                elif _has(there, _ORDER):
                    value[:] = _ordered(path, seen.orders.get(name, []), there[_ORDER])
                elif there is None and _has(here, _ORDER):
                    value[:] = seen.orders[name]
                elif _has(there, _LONG):
                    value[:] = there[_LONG].tolist()
                elif there is not None and not equal(here, there):
                    set_attribute(holder, name, restored(there, value))

    def _say(self, path: str, nbytes: int) -> None:
        if path not in self._said:
            self._said.add(path)
            log.warning(
                "an attribute of the loader changes and is too large for a neighbour to keep: no "
                "standby can take this rank's place in passes that depend on it",
                attribute=path,
                nbytes=nbytes,
                most=_MOST_BYTES,
                cure="make the order of a pass from its number: numpy.random.RandomState(epoch)",
            )


def attributes_of_chain(samplers: Sequence[Any]) -> Attributes:
    """Those of a loader's sampler, of the one that it wraps, and so on; the outermost first."""
    named = [(f"{type(each).__name__}[{at}]", each) for at, each in enumerate(samplers)]
    return Attributes(lambda: named)


def attributes_of(loader: Any) -> Attributes:
    """Those of ``loader`` and of the program's objects in it."""
    return Attributes(lambda: _holders_in(loader))


def _known(holder: Any) -> _Seen | None:
    seen = _seen.get(id(holder))
    return seen if seen is not None and seen.holder() is holder else None


def _seen_of(holder: Any) -> _Seen:
    seen, at = _known(holder), id(holder)
    if seen is None:
        try:
            seen = _Seen(weakref.ref(holder, lambda _: _seen.pop(at, None)))
        except TypeError:  # with slots it may be nothing that can be referred to weakly
            seen = _Seen(lambda: holder)
        _seen[at] = seen
    return seen


def _attributes_in(holder: Any) -> list[tuple[str, Any]]:
    """Names and values that can be told."""
    held = held_by(holder)
    return [(n, each) for n, each in held if is_plain(each) or _is_array(each) or _is_long(each)]


def held_by(holder: Any) -> list[tuple[str, Any]]:
    """Names and values of all attributes of ``holder``, which may be a class."""
    held = dict(getattr(holder, "__dict__", {}))
    if isinstance(holder, type):
        return [(name, each) for name, each in held.items() if not name.startswith("__")]
    slots = slots_of(type(holder))  # type: ignore[arg-type] # classes are hashable
    return [
        *held.items(),
        *((name, getattr(holder, name)) for name in slots if hasattr(holder, name)),
    ]


def set_attribute(holder: Any, name: str, value: Any) -> None:
    """Set what ``held_by`` names; torch's loaders let nobody set theirs in the usual way."""
    by: Any = type if isinstance(holder, type) else object
    by.__setattr__(holder, name, value)


def _tree_in(seen: _Seen, name: str, value: Any) -> Any:
    """``value`` as a portable tree; None for a long list that is as it was, or cannot be told."""
    if not _is_long(value):
        return _tree_of(value)
    first = seen.orders.get(name)
    if first is not None and len(first) == len(value) and all(map(operator.is_, first, value)):
        return None
    too_long = _ITEM_BYTES * len(value) > _MOST_BYTES
    order = None if too_long or first is None else _order_of(value, first)
    if order is not None:
        return {_ORDER: order}
    numbers = None if too_long else _numbers_of(value)
    if numbers is not None:
        return {_LONG: numbers}
    few = [each for each in value[:: max(1, len(value) // _SAMPLES)] if is_plain(each)]
    return {_PRINT: zlib.crc32(repr(few).encode())} if few else None


def _holders_in(loader: Any) -> Iterator[Holder]:
    """``loader``, what it holds of the program's objects and of torch's for data, their classes."""
    queue: list[Holder] = [(type(loader).__name__, loader)]
    seen = {id(loader)}
    for path, holder in queue:
        yield path, holder
        if isinstance(holder, type):
            continue
        inside = [
            one for name, each in held_by(holder) for one in _objects_in(f"{path}.{name}", each)
        ]
        classes = [each for each in type(holder).__mro__ if is_of_script(each.__module__)]
        for at, each in (*inside, *((each.__name__, each) for each in classes)):
            if id(each) not in seen and len(queue) < _MOST_HOLDERS:
                seen.add(id(each))
                queue.append((at, each))


def _objects_in(path: str, value: Any) -> Iterator[Holder]:
    if type(value) in {list, tuple} and len(value) <= _MOST_ITEMS:
        for at, each in enumerate(value):
            if _is_holder(each):
                yield f"{path}[{at}]", each
    elif type(value) is dict and len(value) <= _MOST_ITEMS:
        for key, each in value.items():
            if _is_holder(each):
                yield f"{path}[{key!r}]", each
    elif _is_holder(value):
        yield path, value


def _is_holder(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, type | torch.nn.Module | Iterator):
        return False
    return isinstance(value, DataLoader | Dataset | Sampler) or is_of_script(kind.__module__)


def _is_long(value: Any) -> bool:
    return type(value) is list and not is_plain(value) and bool(value)


def _order_of(value: list[Any], first: list[Any]) -> np.ndarray[Any, Any] | None:
    """Where in ``first`` each item of ``value`` was; None if one is another object."""
    known = np.fromiter(map(id, first), dtype=np.int64, count=len(first))
    wanted = np.fromiter(map(id, value), dtype=np.int64, count=len(value))
    by_id = np.argsort(known)
    at = np.searchsorted(known, wanted, sorter=by_id)
    order = by_id[np.minimum(at, len(first) - 1)]
    return order.astype(np.int32) if np.array_equal(known[order], wanted) else None


def _ordered(path: str, first: list[Any], order: np.ndarray[Any, Any]) -> list[Any]:
    if order.size and int(order.max()) >= len(first):
        raise ConfigError(
            f"the loader's {path} held other items here at first than at the job's ranks, so the "
            "order of a pass cannot be taken over. Fill it before the first session.steps(...)."
        )
    return [first[at] for at in order.tolist()]


def _numbers_of(value: list[Any]) -> np.ndarray[Any, Any] | None:
    kinds = set(map(type, value))
    if len(kinds) != 1 or not kinds <= set(_NUMBERS):
        return None
    try:
        return np.array(
            value, dtype={int: np.int64, float: np.float64, bool: np.bool_}[kinds.pop()]
        )
    except OverflowError:
        return None


def _has(tree: Any, key: str) -> TypeGuard[dict[str, Any]]:
    return isinstance(tree, dict) and tree.keys() == {key}


def _tree_of(value: Any) -> Any:
    """As a portable tree; a print of what is too large to be told."""
    if getattr(value, "nbytes", 0) <= _MOST_BYTES:
        return portable(value)
    array = value.detach().numpy() if isinstance(value, torch.Tensor) else value
    if array.nbytes > _MOST_PRINTED_BYTES:
        array = array.reshape(-1)[:: array.size // _SAMPLES]
    return {_PRINT: zlib.crc32(np.ascontiguousarray(array).tobytes())}


def _size_of(tree: Any, value: Any) -> int:
    if _has(tree, _ORDER) or _has(tree, _LONG):
        return sum(each.nbytes for each in tree.values())
    if type(value) is list and _has(tree, _PRINT):
        return _ITEM_BYTES * len(value)
    return int(getattr(value, "nbytes", 0))


def _print_of(tree: Any) -> Any:
    """Of a tree, so that two can be compared where one is too large to be told."""
    if _has(tree, _PRINT):
        return tree[_PRINT]
    if _has(tree, _ORDER) or _has(tree, _LONG):
        (array,) = tree.values()
        return zlib.crc32(array.tobytes())
    return zlib.crc32(repr(tree).encode())


def _too_large(path: str) -> ConfigError:
    return ConfigError(
        f"the attribute {path} of the loader changes from pass to pass and is too large to be "
        f"told: {_MOST_BYTES} bytes can be kept for a machine that is replaced. Make the order of "
        "a pass from its number, numpy.random.RandomState(epoch).permutation(n) say, keep it in a "
        "smaller type, or draw the indices in session.between_steps(work) and make a loader of "
        "them."
    )


def _is_array(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc" and not isinstance(value, np.memmap)
    return isinstance(value, torch.Tensor) and is_tensor_of_program(value)
