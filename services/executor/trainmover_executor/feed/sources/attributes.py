"""What loaders and samplers keep as attributes and change: weights, a stage, a count of passes.

A pass over the data depends on them as they were when it began, so that is what a joiner begins it
with. What they are now is among the program's variables.
"""

from __future__ import annotations

import operator
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeGuard

import numpy as np
import structlog
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from trainmover.errors import ConfigError
from trainmover_executor.program.frames import is_of_script
from trainmover_executor.program.values.compare import equal
from trainmover_executor.program.values.plain import is_plain, is_tensor_of_program
from trainmover_executor.program.values.restored import restored
from trainmover_executor.program.values.trees import portable

__all__ = ["Attributes", "Holder", "attributes_of", "attributes_of_chain"]

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


class Attributes:
    """Of objects that a pass over the data depends on.

    Numbers are told always, anything else once it has changed: data may be long, and stays.

    Args:
        holders: Asked for the objects each time; some may come later.

    Attributes:
        holders: As given.
    """

    def __init__(self, holders: Callable[[], Iterable[Holder]]) -> None:
        self.holders = holders
        self._first: dict[str, Any] = {}
        self._orders: dict[str, list[Any]] = {}
        self._changed: set[str] = set()
        self._said: set[str] = set()
        for path, _, _, value in self._told():
            if _is_long(value):
                self._orders[path] = list(value)
            else:
                self._first[path] = _tree_of(value)

    def state(self) -> dict[str, Any]:
        """What they are now; portable. What is too large to be told is named in the log, once."""
        told = {}
        left = _MOST_BYTES
        for path, _, _, value in self._told():
            tree = self._tree(path, value)
            if type(value) not in _NUMBERS and path not in self._changed:
                if tree is None or equal(self._first.get(path), tree):
                    continue
                self._changed.add(path)
            nbytes = _size_of(tree, value)
            if nbytes > left:
                self._say(path, nbytes)
                tree = {_PRINT: _print_of(tree)}
            else:
                left -= nbytes
            told[path] = tree
        return told

    def load(self, state: dict[str, Any]) -> None:
        """Have attributes be what ``state`` said; others what they were at first.

        Raises:
            ConfigError: One that is too large to be told is another one here.
        """
        for path, holder, name, value in self._told():
            here, there = self._tree(path, value), state.get(path, self._first.get(path))
            if _has(there, _PRINT):
                if _print_of(here) != there[_PRINT]:
                    raise _too_large(path)
            elif _has(there, _ORDER):
                value[:] = [self._orders[path][at] for at in there[_ORDER].tolist()]
            elif there is None and _has(here, _ORDER):
                value[:] = self._orders[path]
            elif _has(there, _LONG):
                value[:] = there[_LONG].tolist()
            elif there is not None and not equal(here, there):
                vars(holder)[name] = restored(there, value)

    def _tree(self, path: str, value: Any) -> Any:
        """``value`` as a portable tree; None for a long list that is as it was at first."""
        if not _is_long(value):
            return _tree_of(value)
        first = self._orders.setdefault(path, list(value))
        if len(first) == len(value) and all(map(operator.is_, first, value)):
            return None
        if _ITEM_BYTES * len(value) > _MOST_BYTES:
            few = value[:: len(value) // _SAMPLES]
            return {_PRINT: zlib.crc32(repr([each for each in few if is_plain(each)]).encode())}
        order = _order_of(value, first)
        if order is not None:
            return {_ORDER: order}
        numbers = _numbers_of(value)
        return numbers if numbers is None else {_LONG: numbers}

    def _told(self) -> Iterator[tuple[str, Any, str, Any]]:
        """(path, holder, name, value) of attributes that can be told."""
        for of, holder in self.holders():
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if is_plain(value) or _is_array(value) or _is_long(value):
                    yield f"{of}.{name}", holder, name, value

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


_known: weakref.WeakKeyDictionary[Any, Attributes] = weakref.WeakKeyDictionary()


def attributes_of(loader: Any) -> Attributes:
    """Those of ``loader`` and of the program's objects in it, as they were when first asked for."""
    try:
        if loader not in _known:
            held = weakref.ref(loader)
            _known[loader] = Attributes(lambda: _holders_in(held()))
        return _known[loader]
    except TypeError:  # unhashable, or nothing that can be referred to weakly
        return Attributes(lambda: _holders_in(loader))


def _holders_in(loader: Any) -> Iterator[Holder]:
    """``loader``, and what it holds of the program's own objects and of torch's for data."""
    queue: list[Holder] = [(type(loader).__name__, loader)]
    seen = {id(loader)}
    for path, holder in queue:
        yield path, holder
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            for at, each in _objects_in(f"{path}.{name}", value):
                if id(each) not in seen and len(queue) < _MOST_HOLDERS:
                    seen.add(id(each))
                    queue.append((at, each))


def _objects_in(path: str, value: Any) -> Iterator[Holder]:
    if type(value) in {list, tuple} and len(value) <= _MOST_ITEMS:
        for at, each in enumerate(value):
            yield from _objects_in(f"{path}[{at}]", each) if _is_holder(each) else ()
    elif type(value) is dict and len(value) <= _MOST_ITEMS:
        for key, each in value.items():
            yield from _objects_in(f"{path}[{key!r}]", each) if _is_holder(each) else ()
    elif _is_holder(value):
        yield path, value


def _is_holder(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, type | torch.nn.Module | Iterator) or not hasattr(value, "__dict__"):
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
